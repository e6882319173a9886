//! Which partitions of ordered groups stand behind a message that is leased or has come back: the
//! rows of the view `queen_blocked`. What that costs is said in [`crate::store::held_up`].

use queen_engine::message::MessageId;
use queen_engine::open::OpenMessage;

use crate::broker::lookup;
use crate::broker::message_status::MessageState;
use crate::error::Result;
use crate::pg::clock;
use crate::pg::scratch::Scratch;
use crate::pg::snapshot::ActiveSnapshot;
use crate::store::segment::name_of;
use crate::store::{discovery, group, held_up};

/// A partition, and the message that the others of it wait for.
pub struct BlockedPartition {
    pub partition: String,
    pub message: MessageId,
    pub transaction_id: String,
    /// Leased or retrying.
    pub state: MessageState,
    pub open: OpenMessage,
    pub failures: u32,
    pub last_error: Option<String>,
}

/// Those of the group of this queue and name: none in a group without order.
pub fn of_group(queue: &str, name: &str, under: &ActiveSnapshot) -> Result<Vec<BlockedPartition>> {
    let found = lookup::find_queue(queue, under)?.zip(group::find(queue, name, under)?);
    let found = found.filter(|(queue, group)| group.is_ordered(&queue.options));
    let Some((queue, group)) = found else { return Ok(Vec::new()) };
    let (_, searched) = discovery::newest(group.id, under)?.unwrap_or_default();
    let (now, void_before) = (clock::now(), queue.identity.void_before);
    let scratch = Scratch::new();
    let mut blocked = Vec::new();
    for (partition, cursor) in held_up::partitions(&group, &searched, under)? {
        let Some(message) = cursor.head() else { continue };
        let Some(open) = cursor.open_message(message, now, void_before) else { continue };
        let name = scratch.run(|| name_of(queue.id, &partition, message, under));
        blocked.push(BlockedPartition {
            partition,
            message,
            transaction_id: name.unwrap_or_else(|| message.derived_transaction_id()),
            state: match open.leased_until {
                Some(_) => MessageState::Leased,
                None => MessageState::Retrying,
            },
            open,
            failures: cursor.failures.of(message),
            last_error: cursor.failures.last_error(message).map(str::to_owned),
        });
        pgrx::check_for_interrupts!();
    }
    Ok(blocked)
}
