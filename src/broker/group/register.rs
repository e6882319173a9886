//! How a consumer group comes to be.

use queen_engine::cursor::Start;
use queen_engine::discovery::{Discovery, Stream};

use crate::broker::group::beginning::{Beginning, Mode};
use crate::broker::group::revoke::{locate, revoke};
use crate::broker::hold::attempt::hold_in_attempts;
use crate::broker::hold::{delete_discovery, hold_cursors, hold_group_rows};
use crate::broker::lookup::{self, ForPop};
use crate::error::Result;
use crate::pg::clock::{self, Moment};
use crate::pg::spi::ActiveSnapshot;
use crate::store::discovery;
use crate::store::group::{self, Group, NewGroup, Patience, QUEUE_MODE};
use crate::store::identity::Identity;
use crate::store::queue::Queue;
use crate::store::seen_snapshot;
use crate::store::segment::{self, news};
use crate::store::tally;

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
    /// What has come since.
    since: Stream<(String, u64)>,
}

impl Registration {
    /// Prepare to register `group`. Queue mode reads everything.
    pub fn prepare(
        group: &str,
        queue: Option<&Queue>,
        mode: Mode,
        identity: Identity,
    ) -> Result<Self> {
        let mode = if group == QUEUE_MODE { Mode::All } else { mode };
        ActiveSnapshot::new_snapshot(|under| {
            // The id before the transactions: one drawn up to here belongs to a transaction that
            // `describe` counts among the holes.
            let last_drawn = segment::last_drawn_id(under);
            let taken = seen_snapshot::describe(under, identity);
            let since = Stream::starting_at(&taken.snapshot, taken.xmax);
            let id = queue.map(|queue| queue.id);
            let beginning = Beginning::of(mode, id, last_drawn, &taken, under);
            let (has_messages, baseline, counted) = match (beginning.messages, id) {
                (Some(messages), _) => (messages > 0, None, None),
                (None, None) => (false, Some(0), None),
                (None, Some(id)) => {
                    let has_any = !news(id, 0, &Default::default(), false, 1, under).is_empty();
                    let (revision, tally) = tally::newest(id, under)?;
                    (has_any, Some(tally.removed_messages as i64), Some((id, revision)))
                }
            };
            Ok(Self {
                at: clock::now(),
                start: beginning.start,
                initial: beginning.messages.unwrap_or(0),
                baseline,
                ordering: None,
                counted,
                discovery: beginning.discovery,
                has_messages,
                since,
            })
        })
    }

    /// The same, with an ordering of its own.
    pub fn ordered(self, ordering: Option<&str>) -> Self {
        Self { ordering: ordering.map(str::to_owned), ..self }
    }

    /// Whether there is anything for the group.
    pub fn has_news(&self, queue: Option<&Queue>, identity: Identity) -> Result<bool> {
        let Some(queue) = queue else { return Ok(false) };
        if self.has_messages {
            return Ok(true);
        }
        ActiveSnapshot::new_snapshot(|under| {
            let taken = seen_snapshot::describe(under, identity);
            let stream = &self.since;
            let late = stream.finished(&taken.snapshot);
            let is_late =
                |(xid, key): &(u64, _)| !news(queue.id, *xid, key, true, 1, under).is_empty();
            Ok(late.iter().any(is_late)
                || !news(queue.id, stream.xid, &stream.key, false, 1, under).is_empty())
        })
    }

    /// Write the registration, for a pop that has found none; unless somebody else is at it.
    pub fn write_into(self, found: &mut ForPop, queue: &str, name: &str) -> Result<()> {
        match self.write(queue, name, Patience::PassBy)? {
            Some((group, discovery)) => {
                (found.group, found.discovery) = (Some(group), discovery);
            }
            None => *found = lookup::for_pop(queue, name)?,
        }
        Ok(())
    }

    /// Write the registration. None where somebody else registers the same group.
    pub fn write(
        self,
        queue: &str,
        name: &str,
        patience: Patience,
    ) -> Result<Option<(Group, (i64, Discovery))>> {
        let Self { at: now, start, initial, baseline, ordering, mut discovery, .. } = self;
        // Whoever removes messages does not see the group before this commits. Either nobody has
        // since, and nobody will until then; or what is for the group is counted by a sweep.
        let holds = match self.counted {
            Some((queue, revision)) => tally::try_lead(queue, revision)?,
            None => true,
        };
        let baseline = baseline.filter(|_| holds);
        let new = NewGroup { now, start, initial, baseline, ordering };
        let Some(group) = group::register(queue, name, new, patience) else {
            return Ok(None);
        };
        let revision = discovery::append(group.id, 0, &mut discovery);
        Ok(Some((group, (revision, discovery))))
    }
}

/// Remove the group. Whoever holds a lease of it has lost it.
pub fn unsubscribe(queue: Option<&Queue>, group: &Group) -> Result<()> {
    let locked = hold_in_attempts(queue.map_or("", |queue| &queue.name), |attempt| {
        hold_group_rows(attempt, vec![group.id])?;
        delete_discovery(attempt, group)?;
        hold_cursors(attempt, &[group.id])
    })?;
    revoke(queue, &locate(group, locked)?);
    group::forget(group.id);
    Ok(())
}
