//! `queen_tx_commit`: settle, push, write markers and set timers, all or nothing. The bundle is
//! read and checked here ([`parse`]), carried out by [`crate::broker::bundle`], and answered
//! ([`answer`]).

mod answer;
mod fields;
mod marker;
mod parse;
mod timer;

use pgrx::prelude::*;

use super::args::{self, Bounds};
use super::call::Call;
use super::json;
use crate::error::Result;
use crate::pg::allocator;
use crate::pg::arrays::UuidArray;
use crate::pg::clock;
use crate::pg::datum::{JsonText, Jsonb};
use crate::pg::result_context::ResultContext;

/// Carry out a bundle inside the caller's transaction, or nothing of it.
///
/// `operations`: `{"type":"ack","leaseId","transactionId"|"messageId"|neither (all),"status"?,
/// "error"?,"partition"?}` and `{"type":"push","queue","payload","partition"?,"transactionId"?,
/// "headers"?}`. `kv`: `{"op":"putIfAbsent"|"put"|"delete"|"incr"|"check"|"get"|"getMany","ns",
/// "key"|"keys",…}`, at most 64 operations and 256 keys, a key written once. `timers`:
/// `{"op":"schedule"|"cancel","queue","timerKey","payload","delayMs"|"deliverAt","partition"?,
/// "transactionId"?,"headers"?}`. `required_leases` must be live, whether or not an ack uses them.
/// All acks of one lease are one set.
///
/// Returns `{"success":true,"results":[…]}` in the order operations, kv, timers; or, with nothing
/// changed, `{"success":false,"reason","error","results":[]}`: kv_precondition (with failedIndex,
/// kvReason, version, value), duplicate (with failedIndex, messageId), lease_expired,
/// lease_superseded, lease_unknown, message_not_in_lease, already_settled, queue_full.
///
/// Errors: 22023 for a malformed or empty bundle, before anything is done; 42704 for an unknown
/// queue when `queen_mq.auto_create` is off; 40001 in REPEATABLE READ.
///
/// Transaction: takes effect when the caller commits.
#[pg_extern]
fn queen_tx_commit(
    call: Call,
    operations: default!(Option<Jsonb>, "'[]'"),
    kv: default!(Option<Jsonb>, "'[]'"),
    timers: default!(Option<Jsonb>, "'[]'"),
    required_leases: default!(Option<UuidArray>, "NULL"),
) -> Option<Jsonb> {
    let answer = call.answer(|| {
        let operations = text("operations", operations, &args::STATEMENTS)?;
        let kv = text("kv", kv, &args::MARKERS)?;
        let timers = text("timers", timers, &args::STATEMENTS)?;
        let mut bundle = parse::parse(
            operations.as_deref().unwrap_or("[]"),
            kv.as_deref().unwrap_or("[]"),
            timers.as_deref().unwrap_or("[]"),
            required_leases,
            clock::now(),
        )?;
        drop((operations, kv, timers));
        allocator::ensure(bundle.size() * answer::OPERATION)?;
        let context = ResultContext::here();
        match call.write(|| Ok(bundle.run(context)))? {
            Ok(results) => answer::success(results),
            Err(error) => answer::refusal(error),
        }
    });
    Jsonb::from_text(answer.get())
}

/// A part of the bundle as text.
fn text(what: &str, part: Option<Jsonb>, bounds: &Bounds) -> Result<Option<JsonText>> {
    part.map(|part| json::text(what, part, bounds)).transpose()
}
