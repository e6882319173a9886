//! Partitions that have just been pushed to, as hints for pops. The list is in shared memory, so it
//! is there only with the library preloaded. Without, nothing here does anything.
//!
//! Where many consumers keep up with a queue, each of them would search through all that has
//! happened since its last pop, only to find that another one has been there. So a push leaves the
//! name of its partition here when it has committed, and each group is given each name once. A pop
//! tries such a partition first, without a search.
//!
//! A hint is no promise: the message may have been popped, or its partition be leased, and hints
//! are lost when there are many, when the transaction was prepared, or when the session that got
//! one rolls back. What is missed is found by the search, which every pop makes that gets nothing
//! from hints, and some pops make first: one in 64, and one in a tenth of a second. A group with a
//! backlog gets no hints for a while, so that its pops go on with what has waited for longest.
//! (`broker::pop` decides, but for the tenth of a second.)

use super::waiters::Topic;
use crate::pg::clock::{Moment, SECOND};
use crate::pg::shared::{Shared, plain};

/// Queues that have hints, groups that get some, and hints that a queue keeps.
const QUEUES: usize = 32;
const GROUPS: usize = 256;
const HINTS: usize = 128;
/// One pop of a group gets no hints after this time, so that it searches: messages that come back,
/// or that no hint is about, do not wait for as long as new ones keep coming.
const SEARCHES: i64 = SECOND / 10;
/// For how long a group with a backlog gets no hints.
const PAUSE: i64 = SECOND;
/// Bytes of the longest name of a partition.
const NAME: usize = 255;

#[derive(Clone, Copy)]
struct FreshPartition {
    length: u8,
    name: [u8; NAME],
}

/// The last hints of a queue: that of number n is at n modulo [`HINTS`].
#[derive(Clone, Copy)]
struct Ring {
    queue: u64,
    /// The number of the next hint.
    head: u64,
    /// Counts uses of the list, to find the ring that has not been used for longest.
    used_at: u64,
    hints: [FreshPartition; HINTS],
}

/// A group, and the first hint that it has not been given.
#[derive(Clone, Copy)]
struct GroupPlace {
    group: u64,
    queue: u64,
    next: u64,
    used_at: u64,
    /// No hints before this moment: the group has a backlog.
    paused_until: Moment,
    /// When a pop of the group last went without hints because of [`SEARCHES`].
    searched_at: Moment,
}

#[derive(Clone, Copy)]
pub struct Fresh {
    uses: u64,
    rings: [Ring; QUEUES],
    readers: [GroupPlace; GROUPS],
}

plain!(Fresh { uses, rings, readers });
plain!(Ring { queue, head, used_at, hints });
plain!(FreshPartition { length, name });
plain!(GroupPlace { group, queue, next, used_at, paused_until, searched_at });

const NO_PARTITION: FreshPartition = FreshPartition { length: 0, name: [0; NAME] };
const NO_RING: Ring = Ring { queue: 0, head: 0, used_at: 0, hints: [NO_PARTITION; HINTS] };
const NO_PLACE: GroupPlace =
    GroupPlace { group: 0, queue: 0, next: 0, used_at: 0, paused_until: 0, searched_at: 0 };

static FRESH: Shared<Fresh> = Shared::new(c"queen_mq fresh partitions", || Fresh {
    uses: 0,
    rings: [NO_RING; QUEUES],
    readers: [NO_PLACE; GROUPS],
});

/// Called in the postmaster, while it preloads the library: have shared memory for the hints.
pub fn set_up() {
    FRESH.set_up();
}

fn is_shared() -> bool {
    FRESH.is_there()
}

/// A committed transaction has pushed to this partition of the queue. Only queues whose groups have
/// asked for hints have a ring. Cannot fail.
pub(super) fn add(queue: Topic, partition: &str) {
    if !is_shared() || partition.len() > NAME {
        return;
    }
    let mut fresh = FRESH.exclusive();
    let Some(ring) = fresh.rings.iter_mut().find(|ring| ring.queue == queue.0) else { return };
    let hint = &mut ring.hints[ring.head as usize % HINTS];
    hint.length = partition.len() as u8;
    hint.name[..partition.len()].copy_from_slice(partition.as_bytes());
    ring.head += 1;
}

/// The hints for one pop of a group: those that were there before its snapshot, so that it sees
/// what they are about.
pub struct Hints {
    queue: u64,
    group: u64,
    end: u64,
}

impl Hints {
    /// To be called before the snapshot is taken. None without preload, if the group has a backlog,
    /// or if it is time to search.
    pub fn before_snapshot(queue: Topic, group: Topic, at: Moment) -> Option<Self> {
        if !is_shared() {
            return None;
        }
        let mut fresh = FRESH.exclusive();
        fresh.uses += 1;
        let now = fresh.uses;
        let head = fresh.ring_of(queue.0, now).head;
        let reader = fresh.reader_of(group.0, now);
        if reader.queue != queue.0 || reader.next > head {
            (reader.queue, reader.next) = (queue.0, head);
        }
        let is_paused = at < reader.paused_until && reader.paused_until <= at + PAUSE;
        let since = at.saturating_sub(reader.searched_at);
        let is_time = !(0..SEARCHES).contains(&since);
        if is_time {
            reader.searched_at = at;
        }
        (!is_paused && !is_time).then_some(Self { queue: queue.0, group: group.0, end: head })
    }

    /// The group has a backlog: without a pause, its pops would go on with what comes in, and leave
    /// what has waited for longer.
    pub fn pause(group: Topic, at: Moment) {
        if is_shared() {
            let mut fresh = FRESH.exclusive();
            if let Some(place) = fresh.readers.iter_mut().find(|place| place.group == group.0) {
                place.paused_until = at + PAUSE;
            }
        }
    }

    /// The next partition, which no other pop of the group has been given.
    pub fn next(&self) -> Option<String> {
        let hint = self.take()?;
        std::str::from_utf8(&hint.name[..usize::from(hint.length)]).ok().map(str::to_owned)
    }

    /// A copy of the next hint. Nothing is allocated under the lock, since that can fail.
    fn take(&self) -> Option<FreshPartition> {
        let mut fresh = FRESH.exclusive();
        let fresh: &mut Fresh = &mut fresh;
        let ring = fresh.rings.iter().find(|ring| ring.queue == self.queue)?;
        let reader = fresh.readers.iter_mut().find(|reader| reader.group == self.group)?;
        // Older hints have been overwritten.
        let number = reader.next.max(ring.head.saturating_sub(HINTS as u64));
        if reader.queue != self.queue || number >= self.end {
            return None;
        }
        reader.next = number + 1;
        Some(ring.hints[number as usize % HINTS])
    }
}

impl Fresh {
    /// The ring of a queue; if there is none, an empty one in place of the least used.
    fn ring_of(&mut self, queue: u64, now: u64) -> &mut Ring {
        let known = self.rings.iter().position(|ring| ring.queue == queue);
        let place = known.unwrap_or_else(|| oldest(self.rings.iter().map(|ring| ring.used_at)));
        let ring = &mut self.rings[place];
        if known.is_none() {
            (ring.queue, ring.head) = (queue, 0);
        }
        ring.used_at = now;
        ring
    }

    /// The reader of a group; if there is none, a new one in place of the least used.
    fn reader_of(&mut self, group: u64, now: u64) -> &mut GroupPlace {
        let known = self.readers.iter().position(|reader| reader.group == group);
        let place = known.unwrap_or_else(|| oldest(self.readers.iter().map(|one| one.used_at)));
        let reader = &mut self.readers[place];
        if known.is_none() {
            *reader = GroupPlace { group, ..NO_PLACE };
        }
        reader.used_at = now;
        reader
    }
}

fn oldest(used_at: impl Iterator<Item = u64>) -> usize {
    used_at.enumerate().min_by_key(|(_, used)| *used).map_or(0, |(place, _)| place)
}
