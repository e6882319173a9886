//! Taking messages from partitions under one snapshot: read without a lock, and where there is
//! something, lock, write the next state, deliver.
//!
//! In a group without order there is no lock on the partition: see [`unordered`].

pub mod search;
mod unordered;

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use queen_engine::cursor::Readiness;
use queen_engine::discovery::Discovery;
use queen_engine::lease::{Handle, LeaseId};
use queen_engine::message::{MessageId, Spans};
use queen_engine::pop::{Pop, Popped};

use crate::broker::lookup;
use crate::broker::pop::search::Search;
use crate::error::Result;
use crate::pg::clock::{self, Moment};
use crate::pg::datum::{Jsonb, ResultContext, random};
use crate::pg::scratch::Scratch;
use crate::pg::spi::ActiveSnapshot;
use crate::pg::table::RowLocation;
use crate::store::cursor::{self, Located, LockAttempt, Notice};
use crate::store::group::Group;
use crate::store::lease_set::Covered;
use crate::store::queue::{DEAD_LETTER, Queue};
use crate::store::seen_snapshot::{self, SeenSnapshot};
use crate::store::segment::{Contents, Log, LogPage, Stored, Unpacked};
use crate::store::unit::Unit;
use crate::store::{dead_letter, lease_set, receipt, tally};

/// What a pop wants.
pub struct Wanted<'a> {
    /// Messages, over all partitions.
    pub batch: usize,
    /// From this partition alone.
    pub partition: Option<&'a str>,
    /// From up to so many.
    pub partitions: usize,
    /// Held for so long; None: as the queue has it.
    pub lease_time: Option<i64>,
    /// Settled at once, without a lease.
    pub auto_ack: bool,
}

/// A delivered message.
pub struct Delivery {
    pub partition: Rc<str>,
    pub message: MessageId,
    /// The contents of its segment, unpacked when the message is returned: not all are in memory at
    /// once.
    pub contents: Contents,
    pub created_at: Moment,
    pub attempt: u32,
    pub lease: Option<(LeaseId, Moment)>,
}

/// Unpacks the contents of messages that are returned one by one, a segment at a time.
pub struct Unpacking {
    scratch: Scratch,
    open: Option<(u64, Unpacked)>,
}

impl Unpacking {
    pub fn new() -> Self {
        Self { scratch: Scratch::new(), open: None }
    }

    /// transaction_id, payload and headers of a message. They live until the next call for a
    /// message of another segment.
    pub fn message(&mut self, of: &Delivery) -> Result<(String, Jsonb, Option<Jsonb>)> {
        let segment = of.message.segment();
        let open = match self.open.take() {
            Some((id, unpacked)) if id == segment => unpacked,
            _ => {
                self.scratch.clear();
                self.scratch.keep(|| of.contents.unpack())
            }
        };
        let index = of.message.index();
        let given = (open.names.of(of.message), open.payload(index)?, open.headers(index));
        self.open = Some((segment, open));
        Ok(given)
    }
}

/// What became of one partition.
pub enum PartitionResult {
    Took,
    /// And there may be more.
    TookSome,
    /// Busy, or nothing to read.
    Nothing,
    /// Nothing but what is not to be delivered yet, from this segment and transaction on.
    TooYoung(u64, u64),
    /// Somebody has it locked, or is creating it.
    Locked,
    /// Somebody wrote its next state after our snapshot.
    MovedOn,
}

/// What a look at one partition found.
enum Look<'t> {
    Nothing(PartitionResult),
    Something(Box<Something<'t>>),
}

impl Look<'_> {
    /// What would have become of it.
    fn tried(self) -> PartitionResult {
        match self {
            Look::Nothing(tried) => tried,
            Look::Something(_) => PartitionResult::Took,
        }
    }
}

/// A pop that has found something.
struct Something<'t> {
    /// The cursor and where it lies, unless it is new.
    found: Option<(Located, RowLocation)>,
    pop: Pop<'t>,
    /// The segments it has read.
    segments: HashMap<u64, Stored>,
}

/// Taking messages from partitions under one snapshot.
pub struct Taking<'a> {
    wanted: &'a Wanted<'a>,
    queue: &'a Queue,
    group: &'a Group,
    /// How far the group has looked.
    discovery: &'a (i64, Discovery),
    now: Moment,
    /// The lease over several partitions, drawn when the first is taken.
    set: Option<(u64, LeaseId)>,
    covered: Vec<Covered>,
    partitions: HashSet<String>,
    /// Claims that have been given a new state.
    moved: HashSet<u64>,
    has_written: bool,
    is_outdated: bool,
    deliveries: Vec<Delivery>,
    results: ResultContext,
}

impl<'a> Taking<'a> {
    pub fn new(
        wanted: &'a Wanted<'a>,
        queue: &'a Queue,
        group: &'a Group,
        discovery: &'a (i64, Discovery),
        results: ResultContext,
    ) -> Self {
        Self {
            wanted,
            queue,
            group,
            discovery,
            now: clock::now(),
            set: None,
            covered: Vec::new(),
            partitions: HashSet::new(),
            moved: HashSet::new(),
            has_written: false,
            is_outdated: false,
            deliveries: Vec::new(),
            results,
        }
    }

    /// Take what was asked for. True if a partition was moved on in the meantime.
    pub fn run(&mut self, under: &ActiveSnapshot) -> Result<bool> {
        let taken = seen_snapshot::describe(under, self.queue.identity);
        let mut moved_on = false;
        // In an ordered group a named partition is all there is to look at.
        if let Some(name) = self.wanted.partition {
            moved_on = self.try_each(vec![name.to_owned()], &taken, under, &mut |_, _| ())?;
        }
        if self.wanted.partition.is_none() || !self.is_ordered() {
            moved_on |= self.search(&taken, under)?;
        }
        if let Some((id, lease)) = self.set.filter(|_| !self.covered.is_empty()) {
            lease_set::insert(id, lease, std::mem::take(&mut self.covered), self.now);
        }
        Ok(moved_on)
    }

    fn search(&mut self, taken: &SeenSnapshot, under: &ActiveSnapshot) -> Result<bool> {
        let mut search =
            Search::open(self.group, self.queue, self.now, taken, under, self.discovery);
        let mut moved_on = false;
        while !self.is_done() {
            let names = search.next(self.has_enough(), |name| self.may_take_from(name))?;
            if names.is_empty() {
                break;
            }
            let mut resolve = |partition: &str, tried: &_| search.resolve(partition, tried);
            moved_on |= self.try_each(names, taken, under, &mut resolve)?;
        }
        search.close(self.has_written);
        Ok(moved_on)
    }

    /// Whether more is hardly worth looking for: the partitions to take from are settled upon.
    fn has_enough(&self) -> bool {
        !self.is_ordered() && self.partitions.len() >= self.wanted.partitions
    }

    /// Whether the group is still what it was when it was looked up. Who has locked a cursor or a claim of
    /// it, or begun to read first, keeps it so to the end of the transaction: this is asked after that.
    fn is_current(&mut self) -> Result<bool> {
        self.is_outdated = !lookup::is_current(self.queue, self.group)?;
        if self.is_outdated {
            cursor::moved_on()?;
        }
        Ok(!self.is_outdated)
    }

    fn is_ordered(&self) -> bool {
        self.group.is_ordered(&self.queue.options)
    }

    /// Whether what the search calls so is wanted.
    fn may_take_from(&self, name: &str) -> bool {
        let may_take_more = self.partitions.len() < self.wanted.partitions;
        if may_take_more && self.wanted.partition.is_none() {
            return true;
        }
        let partition = Unit::named(name).partition();
        self.wanted.partition.is_none_or(|wanted| wanted == partition)
            && (may_take_more || self.partitions.contains(partition))
    }

    /// The queue and the group are to be looked up once more.
    pub fn is_outdated(&self) -> bool {
        self.is_outdated
    }

    /// Whether the take wrote anything that must not be rolled back.
    pub fn has_written(&self) -> bool {
        self.has_written
    }

    pub fn took_any(&self) -> bool {
        !self.deliveries.is_empty()
    }

    pub fn into_deliveries(self) -> Vec<Delivery> {
        self.deliveries
    }

    fn is_done(&self) -> bool {
        // In an ordered group a partition is looked at once.
        let has_all = self.is_ordered() && self.partitions.len() >= self.wanted.partitions;
        self.is_outdated || has_all || self.deliveries.len() >= self.wanted.batch
    }

    fn try_each(
        &mut self,
        partitions: Vec<String>,
        taken: &SeenSnapshot,
        under: &ActiveSnapshot,
        resolve: &mut dyn FnMut(&str, &PartitionResult),
    ) -> Result<bool> {
        let mut moved_on = false;
        for partition in partitions {
            if self.is_done() {
                break;
            }
            if !self.may_take_from(&partition) {
                continue;
            }
            let tried = match self.is_ordered() {
                true => self.try_one(&partition, taken, under)?,
                false => self.try_unit(Unit::named(&partition), taken, under)?,
            };
            moved_on |= matches!(tried, PartitionResult::MovedOn);
            resolve(&partition, &tried);
        }
        Ok(moved_on)
    }

    /// Whether there is something to take, taking nothing.
    pub fn peek(&self, under: &ActiveSnapshot) -> Result<bool> {
        let taken = seen_snapshot::describe(under, self.queue.identity);
        let mut search =
            Search::open(self.group, self.queue, self.now, &taken, under, self.discovery);
        let mut is_there = false;
        while !is_there {
            let names = search.next(false, |_| true)?;
            if names.is_empty() {
                break;
            }
            for name in names {
                let tried = match self.is_ordered() {
                    true => self.look(&name, &taken, under)?.tried(),
                    false => self.look_at_unit(Unit::named(&name), &taken, under)?,
                };
                is_there = matches!(tried, PartitionResult::Took | PartitionResult::TookSome);
                if is_there {
                    break;
                }
                search.resolve(&name, &tried);
            }
        }
        search.close(false);
        Ok(is_there)
    }

    /// Read what a partition has to give, without a lock.
    fn look<'t>(
        &self,
        partition: &str,
        taken: &'t SeenSnapshot,
        under: &ActiveSnapshot,
    ) -> Result<Look<'t>> {
        let found = cursor::status(self.group.id, &self.group.start, partition, under)?;
        let cursor = self.group.state_in(found.as_ref().map(|(located, _)| located));
        if let Readiness::At(_) = cursor.readiness(self.now, self.queue.identity.void_before) {
            return Ok(Look::Nothing(PartitionResult::Nothing));
        }
        let log = self.log(partition, cursor.since);
        let missing = self.wanted.batch - self.deliveries.len();
        let max_deliveries = self.queue.options.max_deliveries();
        let mut pop = Pop::begin(cursor, &taken.snapshot, missing, max_deliveries);
        let (segments, held_back) = read_log(&mut pop, &log, taken, under);
        if pop.found_any() {
            return Ok(Look::Something(Box::new(Something { found, pop, segments })));
        }
        let too_young = |(segment, xid)| PartitionResult::TooYoung(segment, xid);
        Ok(Look::Nothing(held_back.map_or(PartitionResult::Nothing, too_young)))
    }

    fn log<'p>(&self, partition: &'p str, since: Option<Moment>) -> Log<'p> {
        let delay = self.queue.options.delay();
        Log {
            queue: self.queue.id,
            partition,
            group: self.group.id,
            since,
            until: (delay > 0).then(|| self.now.saturating_sub(delay)),
            is_bare: false,
        }
    }

    /// Look; and if there is something, lock, write the next state, deliver.
    fn try_one(
        &mut self,
        partition: &str,
        taken: &SeenSnapshot,
        under: &ActiveSnapshot,
    ) -> Result<PartitionResult> {
        let something = match self.look(partition, taken, under)? {
            Look::Nothing(tried) => return Ok(tried),
            Look::Something(something) => something,
        };
        let Something { found, pop, mut segments } = *something;
        let log = self.log(partition, pop.since());
        let located = match found {
            Some((located, place)) => match cursor::try_lock(&located, place, under)? {
                LockAttempt::Locked if !self.is_current()? => return Ok(PartitionResult::MovedOn),
                LockAttempt::Locked => located,
                LockAttempt::HeldByAnother => return Ok(PartitionResult::Locked),
                LockAttempt::MovedOn => return Ok(PartitionResult::MovedOn),
            },
            None if !cursor::try_share_first_reads(self.queue.id, self.group.id) => {
                return Ok(PartitionResult::Locked);
            }
            None if !self.is_current()? => {
                cursor::give_back_first_reads(self.queue.id, self.group.id);
                return Ok(PartitionResult::MovedOn);
            }
            None => match cursor::try_create_with_shares(self.group.id, partition)? {
                // The state of this cursor knows nothing of messages that a sweep or a purge has
                // removed since the look. From here on neither removes any: a purge waits for the
                // share that this transaction holds, and a sweep creates a missing cursor before it
                // removes messages that the group has not read.
                Some(_) if !tally::is_as_seen(self.queue.id, under)? => {
                    cursor::moved_on()?;
                    return Ok(PartitionResult::MovedOn);
                }
                Some(located) => located,
                None => {
                    cursor::give_back_first_reads(self.queue.id, self.group.id);
                    return Ok(PartitionResult::Locked);
                }
            },
        };
        self.take(&located, pop, &mut segments, &log, under)
    }

    /// Write the next state of a cursor, or of a claim, that is locked, and deliver what it gives.
    fn take(
        &mut self,
        located: &Located,
        pop: Pop<'_>,
        segments: &mut HashMap<u64, Stored>,
        log: &Log<'_>,
        under: &ActiveSnapshot,
    ) -> Result<PartitionResult> {
        let lease = self.lease(located.id);
        let Some(popped) = pop.finish(lease, self.now) else { return Ok(PartitionResult::Nothing) };
        self.write(located, &popped);
        self.has_written = true;
        if popped.taken.is_empty() {
            return Ok(PartitionResult::Nothing);
        }
        fetch_missing(segments, &popped.taken, log, under);
        self.covered.push((located.id, located.message));
        self.partitions.insert(located.partition.clone());
        self.deliver(&located.partition, &popped.taken, segments, lease);
        Ok(PartitionResult::Took)
    }

    /// The lease for what is taken from this cursor, or under this claim; None with `auto_ack`.
    fn lease(&mut self, cursor: u64) -> Option<(LeaseId, i64)> {
        if self.wanted.auto_ack {
            return None;
        }
        let duration = self.wanted.lease_time.unwrap_or(self.queue.options.lease_time());
        let covers_one = match self.is_ordered() {
            true => self.wanted.partitions == 1,
            false => self.wanted.batch == 1,
        };
        let id = if covers_one {
            LeaseId::new(self.now, Handle::Cursor(cursor), random())
        } else {
            let now = self.now;
            let (_, id) = *self.set.get_or_insert_with(|| {
                let set = lease_set::draw_id();
                (set, LeaseId::new(now, Handle::Set(set), random()))
            });
            id
        };
        Some((id, duration))
    }

    fn write(&self, located: &Located, popped: &Popped) {
        let notice = Notice::of(located, &popped.cursor, self.queue.identity);
        cursor::append(located, &popped.cursor, notice);
        for (lease, trace) in &popped.ended {
            receipt::insert(located, *lease, trace, self.now);
        }
        if self.queue.options.on_exhausted() == DEAD_LETTER {
            for dead in &popped.exhausted {
                let error = format!("delivered {} times, which is max_deliveries", dead.deliveries);
                dead_letter::bury(located.group, &located.partition, *dead, Some(&error), self.now);
            }
        }
    }

    fn deliver(
        &mut self,
        partition: &str,
        messages: &Spans,
        segments: &HashMap<u64, Stored>,
        lease: Option<(LeaseId, i64)>,
    ) {
        let partition: Rc<str> = partition.into();
        for span in messages.iter() {
            let Some(stored) = segments.get(&span.segment) else { continue };
            let created_at = stored.created_at();
            let contents = self.results.allocate(|| stored.contents().copied());
            for message in span.messages() {
                self.deliveries.push(Delivery {
                    partition: partition.clone(),
                    message,
                    contents,
                    created_at,
                    attempt: span.deliveries,
                    lease: lease.map(|(id, duration)| (id, self.now.saturating_add(duration))),
                });
            }
        }
    }
}

/// Segments read at first, when nothing is known of how full they are.
const FIRST_SEGMENTS: usize = 8;

/// Read the log until the pop has what it wants, or all there is. And the first segment that is not
/// to be delivered yet, with its transaction, if the reading ended there.
fn read_log(
    pop: &mut Pop<'_>,
    log: &Log<'_>,
    taken: &SeenSnapshot,
    under: &ActiveSnapshot,
) -> (HashMap<u64, Stored>, Option<(u64, u64)>) {
    let mut first_held_back = None;
    let mut segments = HashMap::new();
    let mut limit = FIRST_SEGMENTS;
    while let Some(read) = pop.next_read() {
        let limit_now = limit.min(pop.missing());
        let LogPage { stored, held_back } =
            log.read(&read, limit_now, &taken.snapshot.holes, under);
        let found: Vec<_> = stored.iter().map(Stored::found).collect();
        pop.supply(&read, &found, held_back.is_none() && stored.len() < limit_now);
        if held_back.is_some() {
            first_held_back = held_back;
            pop.stop();
        }
        segments.extend(stored.into_iter().map(|segment| (segment.id(), segment)));
        limit *= 4;
        pgrx::check_for_interrupts!();
    }
    (segments, first_held_back)
}

/// Segments of messages that came back: the log was not read for them.
fn fetch_missing(
    segments: &mut HashMap<u64, Stored>,
    taken: &Spans,
    log: &Log<'_>,
    under: &ActiveSnapshot,
) {
    let missing: Spans =
        taken.iter().filter(|span| !segments.contains_key(&span.segment)).collect();
    if !missing.is_empty() {
        let stored = log.segments(&missing, under);
        segments.extend(stored.into_iter().map(|segment| (segment.id(), segment)));
    }
}
