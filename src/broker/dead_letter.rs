//! What replay and purge do with dead letters: messages that a group gave up on.
//!
//! Called by `queen_dead_letter_replay`, `_replay_all` and `_purge`. The row of a dead letter is
//! locked by deleting it: of two calls that want one letter, the second waits for the first one's
//! transaction. How a letter comes to be is [`crate::broker::settle`]'s.

use queen_engine::message::MessageId;
use queen_engine::rights::Privilege;

use crate::broker::group::no_such_group;
use crate::broker::hold::share_queue_and_group;
use crate::broker::push::notify;
use crate::broker::{lookup, rights};
use crate::error::{Code, Error, Result};
use crate::pg::clock::{self, Moment};
use crate::pg::snapshot::ActiveSnapshot;
use crate::store::dead_letter::{self, Letter, LetterFilter};
use crate::store::group::{Group, QUEUE_MODE};
use crate::store::queue::Queue;
use crate::store::replay::{self, Replay};
use crate::store::seen_snapshot;
use crate::store::segment::{self, NewSegment};
use crate::wait::waiters::{self, PartitionHash, Topic};

/// Move a dead letter to the tail of its partition, for its own group alone. Returns the new
/// message and its transaction_id. Error 42704 if the letter, its queue or its group is not there.
pub fn replay(id: i64) -> Result<(MessageId, String)> {
    may_replay(id)?;
    take_and_push(id)
}

/// Ids are easy to guess. So a role that may neither manage the letter's queue nor see its dead
/// letters is told that there is no such letter (42704), before its row is locked or waited for.
/// 42501 for a role that may see it.
fn may_replay(id: i64) -> Result<()> {
    rights::require_some(Privilege::Manage)?;
    if rights::sees(Privilege::Manage, None)? {
        return Ok(());
    }
    let queue = ActiveSnapshot::new_snapshot(|under| Ok(dead_letter::queue_of(id, under)))?;
    let queue = queue.ok_or_else(|| no_such_letter(id))?;
    match rights::may(Privilege::Manage, &queue)? {
        true => Ok(()),
        false if rights::may(Privilege::Pop, &queue)? => rights::require(Privilege::Manage, &queue),
        false => Err(no_such_letter(id)),
    }
}

/// Shares the locks under which the group stays as it is, after it has deleted the letter's row.
fn take_and_push(id: i64) -> Result<(MessageId, String)> {
    let letter = dead_letter::take(id).ok_or_else(|| no_such_letter(id))?;
    let (queue, group) = share_queue_and_group(&letter.queue, &letter.group, true)?;
    let queue = queue.ok_or_else(|| Error::no_such_queue(&letter.queue))?;
    let group = group.ok_or_else(|| no_such_group(&letter.queue, &letter.group))?;
    Ok((push_again(&queue, &group, &letter)?, letter.transaction_id))
}

/// [`replay`] for all letters that `filter` means, up to `limit`, the oldest first; returns how
/// many. `enter` runs each step as a call of the extension, with SPI connected, so that one payload
/// at a time is in memory. Error 42704 if the queue, or the group that the filter names, is not
/// there.
///
/// Waits for no other call that replays or purges letters: it skips those that one has locked.
pub fn replay_all(
    filter: &LetterFilter<'_>,
    limit: i64,
    enter: impl Fn(&mut dyn FnMut() -> Result<()>) -> Result<()>,
) -> Result<i64> {
    let mut ids = Vec::new();
    enter(&mut || {
        rights::require(Privilege::Manage, filter.queue)?;
        let name = filter.group.unwrap_or(QUEUE_MODE);
        let (queue, group) = lookup::queue_and_group(filter.queue, name)?;
        queue.ok_or_else(|| Error::no_such_queue(filter.queue))?;
        if filter.group.is_some() && group.is_none() {
            return Err(no_such_group(filter.queue, name));
        }
        ids = hold(filter, limit as usize);
        Ok(())
    })?;
    for id in &ids {
        enter(&mut || take_and_push(*id).map(drop))?;
        pgrx::check_for_interrupts!();
    }
    Ok(ids.len() as i64)
}

/// Lock up to `limit` letters, the oldest first, and go on behind those that others have locked.
fn hold(filter: &LetterFilter<'_>, limit: usize) -> Vec<i64> {
    let mut held: Vec<i64> = Vec::new();
    let mut after = 0;
    loop {
        let missing = limit - held.len();
        let next = dead_letter::next(filter, after, missing as i64);
        after = next.last().copied().unwrap_or(after);
        let is_last = next.len() < missing;
        held.extend(dead_letter::try_lock(next));
        if is_last || held.len() == limit {
            return held;
        }
        pgrx::check_for_interrupts!();
    }
}

/// Push a dead letter again, for its group alone.
fn push_again(queue: &Queue, group: &Group, letter: &Letter) -> Result<MessageId> {
    waiters::touch(Topic::queue(&queue.name), PartitionHash::of(&letter.partition));
    // The transaction id before the segment id: readers rely on this order.
    let xid = seen_snapshot::assign_xid(queue.identity);
    let segment = segment::append(NewSegment {
        queue: queue.id,
        partition: &letter.partition,
        id: None,
        xid,
        created_at: clock::now(),
        payloads: vec![Some(letter.payload)],
        transaction_ids: Some(vec![Some(&letter.transaction_id)]),
        headers: letter.headers.map(|headers| vec![Some(headers)]),
        only_group: Some(group.id),
    });
    let (group, partition) = (group.id, letter.partition.clone());
    let repeats = repeated_by(queue, letter.message)?;
    let replay = Replay { segment, xid, partition, group };
    replay::insert(queue.id, &replay, &letter.transaction_id, repeats);
    notify::announce(queue);
    Ok(MessageId::new(segment, 0))
}

/// The message that the replay of `message` repeats: that one, or, if it was a replay itself, the
/// one that it has repeated.
fn repeated_by(queue: &Queue, message: MessageId) -> Result<MessageId> {
    ActiveSnapshot::new_snapshot(|under| {
        Ok(replay::repeated_by(queue.id, message.segment(), under).unwrap_or(message))
    })
}

fn no_such_letter(id: i64) -> Error {
    Error::new(Code::UndefinedObject, format!("dead letter {id} does not exist"))
        .detail("It has been replayed or purged, or it never existed.")
        .hint("See the view queen_dead_letters.")
}

/// Delete dead letters of the queue: of one group or of all (None), of any age (None) or those that
/// failed before a moment. Returns how many. Waits for transactions that delete one of them.
pub fn purge(queue: &str, group: Option<&str>, before: Option<Moment>) -> Result<i64> {
    rights::require(Privilege::Manage, queue)?;
    Ok(dead_letter::purge(queue, group, before))
}
