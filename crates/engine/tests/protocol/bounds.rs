//! How much of everything a model has.

/// What may go wrong, or be done by hand. A model has room for a few of these, in any order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Trouble {
    /// A pushing transaction rolls back.
    Abort,
    /// A worker reports a failure.
    Fail,
    /// A worker gives its messages back without a charge.
    Retry,
    /// A worker makes a dead letter of a message.
    Bury,
    /// A worker extends its lease.
    Extend,
    /// A worker forgets its lease: it crashes.
    Forget,
    /// The reply to a settlement is lost, and the worker repeats its call.
    LostReply,
    /// The server crashes, and the newest commits that nothing waited for are lost.
    Crash,
    /// The administrator moves the group to the start of a partition.
    SeekStart,
    /// The administrator moves the group to the end of a partition.
    SeekEnd,
}

/// All of them.
pub const ALL: &[Trouble] = &[
    Trouble::Abort,
    Trouble::Fail,
    Trouble::Retry,
    Trouble::Bury,
    Trouble::Extend,
    Trouble::Forget,
    Trouble::LostReply,
    Trouble::Crash,
    Trouble::SeekStart,
    Trouble::SeekEnd,
];

/// The bounds of one model.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub ordered: bool,
    pub workers: usize,
    /// Each push is a transaction of its own with so many messages.
    pub pushes: &'static [u16],
    pub partitions: u8,
    /// How often time passes a deadline while there is something else to do. When there is not,
    /// time passes as often as it must.
    pub expiries: u8,
    /// How many troubles there are in one run, and of which kinds.
    pub troubles: u8,
    pub kinds: &'static [Trouble],
    /// How many messages a pop may want.
    pub batches: &'static [usize],
    /// A pop looks in one step and writes in a later one.
    pub two_steps: bool,
    /// A transaction may have its xid long before it pushes.
    pub early_xids: bool,
    pub retry_limit: u32,
    pub max_deliveries: Option<u32>,
}

/// The smallest model of an ordered group, to be widened.
pub const ORDERED: Bounds = Bounds {
    ordered: true,
    workers: 2,
    pushes: &[1, 1],
    partitions: 1,
    expiries: 1,
    troubles: 1,
    kinds: ALL,
    batches: &[1, 2],
    two_steps: false,
    early_xids: true,
    retry_limit: 1,
    max_deliveries: None,
};

/// The smallest model of a group without order.
pub const UNORDERED: Bounds = Bounds { ordered: false, batches: &[1], ..ORDERED };
