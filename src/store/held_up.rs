//! Which cursors of an ordered group hold up what is behind their first message: that one is
//! leased, or has come back and was not settled.
//!
//! A state that is leased or waits for a retry has its moment in an index, and so does one whose
//! first message has come back and can be popped at once. Moments that a search for work has passed
//! are of states that are over, or of partitions that the search has open. So this costs as much as
//! the group has leases and retries, and has given of late; however many partitions and messages
//! there are.

use std::collections::BTreeSet;

use queen_engine::cursor::Cursor;
use queen_engine::discovery::Discovery;

use super::group::Group;
use super::{cursor, progress, signed, unsigned};
use crate::error::Result;
use crate::pg::clock;
use crate::pg::snapshot::ActiveSnapshot;

/// Entries of an index that are read at a time.
const CHUNK: usize = 1000;

/// The partitions that are held up, each with the newest state of its cursor. `searched`: the
/// newest state of the group's search.
pub fn partitions(
    group: &Group,
    searched: &Discovery,
    under: &ActiveSnapshot,
) -> Result<Vec<(String, Cursor)>> {
    let mut ids = by_moment(group.id, searched, under);
    let mut held_up = Vec::new();
    for name in searched.open.iter() {
        if let Some((located, _)) = cursor::status(group.id, &group.start, name, under)? {
            ids.remove(&signed(located.id));
            if located.cursor.head().is_some() {
                held_up.push((located.partition, located.cursor));
            }
        }
        pgrx::check_for_interrupts!();
    }
    for id in ids {
        let state = progress::state_of(unsigned(id), under)?.filter(|state| state.head().is_some());
        let partition = state.as_ref().and_then(|_| cursor::partition_of(id, under));
        held_up.extend(partition.zip(state));
        pgrx::check_for_interrupts!();
    }
    Ok(held_up)
}

/// The ids of cursors that have had a moment which the search has not passed, or have messages that
/// came back.
fn by_moment(group: i64, searched: &Discovery, under: &ActiveSnapshot) -> BTreeSet<i64> {
    let mut ids = BTreeSet::new();
    let mut after = 0;
    loop {
        let some = progress::held_up(group, after, CHUNK, under);
        after = some.last().copied().unwrap_or(after);
        let is_last = some.len() < CHUNK;
        ids.extend(some);
        if is_last {
            break;
        }
        pgrx::check_for_interrupts!();
    }
    let due = searched.due_from(clock::now());
    let mut after = (due.0, signed(due.1));
    loop {
        let some = progress::due(group, after, None, CHUNK, under);
        after = some.last().map_or(after, |(at, cursor, _)| (*at, *cursor));
        let is_last = some.len() < CHUNK;
        ids.extend(some.into_iter().map(|(_, cursor, _)| cursor));
        if is_last {
            return ids;
        }
        pgrx::check_for_interrupts!();
    }
}
