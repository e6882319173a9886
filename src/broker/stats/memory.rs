//! What a session remembers of the figures, so that it need not find out again what has not
//! changed.
//!
//! All that it remembers is as of one snapshot. A snapshot that shows the same transactions shows
//! the same rows: then nothing is read. A later one shows more: then the log is read on from where
//! the last look has come, and of the tables of cursors, claims and states the pages that have
//! changed. That is for *large* groups alone: of a small one, reading everything by key is cheaper.
//!
//! What is remembered is a cache. It is not used, and not changed, by a look under a snapshot that
//! shows less than the last one, or one that shows writes of the session's own transaction, or one
//! of a standby: these read everything. In SERIALIZABLE a session remembers nothing, because
//! PostgreSQL has to hear of all that such a transaction reads.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use queen_engine::cursor::Cursor;

use super::count::pending;
use super::log_standing::{LogChange, LogStanding};
use super::tracked::{TrackedGroup, UnitSums};
use crate::error::Result;
use crate::pg::snapshot::{ActiveSnapshot, is_serializable};
use crate::pg::{allocator, catalogue};
use crate::store::claim::ClaimRow;
use crate::store::group::Group;
use crate::store::group_pages::{self, GroupPages, GroupVisitor, StateName};
use crate::store::queue::Queue;
use crate::store::shown::Shown;
use crate::store::{cursor_or_claim, dead_letter};

/// A group with more cursors, claims or partitions than this is large.
const SMALL: usize = 256;
/// How many pages, rows, cursors, claims and partitions are remembered at most. A partition that
/// one group has read counts about six times, and takes about 400 bytes.
const MOST: usize = 2_000_000;
/// What was not asked for in so many looks is forgotten.
const LONG: u64 = 64;

thread_local! {
    /// Of committed transactions, as of the latest look.
    static KEPT: RefCell<Option<StatsMemory>> = const { RefCell::new(None) };
    /// Of the last look that could not use that: for further calls under the same snapshot.
    static PASSING: RefCell<Option<StatsMemory>> = const { RefCell::new(None) };
}

/// What is known as of a snapshot.
pub struct StatsMemory {
    shown: Shown,
    /// The table of queues: another one if the extension was dropped and created again.
    queues: u32,
    /// Whether anything may be remembered.
    may_follow: bool,
    /// Number of the present look; each snapshot has one.
    look: u64,
    logs: HashMap<i64, Dated<LogStanding>>,
    large: LargeGroups,
    pages: GroupPages,
    /// The look in which the pages were read last.
    pages_read: u64,
    sums: HashMap<i64, Rc<GroupSums>>,
}

/// Something, with the look in which it was brought up to date last.
struct Dated<T> {
    look: u64,
    value: T,
}

/// The groups that are followed page by page, by id, each with its queue.
#[derive(Default)]
struct LargeGroups(HashMap<i64, Dated<(i64, TrackedGroup)>>);

/// The figures of a group that do not depend on the clock.
pub struct GroupSums {
    pub pending: i64,
    pub dead_letters: i64,
    pub units: UnitSums,
}

/// Run `body` with what the session knows, as of `under`.
pub fn look<T>(
    under: &ActiveSnapshot,
    body: impl FnOnce(&mut StatsMemory) -> Result<T>,
) -> Result<T> {
    let (shown, queues) = (Shown::by(under), catalogue::oid_of(c"queue").to_u32());
    if is_serializable() {
        return body(&mut StatsMemory::new(shown, queues, false));
    }
    let goes_on = |kept: &StatsMemory| shown == kept.shown || shown.shows_all_of(&kept.shown);
    let is_next = KEPT.with_borrow(|kept| kept.as_ref().is_none_or(goes_on));
    let place = if shown.is_plain() && is_next { &KEPT } else { &PASSING };
    // What an error leaves half done is forgotten.
    let known = place.take().filter(|known| known.queues == queues);
    let mut memory = match known {
        Some(known) if known.shown == shown => known,
        Some(known) if shown.is_plain() && is_next => known.brought_to(shown),
        _ => StatsMemory::new(shown, queues, true),
    };
    let value = body(&mut memory)?;
    if memory.size() <= MOST && !allocator::is_scarce() {
        place.set(Some(memory));
    }
    Ok(value)
}

impl StatsMemory {
    fn new(shown: Shown, queues: u32, may_follow: bool) -> Self {
        Self {
            shown,
            queues,
            may_follow,
            look: 1,
            logs: HashMap::new(),
            large: LargeGroups::default(),
            pages: GroupPages::unread(),
            pages_read: 0,
            sums: HashMap::new(),
        }
    }

    /// For a look under a later snapshot.
    fn brought_to(mut self, shown: Shown) -> Self {
        self.shown = shown;
        self.look += 1;
        self.sums.clear();
        let long_ago = self.look.saturating_sub(LONG);
        self.logs.retain(|_, log| log.look >= long_ago);
        let followed = self.large.0.len();
        self.large.0.retain(|_, group| group.look >= long_ago);
        if self.large.0.len() < followed {
            // The pages remember rows of what was forgotten, and would not tell of them again.
            self.forget_pages();
        }
        PASSING.take();
        self
    }

    /// All large groups are read anew.
    fn forget_pages(&mut self) {
        self.pages = GroupPages::unread();
        self.pages_read = 0;
        self.large.0.values_mut().for_each(|group| group.value.1.forget());
    }

    fn size(&self) -> usize {
        let partitions: usize = self.logs.values().map(|log| log.value.last.len()).sum();
        let tracked = self.large.0.values().map(|group| group.value.1.size());
        partitions + tracked.sum::<usize>() + self.pages.size()
    }

    /// The log of a queue.
    pub fn log(&mut self, queue: &Queue, under: &ActiveSnapshot) -> Result<&LogStanding> {
        let look = self.look;
        let is_known = match self.logs.get_mut(&queue.id) {
            Some(log) if log.look == look => true,
            Some(log) => {
                log.look = look;
                let change = log.value.bring_forward(queue, under)?;
                self.large.note_change(queue.id, change);
                true
            }
            None => false,
        };
        if !is_known {
            let value = LogStanding::read(queue, under)?;
            self.large.note_change(queue.id, LogChange::ReadAnew);
            self.logs.insert(queue.id, Dated { look, value });
        }
        Ok(&self.logs[&queue.id].value)
    }

    /// The sums over a group of the queue.
    pub fn sums(
        &mut self,
        queue: &Queue,
        group: &Group,
        under: &ActiveSnapshot,
    ) -> Result<Rc<GroupSums>> {
        if let Some(known) = self.sums.get(&group.id) {
            return Ok(Rc::clone(known));
        }
        self.log(queue, under)?;
        let is_large = self.follow(queue, group, under)? && self.read_pages(under)?;
        let log = &self.logs[&queue.id].value;
        let is_latest = queue.options.is_latest() && group.is_ordered(&queue.options);
        let sums = |of: &TrackedGroup| (of.sums(), is_latest.then(|| of.newest_pending(log)));
        let (units, newest) = match self.large.0.get_mut(&group.id).filter(|_| is_large) {
            Some(Dated { look, value: (_, tracked) }) => {
                *look = self.look;
                tracked.refresh(queue, group, log, under)?;
                sums(tracked)
            }
            None => {
                let all = cursor_or_claim::of_group(group.id, &group.start, under)?;
                let mut tracked = TrackedGroup::of(group, all);
                tracked.refresh(queue, group, log, under)?;
                sums(&tracked)
            }
        };
        let pending = match newest {
            Some(newest) => newest,
            None => pending(&log.count, group, units.settled, &log.replays, under)?,
        };
        let dead_letters = dead_letter::count(&queue.name, &group.name, under);
        let sums = Rc::new(GroupSums { pending, dead_letters, units });
        self.sums.insert(group.id, Rc::clone(&sums));
        Ok(sums)
    }

    /// Whether the group is followed; from now on, if it has become large. It pays to read all
    /// pages where more than one row in some hundred is of the group.
    fn follow(&mut self, queue: &Queue, group: &Group, under: &ActiveSnapshot) -> Result<bool> {
        if self.large.0.contains_key(&group.id) || !self.may_follow {
            return Ok(self.may_follow);
        }
        let small = SMALL.max(group_pages::count() / 2);
        let partitions = self.logs[&queue.id].value.last.len();
        let is_large = partitions > small || cursor_or_claim::are_more(group.id, small, under);
        if !is_large || !group_pages::are_watchable() {
            return Ok(false);
        }
        let value = (queue.id, TrackedGroup::unread(group));
        self.large.0.insert(group.id, Dated { look: self.look, value });
        self.pages.read_all_again();
        self.pages_read = 0;
        Ok(true)
    }

    /// Read the pages that have changed, once in a look. False: the tables cannot be read so.
    fn read_pages(&mut self, under: &ActiveSnapshot) -> Result<bool> {
        if self.pages_read == self.look {
            return Ok(true);
        }
        if !self.pages.read(&mut self.large, under)? {
            // A table was rewritten, and may carry no stamps now.
            self.forget_pages();
            if !group_pages::are_watchable() || !self.pages.read(&mut self.large, under)? {
                self.large.0.clear();
                self.forget_pages();
                return Ok(false);
            }
        }
        self.large.0.values_mut().for_each(|group| group.value.1.note_read());
        self.pages_read = self.look;
        Ok(true)
    }
}

impl LargeGroups {
    fn change(&mut self, group: i64, change: impl FnOnce(&mut TrackedGroup)) {
        if let Some(Dated { value: (_, tracked), .. }) = self.0.get_mut(&group) {
            change(tracked);
        }
    }

    fn note_change(&mut self, queue: i64, change: LogChange) {
        let of_queue = self.0.values_mut().filter(|group| group.value.0 == queue);
        for Dated { value: (_, tracked), .. } in of_queue {
            match &change {
                LogChange::ReadAnew => tracked.note_new_log(),
                LogChange::Some(arrived, removed) => {
                    arrived.iter().for_each(|partition| tracked.note_arrival(partition));
                    removed.iter().for_each(|upto| tracked.note_removal(*upto));
                }
            }
        }
    }
}

impl GroupVisitor for LargeGroups {
    fn follows(&self, group: i64) -> bool {
        self.0.contains_key(&group)
    }

    fn cursor_came(&mut self, id: u64, place: u64, group: i64, partition: String) {
        self.change(group, |tracked| tracked.add_cursor(id, place, partition));
    }

    fn claim_came(&mut self, claim: ClaimRow) {
        self.change(claim.group, |tracked| tracked.add_claim(claim));
    }

    fn went(&mut self, group: i64, id: u64, place: u64) {
        self.change(group, |tracked| tracked.remove(id, place));
    }

    fn state_came(&mut self, state: StateName, read: &dyn Fn() -> Result<Cursor>) -> Result<()> {
        let mut result = Ok(());
        self.change(state.group, |tracked| result = tracked.add_state(state, read));
        result
    }

    fn state_went(&mut self, state: StateName) {
        self.change(state.group, |tracked| tracked.remove_state(state));
    }
}
