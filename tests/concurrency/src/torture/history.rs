//! What the workers of a torture saw, in terms that a checker can judge afterwards.
//!
//! Every event carries stamps of one counter that all workers share. A stamp taken before a
//! statement is sent is smaller than that of everything the statement can have caused; one taken
//! after its answer is larger than that of everything which caused it. The checker reasons with
//! these two bounds only, so a slow client can't make it raise a false alarm.

use std::sync::atomic::{AtomicU64, Ordering};

use uuid::Uuid;

/// A moment, as a number of the shared counter.
pub type Stamp = u64;

/// The shared counter.
#[derive(Default)]
pub struct Clock(AtomicU64);

impl Clock {
    /// A stamp larger than all before.
    pub fn tick(&self) -> Stamp {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
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
    /// Not later than the moment at which its end can take effect: before COMMIT or ROLLBACK was
    /// sent, or, when an error ended it, before the statement that failed.
    pub sent: Stamp,
    /// After the answer.
    pub done: Stamp,
    pub committed: bool,
}

/// One message as a producer sent it.
#[derive(Clone, Debug)]
pub struct Push {
    /// The number it carries in its payload. A producer numbers in the order in which it pushes.
    pub uid: Uid,
    pub producer: u32,
    pub stream: StreamId,
    pub tx: TxId,
    /// Before the call was sent.
    pub began: Stamp,
    pub message_id: i64,
    /// Rolled back to a savepoint before it.
    pub undone: bool,
    /// For pushes under a row lock of the application: the row, and the place that the lock gave.
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
    /// The call, and the place in its rows.
    pub pop: u32,
    pub at: u32,
    pub tx: TxId,
    pub began: Stamp,
    pub returned: Stamp,
    pub lease: Uuid,
    /// The server's clock in the call (unknown if it waited), and the end of the lease by it, in
    /// microseconds.
    pub clock: Option<i64>,
    pub expires: i64,
    /// Before it was rolled back to a savepoint.
    pub undone: Option<Stamp>,
}

/// A message completed by an ack that succeeded; it counts when the transaction commits.
#[derive(Clone, Debug)]
pub struct Completion {
    pub group: GroupId,
    pub uid: Uid,
    pub tx: TxId,
    pub began: Stamp,
    /// Before it was rolled back to a savepoint.
    pub undone: Option<Stamp>,
}

/// What a lease holds, and gives back, as one: in a group without order each message is on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unit {
    Stream(StreamId),
    Message(Uid),
}

/// A lease that ended for a unit: its last message was settled, or one was given back.
#[derive(Clone, Debug)]
pub struct Release {
    pub lease: Uuid,
    pub unit: Unit,
    pub tx: TxId,
    pub began: Stamp,
    /// Before it was rolled back to a savepoint.
    pub undone: Option<Stamp>,
}

/// A consumer group.
#[derive(Clone, Debug)]
pub struct Group {
    pub name: String,
    /// Around the registration of a group that sees only what commits after it. None: it sees
    /// everything.
    pub registered: Option<(Stamp, Stamp)>,
}

/// Everything together.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub groups: Vec<Group>,
    pub txs: Vec<Tx>,
    pub pushes: Vec<Push>,
    pub deliveries: Vec<Delivery>,
    pub completions: Vec<Completion>,
    pub releases: Vec<Release>,
    /// The groups are without order.
    pub unordered: bool,
    /// Some deliveries may be missing: their consumers lost the connection.
    pub gaps: bool,
}

impl History {
    /// As what a message is held.
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
