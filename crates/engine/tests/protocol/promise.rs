//! What must hold.

/// A promise of the protocol, which a run may break.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Promise {
    /// A message, and in an ordered group a partition, is delivered to one holder at a time.
    OneHolder,
    /// A message that has committed is unread, or waits, or is held, or is settled.
    NotLost,
    /// A message is delivered only after its transaction has committed.
    NoPhantom,
    /// A message that is settled is not delivered again, unless a seek brings it back.
    SettledStays,
    /// A lease that has ended settles nothing and is not extended.
    Fence,
    /// A lease that is live settles what it holds, and is extended.
    HolderIsHeard,
    /// A settlement that is repeated under its lease changes nothing, and is no error.
    Repetition,
    /// Messages come in the order of their pushes.
    Order,
    /// Each delivery of a message has the next number.
    Attempt,
    /// A message is given up when its failures or its deliveries are used up, and not before.
    Budget,
    /// A message that has failed comes back after the delay.
    Delay,
    /// An extension never shortens a lease.
    Deadline,
    /// What was settled is settled after a crash of the server.
    Durable,
    /// The group counts what was settled.
    Count,
    /// Each step comes nearer to an end.
    RunsEnd,
    /// Where a run ends, all messages are settled.
    SettledAtLast,
}

impl Promise {
    pub fn name(self) -> &'static str {
        match self {
            Self::OneHolder => "one holder",
            Self::NotLost => "nothing is lost",
            Self::NoPhantom => "no phantom",
            Self::SettledStays => "settled stays settled",
            Self::Fence => "the fence",
            Self::HolderIsHeard => "the holder is heard",
            Self::Repetition => "repetition",
            Self::Order => "order",
            Self::Attempt => "attempts",
            Self::Budget => "budgets",
            Self::Delay => "delays",
            Self::Deadline => "deadlines",
            Self::Durable => "durable",
            Self::Count => "counts",
            Self::RunsEnd => "runs end",
            Self::SettledAtLast => "settled at last",
        }
    }
}
