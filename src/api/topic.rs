//! `queen_bind`, `queen_unbind`, `queen_publish`: one message for all queues that a topic concerns.
//! What a publish does is in [`crate::broker::topic`].

use std::rc::Rc;

use pgrx::prelude::*;
use queen_engine::message::DERIVED_MAX;

use super::args;
use super::call::Call;
use super::push::{destination, message};
use crate::broker::push::{Destination, Message};
use crate::broker::topic;
use crate::pg::datum::Jsonb;
use crate::pg::result_rows::TableIterator;

/// Bind `queue` to all topics that `pattern` matches: it gets what is published on them. A topic is
/// words with dots between them. In a pattern the word `*` stands for one word, and `#` for any
/// number of words, also none. A word may be empty. A pattern and a topic have 1..255 bytes without
/// control characters. The queue need not exist: the first publish creates it, as a push does.
///
/// Returns false if the queue was bound to this pattern already.
///
/// Errors: 22023; 42704 for an unknown queue when `queen_mq.auto_create` is off.
///
/// Transaction: other transactions publish to the queue when the caller has committed. Waits for a
/// transaction that is binding this queue to this pattern.
#[pg_extern]
fn queen_bind(call: Call, pattern: Option<&str>, queue: Option<&str>) -> bool {
    call.answer(|| {
        let pattern = args::name("pattern", pattern)?;
        let queue = args::name("queue", queue)?;
        call.write(|| topic::bind(pattern, queue))
    })
}

/// Undo the binding of `queue` to `pattern`. Returns false if there is none.
///
/// Errors: 22023.
///
/// Transaction: takes effect when the caller commits. Waits for a transaction that is undoing this
/// binding.
#[pg_extern]
fn queen_unbind(call: Call, pattern: Option<&str>, queue: Option<&str>) -> bool {
    call.answer(|| {
        let pattern = args::name("pattern", pattern)?;
        let queue = args::name("queue", queue)?;
        call.write(|| topic::unbind(pattern, queue))
    })
}

/// Push a message to each queue that is bound to `topic`, once to each, whatever the number of its
/// bindings that match. The other arguments are those of `queen_push`, and so is what becomes of
/// each message. Returns a row for each queue, in ascending order; none where no queue is bound.
///
/// Errors: as `queen_push`. An error for one queue is an error for all.
///
/// Transaction: as `queen_push_items`. A binding that is not committed is seen by its own
/// transaction alone.
#[pg_extern]
fn queen_publish(
    call: Call,
    topic: Option<&str>,
    payload: Option<Jsonb>,
    partition: default!(Option<&str>, "'Default'"),
    transaction_id: default!(Option<&str>, "NULL"),
    headers: default!(Option<Jsonb>, "NULL"),
) -> TableIterator<
    'static,
    (
        name!(queue, String),
        name!(message_id, Option<i64>),
        name!(transaction_id, String),
        name!(status, &'static str),
    ),
> {
    let pushed = call.answer(|| {
        let topic = args::name("topic", topic)?;
        let Destination { partition, .. } = destination(Some(topic), partition)?;
        let to = |queue: &str| Destination { queue: queue.into(), partition: partition.clone() };
        let message = message(&to(topic), payload, transaction_id, headers)?;
        let to_queue = |queue: &str| Message { to: to(queue), ..message.clone() };
        call.write(|| topic::publish(topic, to_queue))
    });
    TableIterator::new(pushed.into_iter().map(|(queue, pushed): (Rc<str>, _)| {
        let transaction_id = pushed.transaction_id(&mut [0; DERIVED_MAX]).to_owned();
        (queue.to_string(), pushed.message, transaction_id, pushed.status.name())
    }))
}
