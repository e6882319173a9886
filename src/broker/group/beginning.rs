//! Where in the log a group begins to read.

use pgrx::datum::TimestampWithTimeZone;
use queen_engine::cursor::Start;
use queen_engine::discovery::Discovery;

use crate::api::args;
use crate::error::{Error, Result};
use crate::pg::clock::{self, Moment};
use crate::pg::spi::ActiveSnapshot;
use crate::store::seen_snapshot::SeenSnapshot;
use crate::store::segment::{self, Row};

/// Where a new group begins to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// What commits after the registration's snapshot.
    New,
    /// Everything retained.
    All,
    /// Messages created at this moment or later.
    From(Moment),
}

impl Mode {
    /// From a mode's name and a time, either of which may be missing.
    pub fn parse(mode: Option<&str>, from: Option<TimestampWithTimeZone>) -> Result<Self> {
        match (mode, from.map(clock::moment)) {
            (None | Some("new"), Some(at)) => Ok(Mode::From(at)),
            (None | Some("new"), None) => Ok(Mode::New),
            (Some("all"), None) => Ok(Mode::All),
            (Some("all"), Some(_)) => Err(Error::invalid(
                "mode \"all\" does not go with a time",
                "Both were given.",
                "Leave out one of them.",
            )),
            (Some(other), _) => Err(Error::invalid(
                format!("unknown subscription mode \"{}\"", args::quoted(other)),
                "A typing error must not replay or skip a log.",
                "Use 'new' or 'all', or give a time.",
            )),
        }
    }
}

/// Where a group begins that wants what `mode` says, as of one snapshot.
#[derive(Debug)]
pub struct Beginning {
    pub start: Start,
    pub discovery: Discovery,
    /// Visible messages that are for it; None: all that are in the log.
    pub messages: Option<i64>,
}

impl Beginning {
    /// `last_drawn`: a segment id that was drawn before the snapshot was looked at. `queue`: its
    /// id, if it exists.
    pub fn of(
        mode: Mode,
        queue: Option<i64>,
        last_drawn: u64,
        taken: &SeenSnapshot,
        under: &ActiveSnapshot,
    ) -> Self {
        let SeenSnapshot { snapshot, xmax } = taken;
        match mode {
            Mode::All => {
                Self { start: Start::default(), discovery: Discovery::default(), messages: None }
            }
            Mode::New => Self {
                start: Start::after(last_drawn, snapshot),
                discovery: Discovery::starting_at(snapshot, *xmax),
                messages: Some(0),
            },
            Mode::From(at) => {
                let before = queue.map(|queue| segment::position_before(queue, at, under));
                let (position, messages) = before.unwrap_or_default();
                Self {
                    start: Start { since: Some(at), ..Start::after(position, snapshot) },
                    discovery: Discovery::default(),
                    messages: Some(messages),
                }
            }
        }
    }
}

/// Where a cursor begins in a partition that holds `rows`.
pub fn start_in(rows: &[Row], mode: Mode, last_drawn: u64, taken: &SeenSnapshot) -> Start {
    match mode {
        Mode::All => Start::default(),
        Mode::New => Start::after(last_drawn, &taken.snapshot),
        Mode::From(at) => {
            let first = rows.iter().filter(|row| row.created_at >= at).map(|row| row.id).min();
            let position = first.map_or(last_drawn, |first| first - 1);
            Start { since: Some(at), ..Start::after(position, &taken.snapshot) }
        }
    }
}
