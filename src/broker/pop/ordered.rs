//! A try of one partition in a group with order: one consumer at a time has the partition, and gets
//! its messages in the order of the log.
//!
//! The partition's cursor says how far the group has read and what is leased. The try reads it
//! without a lock. If there is something to deliver, it locks the cursor's row, or creates the
//! cursor, which is a lock on a new row, and writes the next state. No lock is waited for.

use std::ops::ControlFlow;

use queen_engine::cursor::Readiness;
use queen_engine::pop::Pop;

use super::context::{PopContext, PopLimits, ReadSegments};
use super::run::{PartitionPop, PopRun};
use super::search::PartitionResult;
use crate::error::Result;
use crate::pg::table::RowLocation;
use crate::store::cursor;
use crate::store::cursor_or_claim;
use crate::store::located::Located;
use crate::store::tally;

/// How groups with order pop.
#[derive(Default)]
pub struct OrderedPop;

impl PartitionPop for OrderedPop {
    /// A try reads as many messages as the pop still wants, or may have of the partition, and the
    /// search knows nothing smaller than a partition.
    const ONE_TRY_IS_ALL: bool = true;

    fn locks_one_row(limits: &PopLimits<'_>) -> bool {
        limits.partitions == 1
    }

    fn pop_from(&mut self, run: &mut PopRun<'_>, partition: &str) -> Result<PartitionResult> {
        let messages = match read(run.context, partition, run.missing())? {
            PartitionRead::NoMessage(result) => return Ok(result),
            PartitionRead::Messages(messages) => *messages,
        };
        let ReadMessages { cursor, pop, mut segments } = messages;
        let locked = match cursor {
            Some((located, place)) => run.try_lock(&located, place)?.map_continue(|()| located),
            None => create_cursor(run, partition)?,
        };
        let located = match locked {
            ControlFlow::Continue(located) => located,
            ControlFlow::Break(result) => return Ok(result),
        };
        let log = run.context.log(partition, pop.since());
        run.write_and_deliver(&located, pop, &mut segments.by_id, &log)
    }

    fn peek(context: &PopContext<'_>, partition: &str) -> Result<PartitionResult> {
        Ok(match read(context, partition, context.limits.batch)? {
            PartitionRead::NoMessage(result) => result,
            PartitionRead::Messages(messages) => {
                let place = messages.cursor.as_ref().map(|(_, place)| *place);
                match cursor::is_held(context.group.id, partition, place, context.under) {
                    true => PartitionResult::Locked,
                    // A pop will settle some, and deliver none.
                    false if !messages.pop.delivers_any() => PartitionResult::MovedOn,
                    false => PartitionResult::FOUND,
                }
            }
        })
    }
}

/// What a partition has to deliver, as read without a lock.
enum PartitionRead<'c> {
    /// No message for this pop. The search is told that there is nothing, or nothing but messages
    /// that are too young.
    NoMessage(PartitionResult),
    Messages(Box<ReadMessages<'c>>),
}

struct ReadMessages<'c> {
    /// The cursor and where its row lies; None: the group has not read the partition yet.
    cursor: Option<(Located, RowLocation)>,
    pop: Pop<'c>,
    segments: ReadSegments,
}

/// Read what the partition has for the group: `wanted` messages at most.
fn read<'c>(
    context: &'c PopContext<'_>,
    partition: &str,
    wanted: usize,
) -> Result<PartitionRead<'c>> {
    let PopContext { group, under, .. } = *context;
    let found = cursor::status(group.id, &group.start, partition, under)?;
    let cursor = group.state_in(found.as_ref().map(|(located, _)| located));
    if let Readiness::At(_) = context.readiness(&cursor) {
        return Ok(PartitionRead::NoMessage(PartitionResult::Nothing));
    }
    let log = context.log(partition, cursor.since);
    let mut pop = context.begin(cursor, wanted);
    let segments = context.read_log(&mut pop, &log);
    if pop.found_any() {
        let messages = ReadMessages { cursor: found, pop, segments };
        return Ok(PartitionRead::Messages(Box::new(messages)));
    }
    let too_young = |(segment, xid)| PartitionResult::TooYoung(segment, xid);
    let result = segments.held_back.map_or(PartitionResult::Nothing, too_young);
    Ok(PartitionRead::NoMessage(result))
}

/// Create the cursor of a partition that the group has not read yet, under shares of `first_reads`.
/// A transaction that has created a cursor keeps the shares to its end, also where it then finds
/// that messages have been removed and delivers none. One that has created none gives them back.
/// `Break`: the pop gets nothing from the partition, and this is what the search is told.
fn create_cursor(
    run: &mut PopRun<'_>,
    partition: &str,
) -> Result<ControlFlow<PartitionResult, Located>> {
    let PopContext { queue, group, under, .. } = *run.context;
    if !cursor::try_share_first_reads(queue.id, group.id) {
        return Ok(ControlFlow::Break(PartitionResult::Locked));
    }
    if !run.check_current()? {
        cursor::give_back_first_reads(queue.id, group.id);
        return Ok(ControlFlow::Break(PartitionResult::MovedOn));
    }
    let Some(located) = cursor::try_create_with_shares(group.id, partition)? else {
        cursor::give_back_first_reads(queue.id, group.id);
        return Ok(ControlFlow::Break(PartitionResult::Locked));
    };
    // The new cursor knows nothing of messages that a sweep or a purge has removed since the pop's
    // snapshot. From here on neither removes any: a purge waits for the shares that this
    // transaction holds, and a sweep creates a missing cursor before it removes messages that the
    // group has not read.
    if !tally::is_as_seen(queue.id, under)? {
        cursor_or_claim::moved_on(|| format!("The log of queue \"{}\"", queue.name))?;
        return Ok(ControlFlow::Break(PartitionResult::MovedOn));
    }
    Ok(ControlFlow::Continue(located))
}
