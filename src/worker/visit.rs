//! What the entry of a database says of its worker, and of the last one.

use crate::pg::clock::Moment;
use crate::pg::latch::LatchAddress;
use crate::pg::shared::plain;
use crate::store::sweep::{Pass, TABLES};

/// A database's worker, and what the last one has left behind.
#[derive(Clone, Copy)]
pub struct Visit {
    /// A process that is to be the worker and is not connected to the database yet, and since when;
    /// 0 if there is none.
    pub coming: i32,
    pub coming_since: Moment,
    /// The worker's process id, 0 if there is none, and its latch.
    pub worker: i32,
    pub latch: LatchAddress,
    /// When it came, or the last one; 0 if there was none.
    pub began_at: Moment,
    /// It was started by hand: the launcher neither counts it nor asks it to leave.
    pub is_by_hand: bool,
    /// It has said what it knows, and is about to end.
    pub has_left: bool,
    /// When the launcher asked it to leave, because it needs the slot; 0 if it has not.
    pub asked_at: Moment,
    /// The settings say that the database is not to be served.
    pub is_excluded: bool,
    /// They may not, any more.
    pub is_doubted: bool,
    /// So many workers, one after the other, have left with more to do at once.
    pub unfinished: u32,
    pub left: Left,
}

plain!(Visit {
    coming,
    coming_since,
    worker,
    latch,
    began_at,
    is_by_hand,
    has_left,
    asked_at,
    is_excluded,
    is_doubted,
    unfinished,
    left,
});

/// What a worker knows that leaves.
#[derive(Clone, Copy, Debug)]
pub struct Left {
    pub at: Moment,
    /// The database's count, and PostgreSQL's of all transactions, before it has last looked.
    pub changes: u64,
    pub completions: u64,
    /// While these stay as they are, there is nothing to do before this moment.
    pub due: Moment,
    /// There was more to do at once.
    pub goes_on: bool,
    /// How far it has looked through the tables.
    pub passes: [Pass; TABLES],
}

plain!(Left { at, changes, completions, due, goes_on, passes });

impl Left {
    const NOTHING: Self = Self {
        at: 0,
        changes: 0,
        completions: 0,
        due: 0,
        goes_on: false,
        passes: [Pass::FIRST; TABLES],
    };
}

impl Visit {
    pub const NONE: Self = Self {
        coming: 0,
        coming_since: 0,
        worker: 0,
        latch: LatchAddress::NONE,
        began_at: 0,
        is_by_hand: false,
        has_left: false,
        asked_at: 0,
        is_excluded: false,
        is_doubted: false,
        unfinished: 0,
        left: Left::NOTHING,
    };

    /// This process is not on its way any more.
    pub fn forget_coming(&mut self, process: i32) {
        if self.coming == process {
            (self.coming, self.coming_since) = (0, 0);
        }
    }

    /// Of a database in which no worker has been.
    pub fn first(now: Moment) -> Self {
        Self { left: Left { at: now, due: now, ..Left::NOTHING }, ..Self::NONE }
    }
}
