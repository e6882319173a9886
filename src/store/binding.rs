//! `queen_mq.binding`: which queues get what is published on which topics.

use pgrx::pg_sys;

use crate::pg::catalogue;
use crate::pg::columns::{Columns, arg};
use crate::pg::relation;
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::spi::Statement;
use crate::pg::table::table;

table! {
    BINDINGS = c"binding";
    PATTERN: c"pattern" TEXTOID,
    QUEUE: c"queue" TEXTOID,
}

static ALL: Statement = Statement::new("SELECT pattern, queue FROM queen_mq.binding", &[]);

/// All bindings: pairs of a pattern and a queue.
pub fn all(under: &ActiveSnapshot) -> Vec<(String, String)> {
    ALL.read(&[], under).map(|row| (row.need(PATTERN), row.need(QUEUE))).collect()
}

static EXISTS: Statement = Statement::new(
    "SELECT FROM queen_mq.binding WHERE pattern = $1 AND queue = $2",
    &[pg_sys::TEXTOID, pg_sys::TEXTOID],
);

fn exists(pattern: &str, queue: &str) -> bool {
    EXISTS.run(&[arg(pattern), arg(queue)]).affected() > 0
}

static INSERT: Statement = Statement::new(
    "INSERT INTO queen_mq.binding (pattern, queue) VALUES ($1, $2)
     ON CONFLICT (pattern, queue) DO NOTHING",
    &[pg_sys::TEXTOID, pg_sys::TEXTOID],
);

/// Bind the queue to the pattern. False if it was bound so already. Waits for a transaction that is
/// binding it so.
pub fn insert(pattern: &str, queue: &str) -> bool {
    if exists(pattern, queue) {
        return false;
    }
    catalogue::announce();
    let is_new = INSERT.run(&[arg(pattern), arg(queue)]).affected() > 0;
    if !is_new && !exists(pattern, queue) {
        relation::refuse_suppression(&BINDINGS);
    }
    is_new
}

static DELETE: Statement = Statement::new(
    "DELETE FROM queen_mq.binding WHERE pattern = $1 AND queue = $2",
    &[pg_sys::TEXTOID, pg_sys::TEXTOID],
);

/// Undo a binding. False if there is none. Waits for a transaction that is undoing it.
pub fn delete(pattern: &str, queue: &str) -> bool {
    if !exists(pattern, queue) {
        return false;
    }
    catalogue::announce();
    DELETE.run(&[arg(pattern), arg(queue)]).affected() > 0
}

static DELETE_OF_QUEUE: Statement =
    Statement::new("DELETE FROM queen_mq.binding WHERE queue = $1", &[pg_sys::TEXTOID]);

/// Undo all bindings of a queue. Waits for transactions that are undoing one.
pub fn delete_of_queue(queue: &str) {
    catalogue::announce();
    DELETE_OF_QUEUE.run(&[arg(queue)]);
}
