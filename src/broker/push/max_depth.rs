//! The option `max_depth`: a push is refused when about so many messages wait for the slowest
//! group.
//!
//! Every push to a queue asks [`admit`]. To count what waits, a session looks at the partitions of
//! every group, so it does not count for every push. It uses its last count for twenty times as
//! long as counting took, and for longer where the limit is far away. To count, it tries the lock
//! `tally` of the queue, and keeps the result for others if it gets it.

use crate::broker::push::message::Message;
use crate::broker::stats::count::measure_depth;
use crate::error::{Code, Error, Result};
use crate::pg::clock::{self, Moment, SECOND};
use crate::pg::session_cache::SessionCache;
use crate::pg::snapshot::ActiveSnapshot;
use crate::store::admission;
use crate::store::queue::Queue;

/// A count that the session remembers.
#[derive(Clone, Copy)]
struct KnownDepth {
    depth: i64,
    counted_at: Moment,
    /// Microseconds that it took to count.
    cost: i64,
    /// Messages that this session has pushed since.
    pushed: i64,
}

/// For how long a count is used at least.
const SHORT: i64 = SECOND / 20;
/// For how long it is used at least while this session has pushed less than a quarter of the room
/// that it found.
const LONG: i64 = SECOND / 2;
/// Queues whose depth a session remembers.
const REMEMBERED: usize = 256;

thread_local! {
    static KNOWN: SessionCache<i64, KnownDepth> = SessionCache::of(REMEMBERED);
}

/// Let messages of one partition in, or refuse them with QN020. A full queue still lets in a push
/// of which every message is a duplicate, since such a push stores nothing.
pub fn admit(queue: &Queue, partition: &str, messages: &[&Message]) -> Result<()> {
    let Some(max) = queue.options.max_depth else { return Ok(()) };
    let now = clock::now();
    let remembered = KNOWN.with(|known| known.take(&queue.id));
    let mut known = match remembered.filter(|known| known.may_be_used(now, max)) {
        Some(known) => known,
        None => count(queue, now)?,
    };
    // Where the newest message of a partition alone counts, most pushes add nothing to what waits.
    if known.pushed > 0 && known.depth + known.pushed >= max && queue.options.is_latest() {
        match known.is_worth_a_count(now) {
            true => known = count(queue, now)?,
            false => known.pushed = 0,
        }
    }
    let depth = known.depth + known.pushed;
    let is_full = depth >= max;
    known.pushed += if is_full { 0 } else { messages.len() as i64 };
    KNOWN.with(|all| all.keep(queue.id, known));
    match is_full && !are_duplicates(queue, partition, messages, now)? {
        false => Ok(()),
        true => Err(Error::new(Code::QueueFull, format!("queue \"{}\" is full", queue.name))
            .detail(format!(
                "About {depth} messages wait for its slowest group; max_depth is {max}."
            ))
            .hint("Push again when consumers have caught up, or raise max_depth.")),
    }
}

/// Count anew for the next push of this session to the queue.
pub fn forget(queue: i64) {
    KNOWN.with(|known| known.take(&queue));
}

/// Whether the queue remembers the transaction_id of every message.
fn are_duplicates(
    queue: &Queue,
    partition: &str,
    messages: &[&Message],
    now: Moment,
) -> Result<bool> {
    let since = now.saturating_sub(queue.options.dedup_window());
    for message in messages {
        let Some(id) = &message.transaction_id else { return Ok(false) };
        if !admission::is_remembered(queue.id, partition, id, since)? {
            return Ok(false);
        }
    }
    Ok(true)
}

impl KnownDepth {
    /// Whether counting anew would take no more than a twentieth of the time since the last count.
    fn is_worth_a_count(&self, now: Moment) -> bool {
        !(0..20 * self.cost).contains(&(now - self.counted_at))
    }

    fn may_be_used(&self, now: Moment, max: i64) -> bool {
        let age = now - self.counted_at;
        let span = 20 * self.cost;
        let room = max - self.depth;
        let is_far = self.pushed < room / 4;
        (0..span.max(SHORT)).contains(&age) || (is_far && (0..span.max(LONG)).contains(&age))
    }
}

fn count(queue: &Queue, now: Moment) -> Result<KnownDepth> {
    let depth = ActiveSnapshot::new_snapshot(|under| measure_depth(queue, under))?;
    Ok(KnownDepth { depth, counted_at: now, cost: clock::now() - now, pushed: 0 })
}
