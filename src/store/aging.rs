//! From which moment on receipts count as old.
//!
//! A row with receipts has the moment of the call that wrote it, and is kept for an hour from then
//! on. But the lease has ended for others, and for a repeated ack, only when the transaction
//! commits. So one that commits long after the call writes the moment anew, as it commits. One that
//! is prepared may be committed at any time: its rows say 'infinity'. Who sees them later writes
//! the moment at which it does: a sweep, or the next writer of the cursor.

use std::cell::RefCell;

use pgrx::pg_sys;

use crate::error::Result;
use crate::pg::before_commit::{Stage, want};
use crate::pg::catalogue;
use crate::pg::clock::{self, At, Moment, SECOND};
use crate::pg::columns::{Arg, arg};
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::spi::{Statement, connected};

/// A commit that comes so much later than the first of the transaction's receipts is late.
const LATE: i64 = 30 * SECOND;
/// Not older at any moment.
pub(super) const NOT_YET: Moment = Moment::MAX;

/// Rows of one table that the open transaction has written, some of which may be rolled back.
struct WrittenRows {
    ids: Vec<i64>,
    revisions: Vec<i64>,
    moments: Vec<Moment>,
}

impl WrittenRows {
    const NONE: Self = Self { ids: Vec::new(), revisions: Vec::new(), moments: Vec::new() };

    fn note(&mut self, id: i64, revision: i64, at: Moment) {
        self.ids.push(id);
        self.revisions.push(revision);
        self.moments.push(at);
    }
}

/// All rows with receipts that the open transaction has written.
struct Written {
    first: Option<Moment>,
    states: WrittenRows,
    blocks: WrittenRows,
}

thread_local! {
    static WRITTEN: RefCell<Written> = const {
        RefCell::new(Written { first: None, states: WrittenRows::NONE, blocks: WrittenRows::NONE })
    };
}

// A row that was rolled back, and written by another transaction since, has another moment.
macro_rules! stamp {
    ($table:literal) => {
        Statement::new(
            concat!(
                "UPDATE queen_mq.",
                $table,
                " AS t SET ended_at = $4
                 FROM unnest($1, $2, $3) AS own (cursor_id, revision, ended_at)
                 WHERE t.cursor_id = own.cursor_id AND t.revision = own.revision
                   AND t.ended_at = own.ended_at"
            ),
            &[
                pg_sys::INT8ARRAYOID,
                pg_sys::INT8ARRAYOID,
                pg_sys::TIMESTAMPTZARRAYOID,
                pg_sys::TIMESTAMPTZOID,
            ],
        )
    };
}

static STAMP_STATES: Statement = stamp!("progress");
static STAMP_BLOCKS: Statement = stamp!("receipt");

/// Write the present moment to states that were prepared, and have been committed: those in the
/// pages from $1 up to $2, which are tids. Under the lock of their cursor or claim, where it is
/// free. Who holds that lock may be moving the receipts of these states, and passes by a state that
/// another transaction has written.
pub(super) static STAMP_SEEN_STATES: Statement = Statement::new(
    "UPDATE queen_mq.progress SET ended_at = pg_catalog.clock_timestamp()
     WHERE ctid = ANY (ARRAY(
         SELECT t.ctid FROM queen_mq.progress t JOIN queen_mq.cursor c ON c.id = t.cursor_id
         WHERE t.ctid >= $1::tid AND t.ctid < $2::tid AND t.ended_at = 'infinity'
         FOR UPDATE OF c SKIP LOCKED)
     || ARRAY(
         SELECT t.ctid FROM queen_mq.progress t JOIN queen_mq.claim c ON c.id = t.cursor_id
         WHERE t.ctid >= $1::tid AND t.ctid < $2::tid AND t.ended_at = 'infinity'
         FOR UPDATE OF c SKIP LOCKED))",
    &[pg_sys::TEXTOID, pg_sys::TEXTOID],
);
/// And to such blocks, which are deleted only once they are old. No lock of a cursor is needed.
pub(super) static STAMP_SEEN_BLOCKS: Statement = Statement::new(
    "UPDATE queen_mq.receipt SET ended_at = pg_catalog.clock_timestamp()
     WHERE ctid = ANY (ARRAY(
         SELECT ctid FROM queen_mq.receipt
         WHERE ctid >= $1::tid AND ctid < $2::tid AND ended_at = 'infinity'
         FOR UPDATE SKIP LOCKED))",
    &[pg_sys::TEXTOID, pg_sys::TEXTOID],
);

static STAMP_BLOCK: Statement = Statement::new(
    "UPDATE queen_mq.receipt SET ended_at = pg_catalog.clock_timestamp()
     WHERE ctid = ANY (ARRAY(
         SELECT ctid FROM queen_mq.receipt
         WHERE cursor_id = $1 AND revision = $2 AND ended_at = 'infinity'
         FOR UPDATE SKIP LOCKED))",
    &[pg_sys::INT8OID, pg_sys::INT8OID],
);

/// Write the present moment to this block, which was prepared, and has been committed. Waits for no
/// lock: where a sweep has the row, the sweep writes the moment.
pub(super) fn stamp_block(id: i64, revision: i64) {
    STAMP_BLOCK.run(&[arg(id), arg(revision)]);
}

/// A state with receipts is written at this moment, and says so.
pub(super) fn note_state(id: i64, revision: i64, now: Moment) {
    note(now, |written| written.states.note(id, revision, now));
}

/// A block is written. Its receipts are of this moment, which may be long ago.
pub(super) fn note_block(id: i64, revision: i64, at: Moment) {
    note(clock::now(), |written| written.blocks.note(id, revision, at));
}

fn note(now: Moment, add: impl FnOnce(&mut Written)) {
    want();
    WRITTEN.with_borrow_mut(|written| {
        written.first = written.first.or(Some(now));
        add(written);
    });
}

/// The transaction commits or is prepared, or has ended.
pub fn at_stage(stage: Stage) {
    let now = match stage {
        Stage::Commits => clock::now(),
        Stage::Prepares => NOT_YET,
        Stage::Over => {
            let (first, states, blocks) = (None, WrittenRows::NONE, WrittenRows::NONE);
            return drop(WRITTEN.replace(Written { first, states, blocks }));
        }
    };
    // Where the clock was set back, the moments lie in the future: they are kept for longer.
    let is_late = |first: Moment| now.saturating_sub(first) > LATE;
    let first = WRITTEN.with_borrow(|written| written.first);
    // The extension may have been dropped by the transaction.
    if first.is_some_and(is_late)
        && catalogue::is_there(c"progress")
        && let Err(error) = connected(|| ActiveSnapshot::new_snapshot(|_| stamp_all(now)))
    {
        error.raise();
    }
}

fn stamp_all(now: Moment) -> Result<()> {
    let (states, blocks) = WRITTEN.with_borrow_mut(|written| {
        let states = std::mem::replace(&mut written.states, WrittenRows::NONE);
        (states, std::mem::replace(&mut written.blocks, WrittenRows::NONE))
    });
    for (statement, rows) in [(&STAMP_STATES, states), (&STAMP_BLOCKS, blocks)] {
        let WrittenRows { ids, revisions, moments } = rows;
        if !ids.is_empty() {
            let moments: Vec<At> = moments.into_iter().map(At).collect();
            let args: [Arg; 4] = [arg(ids), arg(revisions), arg(moments), arg(At(now))];
            statement.run(&args);
        }
    }
    Ok(())
}
