//! Where in the log a consumer group begins to read.
//!
//! Registration and seeks ask this. The answer is fixed by one snapshot: a message that the
//! snapshot shows is before the beginning or after it, whatever commits later. A seek takes the
//! snapshot when it holds the group; a registration needs no lock for it.

use queen_engine::cursor::Start;
use queen_engine::discovery::Discovery;

use crate::pg::clock::Moment;
use crate::pg::snapshot::ActiveSnapshot;
use crate::store::identity::Identity;
use crate::store::seen_snapshot::{self, SeenSnapshot};
use crate::store::segment::{self, SegmentSummary};

/// What a group is to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// What commits after the snapshot.
    New,
    /// Everything retained.
    All,
    /// Messages created at this moment or later.
    From(Moment),
}

impl Mode {
    /// How a group that begins there was registered, or moved since.
    pub fn of(start: &Start) -> Self {
        match start.since {
            Some(at) => Mode::From(at),
            None if *start == Start::default() => Mode::All,
            None => Mode::New,
        }
    }
}

/// The end of the log, as of one snapshot.
pub struct LogEnd {
    /// A segment id: every segment up to it that the snapshot does not show is of a transaction
    /// that `seen` counts as running.
    last_drawn: u64,
    pub seen: SeenSnapshot,
}

impl LogEnd {
    /// Look at the end of the log. `identity`: how the queue's transaction ids are stored.
    pub fn look(identity: Identity, under: &ActiveSnapshot) -> Self {
        // The segment id first. A pushing transaction gets its transaction id before it draws
        // segment ids. So a transaction that has drawn an id up to here has its transaction id
        // already, and `describe`, which reads the next one after this, counts it among the holes.
        // The other way round, a transaction that began in between would have a segment below
        // `last_drawn` and no hole: the group would never read it.
        let last_drawn = segment::last_drawn_id(under);
        Self { last_drawn, seen: seen_snapshot::describe(under, identity) }
    }

    fn start_after(&self, position: u64) -> Start {
        Start::after(position, &self.seen.snapshot)
    }

    /// Where one cursor begins that is to read what `mode` says of its partition, which holds the
    /// segments `rows`.
    pub fn start_in(&self, rows: &[SegmentSummary], mode: Mode) -> Start {
        match mode {
            Mode::All => Start::default(),
            Mode::New => self.start_after(self.last_drawn),
            Mode::From(at) => {
                let first = rows.iter().filter(|row| row.created_at >= at).map(|row| row.id).min();
                let position = first.map_or(self.last_drawn, |first| first - 1);
                Start { since: Some(at), ..self.start_after(position) }
            }
        }
    }
}

/// Where a group begins that is to read what a [`Mode`] says, as of one snapshot.
#[derive(Debug)]
pub struct Beginning {
    pub start: Start,
    pub discovery: Discovery,
    /// Visible messages that are for it; None: all that are in the log.
    pub messages: Option<i64>,
}

impl Beginning {
    /// `queue`: the queue's id, if the queue exists. `end` was looked at under this snapshot.
    pub fn of(mode: Mode, queue: Option<i64>, end: &LogEnd, under: &ActiveSnapshot) -> Self {
        match mode {
            Mode::All => {
                Self { start: Start::default(), discovery: Discovery::default(), messages: None }
            }
            Mode::New => Self {
                start: end.start_after(end.last_drawn),
                discovery: Discovery::starting_at(&end.seen.snapshot, end.seen.xmax),
                messages: Some(0),
            },
            Mode::From(at) => {
                let before = queue.map(|queue| segment::position_before(queue, at, under));
                let (position, messages) = before.unwrap_or_default();
                Self {
                    start: Start { since: Some(at), ..end.start_after(position) },
                    discovery: Discovery::default(),
                    messages: Some(messages),
                }
            }
        }
    }
}
