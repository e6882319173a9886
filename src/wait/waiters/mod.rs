//! Which sessions wait for messages, and which of them a commit wakes. The list is in shared
//! memory, so it is there only with the library preloaded. Without, nothing here does anything.
//!
//! A waiting session puts its latch on the list before it looks for messages. So a transaction that
//! commits after that look finds the latch there, and sets it. A transaction notes what it brings:
//! that it has pushed to a partition of a queue, or has left a partition ready for a group
//! ([`touch`]). When it has committed and given up its locks, it goes through the list.
//!
//! **One for each.** What came in one partition is worth one look, not one of each waiting session.
//! So a commit wakes one sleeping session of each group that waits for it; of sessions that wait
//! for one partition alone, only one that waits for this partition. Three rules keep a wake-up from
//! being lost:
//!
//! - A session that is awake counts as awake until it begins its next look ([`WaiterSlot::arm`]). A
//!   commit that finds only such sessions wakes none: their next look has a snapshot that is newer.
//!   From that moment on the session counts as asleep, and a commit during the look sets its latch.
//! - A session that leaves the list while it counts as awake, or in the middle of the look that it
//!   was woken for, hands the wake-up on to another one. So does one that waits for several queues,
//!   and whose look has ended before it came to the one that it was woken for.
//! - A pop that has got messages, and leaves some behind, hands a wake-up on ([`hand_on`]).
//!
//! **A timekeeper.** Some messages come without a commit: a lease expires, a retry or a timer is
//! due. Of the sleeping sessions of a group only one sets its alarm for that, and hands it on when
//! it leaves. A commit that gives a lease wakes one that looks for the moment, if the lease ends
//! before the alarm ([`touch_at`]).
//!
//! A transaction that is rolled back gives back what it had locked. So a pop notes that as well
//! ([`touch_if_undone`]). COMMIT PREPARED may run in another session, which knows nothing of the
//! notes, so it wakes no session; waiting sessions look again every few seconds for this reason.
//!
//! An LWLock guards the list. It is held for one walk through the list, and nothing under it can
//! fail or wait.

mod notes;
mod slot;
mod topic;

pub use self::notes::{forget_held, touch, touch_all, touch_at, touch_if_undone, touch_pushed};
pub use self::slot::WaiterSlot;
pub use self::topic::{PartitionHash, Topic, Wanted};
use crate::pg::clock::Moment;
use crate::pg::latch::LatchAddress;
use crate::pg::shared::{Shared, plain};

/// Entries of the list: a session has one for each queue that it waits for. A session that finds no
/// room waits as without preload.
const CAPACITY: usize = 4096;

/// What there is news of: a topic, and where.
#[derive(Clone, Copy, PartialEq, Eq)]
struct WakeUp {
    topic: u64,
    partition: PartitionHash,
    /// Worth a look of each waiting session.
    for_all: bool,
}

/// A lease that a commit has given: where, and when it ends.
struct LeaseEnd {
    group: u64,
    partition: PartitionHash,
    at: Moment,
}

/// A session that waits for a queue.
#[derive(Clone, Copy)]
struct Waiter {
    /// The session's.
    latch: LatchAddress,
    /// The place of the queue among those that the session waits for.
    place: usize,
    queue: u64,
    /// The group's topic; 0 as long as the group is not registered.
    group: u64,
    /// Queue and group by their names.
    consumer: u64,
    /// The partition that the session waits for alone.
    partition: PartitionHash,
    /// It has been woken and has not begun its next look; and for which partition.
    is_awake: bool,
    woken_for: PartitionHash,
    /// It was woken for this partition, and is in the look that this was for.
    looks_for: Option<PartitionHash>,
    /// It keeps the time for the sleeping sessions of its group and partition, or has when it woke.
    is_timekeeper: bool,
    /// When it wakes by itself, as the timekeeper.
    alarm: Moment,
}

plain!(Waiter {
    latch,
    place,
    queue,
    group,
    consumer,
    partition,
    is_awake,
    woken_for,
    looks_for,
    is_timekeeper,
    alarm,
});

const UNUSED: Waiter = Waiter {
    latch: LatchAddress::NONE,
    place: 0,
    queue: 0,
    group: 0,
    consumer: 0,
    partition: PartitionHash::ANY,
    is_awake: false,
    woken_for: PartitionHash::ANY,
    looks_for: None,
    is_timekeeper: false,
    alarm: Moment::MAX,
};

/// The list; the first `count` entries are in use.
#[derive(Clone, Copy)]
pub struct Waiters {
    count: usize,
    list: [Waiter; CAPACITY],
}

plain!(Waiters { count, list });

static WAITERS: Shared<Waiters> =
    Shared::new(c"queen_mq waiters", || Waiters { count: 0, list: [UNUSED; CAPACITY] });

/// Called in the postmaster, while it preloads the library: have shared memory for the list.
pub fn set_up() {
    WAITERS.set_up();
}

fn is_shared() -> bool {
    WAITERS.is_there()
}

/// A pop of the group has left messages behind in a partition: wake one session for them.
pub fn hand_on(group: Topic, partition: PartitionHash) {
    if is_shared() {
        WAITERS.exclusive().wake(WakeUp { topic: group.0, partition, for_all: false });
    }
}

/// Wake all sessions that wait for `topic` at once, whether or not this transaction commits. For a
/// caller that has held a lock for a moment: a pop that looked then found messages locked.
pub fn wake_now(topic: Topic) {
    if is_shared() {
        let partition = PartitionHash::ANY;
        WAITERS.exclusive().wake(WakeUp { topic: topic.0, partition, for_all: true });
    }
}

fn wake_for_each<'a>(news: impl Iterator<Item = &'a WakeUp>) {
    let mut news = news.peekable();
    if news.peek().is_some() {
        let mut waiters = WAITERS.exclusive();
        news.for_each(|news| waiters.wake(*news));
    }
}

fn tell_moments(moments: &[LeaseEnd]) {
    if !moments.is_empty() {
        let mut waiters = WAITERS.exclusive();
        moments.iter().for_each(|due| waiters.tell(due));
    }
}

/// Groups of one queue that a commit tells apart. With more of them it wakes all sessions.
const GROUPS: usize = 32;

impl Waiters {
    fn used(&self) -> &[Waiter] {
        &self.list[..self.count]
    }

    /// Wake a sleeping session of each group that the news concerns, or all of them.
    fn wake(&mut self, news: WakeUp) {
        let mut served = [0; GROUPS];
        let mut count = 0;
        let mut for_all = news.for_all;
        // Sessions that wait for any partition first: others have less to choose from.
        for is_choosy in [false, true] {
            for waiter in &mut self.list[..self.count] {
                if waiter.is_choosy() != is_choosy || !waiter.is_concerned(&news) {
                    continue;
                }
                if !for_all && served[..count].contains(&waiter.consumer) {
                    continue;
                }
                // One that is awake, and has not begun its next look, will see the news in it.
                if waiter.is_awake && !for_all {
                    continue;
                }
                waiter.wake_for(news.partition);
                if count == GROUPS {
                    for_all = true;
                } else {
                    served[count] = waiter.consumer;
                    count += 1;
                }
            }
        }
    }

    /// Wake a sleeping session of a group for what another one of it has left unused.
    fn wake_another(&mut self, gone: &Waiter, partition: PartitionHash) {
        let is_next = |waiter: &&mut Waiter| {
            waiter.consumer == gone.consumer
                && !waiter.is_awake
                && waiter.partition.meets(partition)
        };
        // One that waits for any partition, if there is one.
        let waiters = &mut self.list[..self.count];
        let next = match waiters.iter_mut().find(|w| !w.is_choosy() && is_next(w)) {
            Some(waiter) => Some(waiter),
            None => self.list[..self.count].iter_mut().find(is_next),
        };
        if let Some(waiter) = next {
            waiter.wake_for(partition);
        }
    }

    /// Where no session keeps the time until the lease ends, wake one: its look finds the moment.
    fn tell(&mut self, due: &LeaseEnd) {
        for is_choosy in [false, true] {
            let is_concerned = |waiter: &Waiter| {
                waiter.is_choosy() == is_choosy
                    && waiter.group == due.group
                    && waiter.partition.meets(due.partition)
            };
            let has_keeper = self.used().iter().any(|waiter| {
                let knows =
                    if waiter.is_awake { waiter.is_timekeeper } else { waiter.alarm <= due.at };
                is_concerned(waiter) && knows
            });
            // Sessions that wait for one partition each, and news of any of them.
            let for_all = is_choosy && due.partition == PartitionHash::ANY;
            if has_keeper && !for_all {
                continue;
            }
            let count = self.count;
            let asleep = |w: &&mut Waiter| is_concerned(w) && !w.is_awake && w.alarm > due.at;
            for waiter in self.list[..count].iter_mut().filter(asleep) {
                waiter.is_timekeeper = true;
                waiter.wake_for(due.partition);
                if !for_all {
                    break;
                }
            }
        }
    }

    /// Wake a sleeping session that waits for what `gone` has waited for.
    fn wake_one_like(&mut self, gone: &Waiter) {
        let is_next = |waiter: &&mut Waiter| waiter.is_like(gone) && !waiter.is_awake;
        if let Some(waiter) = self.list[..self.count].iter_mut().find(is_next) {
            waiter.wake_for(PartitionHash::ANY);
            // Where it leaves without a look in vain, it hands the time on in its turn.
            waiter.is_timekeeper = true;
        }
    }
}

impl Waiter {
    fn is_choosy(&self) -> bool {
        self.partition != PartitionHash::ANY
    }

    fn is_concerned(&self, news: &WakeUp) -> bool {
        (self.queue == news.topic || self.group == news.topic)
            && self.partition.meets(news.partition)
    }

    /// Whether both would wake at one moment.
    fn is_like(&self, other: &Self) -> bool {
        self.consumer == other.consumer && self.partition == other.partition
    }

    fn wake_for(&mut self, partition: PartitionHash) {
        // Where it is woken twice before its next look, it hands on both at once.
        let is_first = !self.is_awake || self.woken_for == partition;
        self.woken_for = if is_first { partition } else { PartitionHash::ANY };
        self.is_awake = true;
        self.latch.set();
    }
}
