//! Consumer groups: registered and removed, moved to another place in the log, read in another
//! order.
//!
//! Called by the SQL functions about groups, by pops, which register a group at its first, and by
//! `queen_configure` and `queen_purge`. A call that moves or removes a group holds it, as
//! [`crate::broker::hold`] says. Registration holds no more than the name that it registers.

pub mod beginning;
pub mod configure;
pub mod register;
pub mod reorder;
pub mod revoke;
pub mod seek;
pub mod unordered_partition;

use crate::error::{Code, Error};
use crate::store::group::QUEUE_MODE;

/// 42704 for a consumer group, or for queue mode.
pub fn no_such_group(queue: &str, group: &str) -> Error {
    let message = match group {
        QUEUE_MODE => format!("queue \"{queue}\" has not been popped in queue mode"),
        name => format!("consumer group \"{name}\" of queue \"{queue}\" does not exist"),
    };
    Error::new(Code::UndefinedObject, message)
        .detail("No group of this name is registered on the queue.")
        .hint("Groups are registered by their first pop, or by queen_subscribe.")
}
