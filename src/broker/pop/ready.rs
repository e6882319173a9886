//! Whether there is something to pop: a look of `queen_wait`.

use crate::broker::group::beginning::Mode;
use crate::broker::group::register::Registration;
use crate::broker::lookup;
use crate::broker::pop::{Taking, Wanted, request};
use crate::error::{Error, Result};
use crate::pg::clock::{self, Moment};
use crate::pg::result_context::ResultContext;
use crate::pg::spi::ActiveSnapshot;
use crate::settings;
use crate::store::timer;

/// What a look found.
pub struct Look {
    pub is_ready: bool,
    /// The group's id.
    pub group: Option<i64>,
    /// When something may be there by itself.
    pub next: Option<Moment>,
}

/// Register the group unless it exists, and look whether there is a message for it. Takes nothing.
pub fn look_for(queue_name: &str, group_name: &str) -> Result<Look> {
    let mut found = lookup::for_pop(queue_name, group_name)?;
    if found.queue.is_none() && !settings::auto_create() {
        return Err(Error::no_such_queue(queue_name));
    }
    if found.group.is_none() {
        let (queue, identity) = (found.queue.as_ref(), found.identity()?);
        Registration::prepare(group_name, queue, Mode::New, identity)?
            .write_into(&mut found, queue_name, group_name)?;
    }
    let (queue, group) = match (&found.queue, &found.group) {
        (Some(queue), Some(group)) => (queue, group),
        (_, group) => {
            let group = group.as_ref().map(|group| group.id);
            return Ok(Look { is_ready: false, group, next: None });
        }
    };
    ActiveSnapshot::new_snapshot(|under| {
        // Due, and in nobody's hands.
        let is_due =
            found.has_due_timer() && !timer::hold_due(queue.id, clock::now(), 1).is_empty();
        let wanted =
            Wanted { batch: 1, partition: None, partitions: 1, lease_time: None, auto_ack: false };
        let take = Taking::new(&wanted, queue, group, &found.discovery, ResultContext::here());
        let is_ready = is_due || take.peek(under)?;
        let next = request::next_moment(&found, under);
        Ok(Look { is_ready, group: Some(group.id), next })
    })
}
