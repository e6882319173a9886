//! `queen_tx_commit`: settle, push and write markers, all or nothing.
//!
//! The bundle is read and checked first. Then, in a subtransaction, locks are taken in one order
//! that all bundles share: markers ascending by (ns, key), cursors ascending, then appends. A
//! refusal undoes the subtransaction and is returned; the caller's transaction lives on.

mod answer;
mod parse;
mod timer;

use std::collections::{BTreeMap, HashSet};

use pgrx::prelude::*;
use queen_engine::kv::Name;
use queen_engine::lease::LeaseId;

use self::answer::{Json, json, stored};
use self::timer::{Timer, timed};
use super::args;
use super::call::Call;
use crate::broker::marker::MarkerWrite;
use crate::broker::push::{Message, push};
use crate::broker::settle::{self, SettleItem, settle_lease};
use crate::broker::timer as broker_timer;
use crate::error::{Code, Error, Result};
use crate::pg::allocator;
use crate::pg::clock::{self, Moment};
use crate::pg::datum::{Jsonb, ResultContext, UuidArray};
use crate::pg::raise::OrRaise;
use crate::pg::subtransaction::all_or_nothing;
use crate::store::cursor;
use crate::store::marker;

/// Carry out a bundle inside the caller's transaction, or nothing of it.
///
/// `operations`: `{"type":"ack","leaseId","transactionId"|"messageId"|neither (all),"status"?,
/// "error"?,"partition"?}` and `{"type":"push","queue","payload","partition"?,"transactionId"?,
/// "headers"?}`. `kv`: `{"op":"putIfAbsent"|"put"|"delete"|"incr"|"check"|"get"|"getMany","ns",
/// "key"|"keys",…}`, at most 64 operations and 256 keys, a key written once. `timers`:
/// `{"op":"schedule"|"cancel","queue","timerKey","payload","delayMs"|"deliverAt","partition"?,
/// "transactionId"?,"headers"?}`. `required_leases` must be live, whether or not an ack uses them. All
/// acks of one lease are one set.
///
/// Returns `{"success":true,"results":[…]}` in the order operations, kv, timers; or, with nothing changed,
/// `{"success":false,"reason","error","results":[]}`: kv_precondition (with failedIndex, kvReason,
/// version, value), duplicate (with failedIndex, messageId), lease_expired, lease_superseded,
/// lease_unknown, message_not_in_lease, already_settled, queue_full.
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
    let answer = (|| {
        let text = |what, part: Option<Jsonb>, bounds| {
            part.map(|part| super::json::text(what, part, bounds)).transpose()
        };
        let operations = text("operations", operations, &args::STATEMENTS)?;
        let kv = text("kv", kv, &args::MARKERS)?;
        let timers = text("timers", timers, &args::STATEMENTS)?;
        let bundle = Bundle::parse(
            operations.as_deref().unwrap_or("[]"),
            kv.as_deref().unwrap_or("[]"),
            timers.as_deref().unwrap_or("[]"),
            required_leases,
            clock::now(),
        )?;
        drop((operations, kv, timers));
        call.need_writable()?;
        let results = all_or_nothing(|| call.read(|| bundle.carry_out()));
        match results {
            Ok(results) => answer::success(results),
            Err(error) => answer::refusal(error),
        }
    })()
    .or_raise();
    Jsonb::from_text(answer.get())
}

/// Bytes of one operation's answer, apart from markers' values: twice, as it also becomes text.
const ANSWER: usize = 4096;

/// A checked bundle. Numbers are places in the order of results.
#[derive(Default)]
struct Bundle {
    acks: BTreeMap<LeaseId, Vec<(usize, SettleItem)>>,
    pushes: Vec<(usize, Message)>,
    writes: Vec<(usize, Marker)>,
    reads: Vec<(usize, Lookup)>,
    timers: Vec<(usize, Timer)>,
    required: Vec<LeaseId>,
    size: usize,
    /// The moment of the call.
    now: Moment,
}

/// A write on a marker.
struct Marker {
    ns: String,
    key: String,
    label: &'static str,
    op: MarkerWrite,
    required: bool,
}

/// A read of markers: one key, or several.
enum Lookup {
    Get(String, String),
    GetMany(String, Vec<String>),
}

impl Bundle {
    fn carry_out(&self) -> Result<Vec<Json>> {
        allocator::ensure(self.size * ANSWER)?;
        let mut results = vec![json(())?; self.size];
        self.write_markers(&mut results)?;
        self.lock_leases()?;
        self.settle(&mut results)?;
        self.push(&mut results)?;
        self.set_timers(&mut results)?;
        self.read_markers(&mut results)?;
        Ok(results)
    }

    fn write_markers(&self, results: &mut [Json]) -> Result<()> {
        for (at, marker) in &self.writes {
            let name = Name::new(&marker.ns, &marker.key)?;
            let outcome = marker.op.run(name, self.now, ResultContext::here())?;
            if marker.required && !outcome.applied {
                let facts = vec![
                    ("failedIndex", json(at)?),
                    ("kvReason", json(outcome.reason.map(|reason| reason.as_str()))?),
                    ("version", json(outcome.version)?),
                    ("value", stored(outcome.value)?),
                ];
                return Err(outcome.precondition(name).facts(facts));
            }
            results[*at] = answer::written(*at, marker, &outcome)?;
        }
        Ok(())
    }

    /// Every cursor of every lease, in one ascending order; then see that the required ones live.
    fn lock_leases(&self) -> Result<()> {
        let leases: HashSet<LeaseId> =
            self.acks.keys().copied().chain(self.required.iter().copied()).collect();
        let mut cursors = Vec::new();
        for lease in leases {
            cursors.extend(settle::cursors_of(lease)?);
        }
        cursors.sort_unstable();
        cursors.dedup();
        cursor::lock_unsettled(&cursors)?;
        self.required.iter().try_for_each(|lease| settle::require_live(*lease))
    }

    fn settle(&self, results: &mut [Json]) -> Result<()> {
        for (lease, acks) in &self.acks {
            let items: Vec<SettleItem> = acks.iter().map(|(_, item)| item.clone()).collect();
            let report = settle_lease(*lease, &items, false)?;
            for (item, (at, _)) in acks.iter().enumerate() {
                results[*at] = answer::acked(*at, *lease, &report, item)?;
            }
        }
        Ok(())
    }

    fn push(&self, results: &mut [Json]) -> Result<()> {
        let messages: Vec<&Message> = self.pushes.iter().map(|(_, message)| message).collect();
        for ((at, message), pushed) in self.pushes.iter().zip(push(&messages)?) {
            if pushed.was_stored_before {
                let id = &pushed.transaction_id;
                return Err(Error::new(
                    Code::Duplicate,
                    format!("transaction_id \"{id}\" has been pushed before"),
                )
                .facts(vec![("failedIndex", json(at)?), ("messageId", json(pushed.message)?)]));
            }
            results[*at] = answer::appended(*at, message, &pushed)?;
        }
        Ok(())
    }

    /// In the order of their names, in which every bundle locks timers.
    fn set_timers(&self, results: &mut [Json]) -> Result<()> {
        let mut timers: Vec<_> = self.timers.iter().collect();
        timers.sort_by(|(_, a), (_, b)| a.name().cmp(&b.name()));
        for (at, timer) in timers {
            results[*at] = match timer {
                Timer::Schedule { key, message, deliver_at } => {
                    let set = broker_timer::schedule(key, message, *deliver_at)?;
                    let status = if set.is_new { "scheduled" } else { "rescheduled" };
                    timed(*at, timer, status, Some((&set.transaction_id, set.deliver_at)))?
                }
                Timer::Cancel { queue, key } => {
                    let found = broker_timer::cancel(queue, key)?;
                    let status = if found.is_some() { "cancelled" } else { "absent" };
                    let found = found.as_ref().map(|(id, deliver_at)| (id.as_str(), *deliver_at));
                    timed(*at, timer, status, found)?
                }
            };
        }
        Ok(())
    }

    fn read_markers(&self, results: &mut [Json]) -> Result<()> {
        let now = clock::now();
        let context = ResultContext::here();
        for (at, lookup) in &self.reads {
            results[*at] = match lookup {
                Lookup::Get(ns, key) => {
                    let held = marker::get(Name::new(ns, key)?, now, context);
                    answer::looked_up(*at, key, held)?
                }
                Lookup::GetMany(ns, keys) => {
                    let names = keys.iter().map(String::as_str).collect();
                    answer::looked_up_many(*at, keys, marker::get_many(ns, names, now, context))?
                }
            };
        }
        Ok(())
    }
}
