//! A bundle: markers written, leases settled, messages pushed, timers set, all or nothing.
//!
//! `api::bundle` parses and checks a bundle, and answers it; [`Bundle::run`] carries it out inside
//! an SPI connection, in a subtransaction. A refusal undoes the subtransaction and is returned as
//! an error, and the caller's transaction lives on.
//!
//! **Lock order.** Every bundle locks in this order, whatever the order of its operations:
//!
//! 1. rows of markers, ascending by namespace and key;
//! 2. rows of the cursors and claims of all its leases, ascending;
//! 3. transaction_ids that it pushes, by destinations ascending;
//! 4. timers, ascending by queue and key.
//!
//! So of two bundles only one waits for the other, with one exception. A queue that is not there
//! yet is created where a push or a timer first needs it. Two bundles that create two queues, one
//! by a push and one by a timer, each the other way round, may deadlock: PostgreSQL ends one of
//! them with 40P01. Within each step, a bundle may wait for a transaction that has locked the row.
//! Markers are read at the end, without a lock, and show what the bundle has written.
//!
//! Each operation asks for the privilege that it would ask for by itself. Where that is missing,
//! the bundle is error 42501.

use std::collections::{BTreeMap, HashSet};

use queen_engine::kv::Name;
use queen_engine::lease::LeaseId;
use queen_engine::message::DERIVED_MAX;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use crate::broker::marker::{self, MarkerOutcome, MarkerWrite};
use crate::broker::push::{Message, Pushed, push};
use crate::broker::settle::{self, SettleItem, settle_lease};
use crate::broker::timer::{self, Scheduled};
use crate::error::{Code, Error, Result};
use crate::pg::clock::{self, Moment};
use crate::pg::datum::Jsonb;
use crate::pg::result_context::ResultContext;
use crate::pg::subtransaction::all_or_nothing;
use crate::store::marker::LiveMarker;

/// Checked operations. The number of each is its place among all of them.
#[derive(Default)]
pub struct Bundle {
    /// All acks of one lease are one settlement.
    pub acks: BTreeMap<LeaseId, Vec<(usize, SettleItem)>>,
    pub pushes: Vec<(usize, Message)>,
    /// For each marker at most one write; there may be checks of it as well.
    pub writes: Vec<(usize, NamedWrite)>,
    pub reads: Vec<(usize, NamedRead)>,
    /// At most one for each timer.
    pub timers: Vec<(usize, NamedTimer)>,
    /// Leases that must be live.
    pub required: Vec<LeaseId>,
    /// The moment of the call.
    pub now: Moment,
}

/// A write on a marker; or a check, which writes nothing, and is refused as a write would be.
pub struct NamedWrite {
    pub ns: String,
    pub key: String,
    /// What the bundle calls it.
    pub label: &'static str,
    pub write: MarkerWrite,
    /// The bundle is refused if this is.
    pub required: bool,
}

/// A look-up of markers.
pub enum NamedRead {
    Get { ns: String, key: String },
    GetMany { ns: String, keys: Vec<String> },
}

/// What becomes of a timer.
pub enum NamedTimer {
    Schedule { key: String, message: Message, deliver_at: Moment },
    Cancel { queue: String, key: String },
}

impl NamedTimer {
    /// Its queue and its key.
    pub fn name(&self) -> (&str, &str) {
        match self {
            NamedTimer::Schedule { key, message, .. } => (&message.to.queue, key),
            NamedTimer::Cancel { queue, key } => (queue, key),
        }
    }
}

/// What an operation came to.
pub enum OperationResult<'a> {
    /// An ack: how many messages it settled, found settled before, and sent to the dead letters;
    /// and whether nothing of the lease is left.
    Settled {
        lease: LeaseId,
        counts: (i32, i32, i32),
        released: bool,
    },
    Pushed {
        message: &'a Message,
        pushed: Pushed,
    },
    Written {
        write: &'a NamedWrite,
        outcome: MarkerOutcome,
    },
    Got {
        key: &'a str,
        marker: Option<LiveMarker>,
    },
    GotMany {
        keys: &'a [String],
        markers: Vec<Option<LiveMarker>>,
    },
    Scheduled {
        timer: &'a NamedTimer,
        scheduled: Scheduled,
    },
    /// With the transaction_id and the moment of the timer, if there was one.
    Cancelled {
        timer: &'a NamedTimer,
        found: Option<(String, Moment)>,
    },
}

impl Bundle {
    /// The number of operations.
    pub fn size(&self) -> usize {
        let acks: usize = self.acks.values().map(Vec::len).sum();
        acks + self.pushes.len() + self.writes.len() + self.reads.len() + self.timers.len()
    }

    /// Carry out everything; returns what became of each operation, in their order. Values of
    /// markers are copied to `context`.
    ///
    /// On an error nothing has been done. Errors of which a bundle's answer tells have facts for
    /// it.
    pub fn run(&mut self, context: ResultContext) -> Result<Vec<OperationResult<'_>>> {
        self.bring_in_lock_order();
        let this = &*self;
        all_or_nothing(|| {
            let mut run = Run { bundle: this, context, results: Vec::new() };
            run.results.resize_with(this.size(), || None);
            run.write_markers()?;
            run.lock_leases()?;
            run.settle()?;
            run.push()?;
            run.set_timers()?;
            run.read_markers()?;
            Ok(run.results.into_iter().flatten().collect())
        })
    }

    /// Leases are in order already, and a push brings its destinations in order itself.
    fn bring_in_lock_order(&mut self) {
        let name = |write: &NamedWrite| (write.ns.clone(), write.key.clone());
        let is_written = |(_, write): &&(usize, NamedWrite)| !write.write.is_check();
        let written: HashSet<_> =
            self.writes.iter().filter(is_written).map(|(_, write)| name(write)).collect();
        for (_, check) in &mut self.writes {
            if written.contains(&name(check)) {
                check.write.lock_for_write();
            }
        }
        // Stable: a check and a write of one marker stay in their order.
        self.writes.sort_by(|(_, a), (_, b)| (&a.ns, &a.key).cmp(&(&b.ns, &b.key)));
        self.timers.sort_by(|(_, a), (_, b)| a.name().cmp(&b.name()));
    }
}

/// A bundle that is being carried out.
struct Run<'a> {
    bundle: &'a Bundle,
    context: ResultContext,
    /// By the numbers of the operations; None for those that have not been carried out yet.
    results: Vec<Option<OperationResult<'a>>>,
}

impl Run<'_> {
    fn write_markers(&mut self) -> Result<()> {
        for (at, write) in &self.bundle.writes {
            let name = Name::new(&write.ns, &write.key)?;
            let outcome = write.write.run(name, self.bundle.now, self.context)?;
            if write.required && !outcome.applied {
                let facts = vec![
                    ("failedIndex", json(at)?),
                    ("kvReason", json(outcome.reason.map(|reason| reason.as_str()))?),
                    ("version", json(outcome.version)?),
                    ("value", json_of(outcome.value)?),
                ];
                return Err(outcome.precondition(name).facts(facts));
            }
            self.results[*at] = Some(OperationResult::Written { write, outcome });
        }
        Ok(())
    }

    /// Lock every cursor and claim of every lease; then see that the required leases are live.
    fn lock_leases(&self) -> Result<()> {
        let bundle = self.bundle;
        let leases: HashSet<LeaseId> =
            bundle.acks.keys().copied().chain(bundle.required.iter().copied()).collect();
        settle::lock_leases(leases)?;
        bundle.required.iter().try_for_each(|lease| settle::require_live(*lease))
    }

    fn settle(&mut self) -> Result<()> {
        for (&lease, acks) in &self.bundle.acks {
            let items: Vec<SettleItem> = acks.iter().map(|(_, item)| item.clone()).collect();
            let report = settle_lease(lease, &items, false)?;
            let released = report.released;
            for (item, (at, _)) in acks.iter().enumerate() {
                let counts = report.counts(|i| i == item);
                self.results[*at] = Some(OperationResult::Settled { lease, counts, released });
            }
        }
        Ok(())
    }

    fn push(&mut self) -> Result<()> {
        let messages: Vec<&Message> =
            self.bundle.pushes.iter().map(|(_, message)| message).collect();
        for ((at, message), pushed) in self.bundle.pushes.iter().zip(push(&messages)?) {
            if pushed.was_stored_before {
                let mut room = [0; DERIVED_MAX];
                let id = pushed.transaction_id(&mut room);
                return Err(Error::new(
                    Code::Duplicate,
                    format!("transaction_id \"{id}\" has been pushed before"),
                )
                .facts(vec![("failedIndex", json(at)?), ("messageId", json(pushed.message)?)]));
            }
            self.results[*at] = Some(OperationResult::Pushed { message, pushed });
        }
        Ok(())
    }

    fn set_timers(&mut self) -> Result<()> {
        for (at, timer) in &self.bundle.timers {
            self.results[*at] = Some(match timer {
                NamedTimer::Schedule { key, message, deliver_at } => {
                    let scheduled = timer::schedule(key, message, *deliver_at)?;
                    OperationResult::Scheduled { timer, scheduled }
                }
                NamedTimer::Cancel { queue, key } => {
                    OperationResult::Cancelled { timer, found: timer::cancel(queue, key)? }
                }
            });
        }
        Ok(())
    }

    fn read_markers(&mut self) -> Result<()> {
        let now = clock::now();
        for (at, read) in &self.bundle.reads {
            self.results[*at] = Some(match read {
                NamedRead::Get { ns, key } => {
                    let marker = marker::get(Name::new(ns, key)?, now, self.context)?;
                    OperationResult::Got { key, marker }
                }
                NamedRead::GetMany { ns, keys } => {
                    let names = keys.iter().map(String::as_str).collect();
                    let markers = marker::get_many(ns, names, now, self.context)?;
                    OperationResult::GotMany { keys, markers }
                }
            });
        }
        Ok(())
    }
}

/// A piece of JSON text.
pub type Json = Box<RawValue>;

/// As JSON.
pub fn json<T: Serialize>(value: T) -> Result<Json> {
    to_raw_value(&value).map_err(|error| Error::corrupt(error.to_string()))
}

/// A stored value as the JSON text that it is, digit for digit; null for none.
pub fn json_of(value: Option<Jsonb>) -> Result<Json> {
    match value {
        None => json(()),
        Some(value) => RawValue::from_string(value.to_text().to_owned())
            .map_err(|_| Error::corrupt("a jsonb value is not JSON")),
    }
}
