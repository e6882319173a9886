//! `max_depth`: a push is refused when about so many messages wait for the slowest group.
//!
//! What waits is counted over the partitions of every group, so it is not counted for every push:
//! a session goes by what it knows for as long as counting took twenty times over, and longer where
//! the limit is far away.

use crate::broker::stats::count;
use crate::error::{Code, Error, Result};
use crate::pg::clock::{self, Moment, SECOND};
use crate::pg::session_cache::SessionCache;
use crate::pg::spi::ActiveSnapshot;
use crate::store::queue::Queue;

#[derive(Clone, Copy)]
struct KnownDepth {
    depth: i64,
    at: Moment,
    cost: i64,
    /// Pushed by this session since.
    pushed: i64,
}

const SHORT: i64 = SECOND / 20;
const LONG: i64 = SECOND / 2;
/// Queues whose depth a session remembers.
const REMEMBERED: usize = 256;

thread_local! {
    static KNOWN: SessionCache<i64, KnownDepth> = SessionCache::of(REMEMBERED);
}

/// Let `messages` in, or refuse: QN020.
pub fn admit(queue: &Queue, messages: usize) -> Result<()> {
    let Some(max) = queue.options.max_depth else { return Ok(()) };
    let now = clock::now();
    let remembered = KNOWN.with(|known| known.take(&queue.id));
    let mut known = match remembered.filter(|known| known.holds(now, max)) {
        Some(known) => known,
        None => measure(queue, now)?,
    };
    let depth = known.depth + known.pushed;
    let is_full = depth >= max;
    known.pushed += if is_full { 0 } else { messages as i64 };
    KNOWN.with(|all| all.keep(queue.id, known));
    match is_full {
        false => Ok(()),
        true => Err(Error::new(Code::QueueFull, format!("queue \"{}\" is full", queue.name))
            .detail(format!(
                "About {depth} messages wait for its slowest group; max_depth is {max}."
            ))
            .hint("Push again when consumers have caught up, or raise max_depth.")),
    }
}

impl KnownDepth {
    fn holds(&self, now: Moment, max: i64) -> bool {
        let age = now - self.at;
        let span = 20 * self.cost;
        let room = max - self.depth;
        let is_far = self.pushed < room / 4;
        (0..span.max(SHORT)).contains(&age) || (is_far && (0..span.max(LONG)).contains(&age))
    }
}

fn measure(queue: &Queue, now: Moment) -> Result<KnownDepth> {
    let depth = ActiveSnapshot::new_snapshot(|under| count::measure_depth(queue, under))?;
    Ok(KnownDepth { depth, at: now, cost: clock::now() - now, pushed: 0 })
}
