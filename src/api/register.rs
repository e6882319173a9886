//! How a consumer group comes to be.

use pgrx::datum::TimestampWithTimeZone;
use queen_engine::cursor::Start;
use queen_engine::discovery::{Discovery, Stream};

use crate::error::{Error, Result};
use crate::store::clock::{self, Moment};
use crate::store::discovery::{self, NewsOf};
use crate::store::group::{self, Group, Patience, QUEUE_MODE};
use crate::store::identity::Identity;
use crate::store::queue::Queue;
use crate::store::segment;
use crate::store::snapshot::{self, Taken};
use crate::store::spi::Under;

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
                format!("unknown subscription mode \"{other}\""),
                "A typing error must not replay or skip a log.",
                "Use 'new' or 'all', or give a time.",
            )),
        }
    }
}

/// A group about to be registered: what it will read was fixed when this was made.
#[derive(Debug)]
pub struct Registration {
    at: Moment,
    start_at: Option<Moment>,
    start: Start,
    discovery: Discovery,
    /// There was something for the group when this was made.
    has_messages: bool,
    /// What has come since.
    since: Stream<(String, u64)>,
}

impl Registration {
    /// Prepare to register `group`. Queue mode reads everything.
    pub fn prepare(
        group: &str,
        queue: Option<&Queue>,
        mode: Mode,
        identity: Identity,
    ) -> Result<Self> {
        let mode = if group == QUEUE_MODE { Mode::All } else { mode };
        Under::new_snapshot(|under| {
            // The id before the transactions: one drawn up to here belongs to a transaction that
            // `describe` counts among the holes.
            let last_drawn = segment::last_drawn_id(under);
            let Taken { snapshot, xmax } = snapshot::describe(under, identity);
            let mut new = Self {
                at: clock::now(),
                start_at: None,
                start: Start::default(),
                discovery: Discovery::default(),
                has_messages: false,
                since: Stream::starting_at(&snapshot, xmax),
            };
            match (mode, queue) {
                (Mode::All, None) => (),
                (Mode::All, Some(queue)) => {
                    let news = NewsOf { queue: queue.id, start_at: None };
                    new.has_messages =
                        !news.after(0, &Default::default(), false, 1, under).is_empty();
                }
                (Mode::New, _) => {
                    new.discovery = Discovery::starting_at(&snapshot, xmax);
                    new.start = Start { position: last_drawn, holes: snapshot.holes };
                }
                (Mode::From(at), queue) => {
                    let before = queue.map(|queue| segment::position_before(queue.id, at, under));
                    let (position, has_messages) = before.unwrap_or_default();
                    new.start_at = Some(at);
                    new.start = Start { position, holes: snapshot.holes };
                    new.has_messages = has_messages;
                }
            }
            Ok(new)
        })
    }

    /// Whether there is anything for the group.
    pub fn has_news(&self, queue: Option<&Queue>, identity: Identity) -> Result<bool> {
        let Some(queue) = queue else { return Ok(false) };
        if self.has_messages {
            return Ok(true);
        }
        Under::new_snapshot(|under| {
            let taken = snapshot::describe(under, identity);
            let news = NewsOf { queue: queue.id, start_at: None };
            let stream = &self.since;
            let late = stream.finished(&taken.snapshot);
            let is_late = |(xid, key): &(u64, _)| !news.after(*xid, key, true, 1, under).is_empty();
            Ok(late.iter().any(is_late)
                || !news.after(stream.xid, &stream.key, false, 1, under).is_empty())
        })
    }

    /// Write the registration. None where somebody else registers the same group.
    pub fn write(
        mut self,
        queue: &str,
        name: &str,
        patience: Patience,
    ) -> Option<(Group, (i64, Discovery))> {
        let group = group::register(queue, name, self.at, self.start_at, self.start, patience)?;
        let revision = discovery::append(group.id, 0, &mut self.discovery);
        Some((group, (revision, self.discovery)))
    }
}
