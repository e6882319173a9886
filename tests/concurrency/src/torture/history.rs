//! What the workers of a torture saw, in terms that a checker can judge afterwards.
//!
//! Every event carries stamps of one counter that all workers share. A stamp taken before a
//! statement is sent is smaller than that of everything the statement can have caused; one taken
//! after its answer is larger than that of everything which caused it. The checker reasons with
//! these two bounds only, so a slow client can't make it raise a false alarm.

use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use uuid::Uuid;

/// A moment: a value of the shared counter.
pub type Stamp = u64;

/// The shared counter. It remembers when each stamp was taken.
pub struct Clock {
    started: Instant,
    /// When that was, in microseconds of the wall clock.
    started_at: i64,
    taken: Mutex<Vec<i64>>,
}

impl Default for Clock {
    fn default() -> Self {
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let started_at = since_epoch.map_or(0, |time| time.as_micros() as i64);
        Self { started: Instant::now(), started_at, taken: Mutex::default() }
    }
}

impl Clock {
    /// A stamp larger than all before.
    pub fn tick(&self) -> Stamp {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.push(self.started_at + self.started.elapsed().as_micros() as i64);
        taken.len() as Stamp
    }

    /// When each stamp was taken, by the wall clock: the first one at place 0.
    pub fn times(&self) -> Vec<i64> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

pub type TxId = u32;
pub type Uid = u32;
pub type StreamId = u32;
pub type GroupId = u32;

/// How a transaction ended.
#[derive(Clone, Copy, Debug)]
pub struct Tx {
    pub id: TxId,
    /// A stamp that is not later than the moment at which the end can take effect. It was taken
    /// before COMMIT or ROLLBACK was sent or, when an error ended the transaction, before the
    /// statement that failed.
    pub sent: Stamp,
    /// Taken after the answer.
    pub done: Stamp,
    pub committed: bool,
}

/// One message as a producer pushed it.
#[derive(Clone, Debug)]
pub struct PushRecord {
    /// The number in the payload. Every producer numbers its messages in the order in which it
    /// pushes them.
    pub uid: Uid,
    pub producer: u32,
    pub stream: StreamId,
    pub tx: TxId,
    /// Taken before the call was sent.
    pub began: Stamp,
    pub message_id: i64,
    /// The push was rolled back to a savepoint before it.
    pub undone: bool,
    /// For a push under a row lock of the application: the row, and the place that the lock gave.
    pub locked: Option<(u32, i64)>,
}

/// One message as a consumer was given it.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub group: GroupId,
    pub stream: StreamId,
    pub uid: Uid,
    pub message_id: i64,
    pub attempt: i32,
    /// The call, and the place of the message in its rows.
    pub pop: u32,
    pub at: u32,
    pub tx: TxId,
    pub began: Stamp,
    pub returned: Stamp,
    pub lease: Uuid,
    /// The server's clock during the call (None if the call waited), and the end of the lease on
    /// that clock, in microseconds.
    pub clock: Option<i64>,
    pub expires: i64,
    /// A stamp from before this was rolled back to a savepoint.
    pub undone: Option<Stamp>,
}

/// A message that a successful ack completed. It counts when the transaction commits.
#[derive(Clone, Debug)]
pub struct Completion {
    pub group: GroupId,
    pub uid: Uid,
    /// None: the pop itself has completed it.
    pub lease: Option<Uuid>,
    pub tx: TxId,
    pub began: Stamp,
    /// A stamp from before this was rolled back to a savepoint.
    pub undone: Option<Stamp>,
}

/// What a lease holds, and gives back, as a whole. In a group without order each message is a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unit {
    Stream(StreamId),
    Message(Uid),
}

/// A lease that ended for a unit: its last message was settled, or one of its messages was given
/// back.
#[derive(Clone, Debug)]
pub struct Release {
    pub lease: Uuid,
    pub unit: Unit,
    pub tx: TxId,
    pub began: Stamp,
    /// A stamp from before this was rolled back to a savepoint.
    pub undone: Option<Stamp>,
}

/// A consumer group.
#[derive(Clone, Debug)]
pub struct Group {
    pub name: String,
    /// For a group that sees only what commits after its registration: stamps from before and after
    /// the registration. None: the group sees everything.
    pub registered: Option<(Stamp, Stamp)>,
}

/// Everything that the workers saw.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub groups: Vec<Group>,
    pub txs: Vec<Tx>,
    pub pushes: Vec<PushRecord>,
    pub deliveries: Vec<Delivery>,
    pub completions: Vec<Completion>,
    pub releases: Vec<Release>,
    /// The groups are without order.
    pub unordered: bool,
    /// Some deliveries may be missing, because their consumers lost the connection.
    pub gaps: bool,
}

impl History {
    /// The unit as which a message is held.
    pub fn unit(&self, stream: StreamId, uid: Uid) -> Unit {
        if self.unordered { Unit::Message(uid) } else { Unit::Stream(stream) }
    }

    pub fn append(&mut self, mut other: History) {
        self.txs.append(&mut other.txs);
        self.pushes.append(&mut other.pushes);
        self.deliveries.append(&mut other.deliveries);
        self.completions.append(&mut other.completions);
        self.releases.append(&mut other.releases);
    }
}
