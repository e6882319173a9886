//! How a consumer group comes to be, and goes.
//!
//! `queen_subscribe` and the first pop of a group register it. What the group will read is fixed by
//! one snapshot, when the registration is prepared; a pop may write it later, when there is
//! something to deliver. Only [`locks::registration`](crate::store::locks::registration) of the
//! name is taken, by `group::register`.
//!
//! `queen_unsubscribe` removes a group, with its row, its search and its cursors locked.

use queen_engine::cursor::Start;
use queen_engine::discovery::{Discovery, Stream};
use queen_engine::rights::Privilege;

use crate::broker::group::beginning::{Beginning, LogEnd, Mode};
use crate::broker::group::revoke::{locate, revoke_leases};
use crate::broker::hold::attempts::hold_in_attempts;
use crate::broker::hold::{delete_discovery, hold_cursors, hold_group_rows, share_queue_and_group};
use crate::broker::latest;
use crate::broker::lookup::{self, ForPop};
use crate::broker::{restore, rights};
use crate::error::{Error, Result};
use crate::pg::clock::{self, Moment};
use crate::pg::snapshot::ActiveSnapshot;
use crate::settings;
use crate::store::group::{self, Group, NewGroup, Patience, QUEUE_MODE};
use crate::store::identity::Identity;
use crate::store::queue::{self, Queue};
use crate::store::segment::{self, has_messages, news};
use crate::store::{discovery, seen_snapshot, tally};
use crate::wait::waiters::{self, PartitionHash, Topic};

/// `queen_subscribe`: register `group` on `queue`, which need not exist. `ordering` is a checked
/// name, or None: as the queue has it. False if the group exists, which then stays as it is. Waits
/// for a transaction that is registering a group of this name. Error 42704 for an unknown queue
/// when `queen_mq.auto_create` is off, 22023 for an ordering that does not go with the queue's
/// `delivery`.
pub fn subscribe(queue: &str, group: &str, mode: Mode, ordering: Option<&str>) -> Result<bool> {
    rights::require(Privilege::Pop, queue)?;
    let (found, existing) = lookup::queue_and_group(queue, group)?;
    if found.is_none() && !settings::auto_create() {
        return Err(Error::no_such_queue(queue));
    }
    if existing.is_some() {
        return Ok(false);
    }
    latest::check_group(queue, ordering)?;
    let identity = match &found {
        Some(queue) => queue.identity,
        None => restore::current()?,
    };
    let new = Registration::prepare(queue, group, mode, identity)?;
    Ok(new.ordered(ordering).write(queue, group, Patience::Wait)?.is_some())
}

/// `queen_unsubscribe`: remove the group. The holder of one of its leases has lost it. False if
/// there is no such group. Pops of the group that wait register it anew, as of the moment at which
/// they find it gone: the commit wakes them.
pub fn unsubscribe(queue: &str, group: &str) -> Result<bool> {
    rights::require(Privilege::Manage, queue)?;
    let (found, Some(group)) = share_queue_and_group(queue, group, true)? else {
        return Ok(false);
    };
    let locked = hold_in_attempts(found.as_ref().map_or("", |queue| &queue.name), |attempt| {
        hold_group_rows(attempt, vec![group.id])?;
        delete_discovery(attempt, &group)?;
        hold_cursors(attempt, &[group.id])
    })?;
    revoke_leases(found.as_ref(), &locate(&group, locked)?);
    group::forget(group.id);
    waiters::touch_all(Topic::group(group.id));
    Ok(true)
}

/// A group about to be registered: what it will read was fixed when this was made.
#[derive(Clone, Debug)]
pub struct Registration {
    at: Moment,
    start: Start,
    initial: i64,
    baseline: Option<i64>,
    /// None: as the queue has it.
    ordering: Option<String>,
    /// The queue's count that the baseline was taken from: its queue and revision.
    counted: Option<(i64, i64)>,
    discovery: Discovery,
    /// There was something for the group when this was made.
    has_messages: bool,
    /// There were messages when this was made, of which the group gets none.
    pub passes_by_messages: bool,
    /// What has come since.
    since: Stream<(String, u64)>,
}

impl Registration {
    /// Prepare to register `group` on `queue`, which need not exist: fix what it will read, and
    /// write nothing. Queue mode reads everything.
    pub fn prepare(queue: &str, group: &str, mode: Mode, identity: Identity) -> Result<Self> {
        let mode = if group == QUEUE_MODE { Mode::All } else { mode };
        ActiveSnapshot::new_snapshot(|under| {
            // By the snapshot that fixes the rest. The caller may have found no queue, and this
            // snapshot may show the first messages of one.
            let id = queue::find(queue, under).map(|stored| stored.id());
            let end = LogEnd::look(identity, under);
            let since = Stream::starting_at(&end.seen.snapshot, end.seen.xmax);
            let beginning = Beginning::of(mode, id, &end, under);
            let (has_some, baseline, counted) = match (beginning.messages, id) {
                (Some(messages), _) => (messages > 0, None, None),
                (None, None) => (false, Some(0), None),
                (None, Some(id)) => {
                    let (revision, tally) = tally::newest(id, under)?;
                    let has_any = segment::oldest(id, &tally.floor, under).is_some();
                    (has_any, Some(tally.removed_messages as i64), Some((id, revision)))
                }
            };
            let passes_by_messages =
                mode == Mode::New && id.is_some_and(|id| has_messages(id, under));
            Ok(Self {
                at: clock::now(),
                start: beginning.start,
                initial: beginning.messages.unwrap_or(0),
                baseline,
                ordering: None,
                counted,
                discovery: beginning.discovery,
                has_messages: has_some,
                passes_by_messages,
                since,
            })
        })
    }

    /// Give the group an ordering of its own.
    pub fn ordered(self, ordering: Option<&str>) -> Self {
        Self { ordering: ordering.map(str::to_owned), ..self }
    }

    /// Whether there is anything for the group by now.
    pub fn has_news(&self, queue: Option<&Queue>, identity: Identity) -> Result<bool> {
        let Some(queue) = queue else { return Ok(false) };
        if self.has_messages {
            return Ok(true);
        }
        ActiveSnapshot::new_snapshot(|under| {
            let seen = seen_snapshot::describe(under, identity);
            let stream = &self.since;
            let late = stream.finished(&seen.snapshot);
            let is_late =
                |(xid, key): &(u64, _)| !news(queue.id, *xid, key, true, 1, under).is_empty();
            Ok(late.iter().any(is_late)
                || !news(queue.id, stream.xid, &stream.key, false, 1, under).is_empty())
        })
    }

    /// Write the registration, for a pop that has found no group. Where another transaction is
    /// registering the group, or has done so since, the pop looks up what there is. Never waits.
    pub fn write_into(self, found: &mut ForPop, queue: &str, name: &str) -> Result<()> {
        match self.write(queue, name, Patience::PassBy)? {
            Some((group, discovery)) => {
                (found.group, found.discovery) = (Some(group), discovery);
            }
            None => *found = lookup::for_pop(queue, name)?,
        }
        Ok(())
    }

    /// Write the registration, and return the group with the state of its search. None if another
    /// transaction has registered this name. Without patience, also None if another transaction is
    /// registering it and has not ended.
    pub fn write(
        self,
        queue: &str,
        name: &str,
        patience: Patience,
    ) -> Result<Option<(Group, (i64, Discovery))>> {
        let Self { at: now, start, initial, baseline, ordering, mut discovery, .. } = self;
        // A transaction that removes messages does not see the group before this commits. With the
        // tally lock on the count that the baseline comes from, no message has been removed since,
        // and none will be until this transaction ends. Without it the baseline stays open, and a
        // sweep counts what is for the group.
        let is_counted = match self.counted {
            Some((queue, revision)) => tally::try_lead(queue, revision)?,
            None => true,
        };
        let baseline = baseline.filter(|_| is_counted);
        let new = NewGroup { now, start, initial, baseline, ordering };
        let Some(group) = group::register(queue, name, new, patience) else {
            return Ok(None);
        };
        // Sessions that wait for the group know it by its name alone. After the commit they have to
        // learn of its id, and after a rollback one of them has to register it.
        waiters::touch_all(Topic::queue(queue));
        waiters::touch_if_undone(Topic::queue(queue), PartitionHash::ANY);
        let revision = discovery::append(group.id, 0, &mut discovery);
        Ok(Some((group, (revision, discovery))))
    }
}
