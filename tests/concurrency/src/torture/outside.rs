//! The log of a torture as its clients have written it, for the checker `queen-history`, which
//! knows nothing of the broker.

use std::collections::HashMap;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use queen_history::{
    Delivery, Effect, Event, Group, Interval, Outcome, Push, Reads, Released, Settled, Transaction,
};

use super::Report;
use super::conduct::EAGER;
use super::history::{GroupId, History, PushRecord, Stamp, StreamId, Tx, TxId, Unit};
use super::worker::{Shared, stream_name};
use crate::Session;

/// How far the clocks of client and server may be apart, in microseconds.
const SLACK: i64 = 50_000;

/// Write the log, read it again, and have it checked. A log with faults is kept, and can be checked
/// by hand.
pub async fn look(shared: &Shared, history: &History, report: &mut Report) -> Result<()> {
    let started = Instant::now();
    let times = shared.clock.times();
    let txs = history.txs.iter().map(|tx| (tx.id, *tx)).collect();
    let clients = Clients { history, times: &times, txs };
    let mut events = clients.events(shared.config.survives());
    events.extend(effects(shared, history).await?);
    let log = queen_history::write(&events)?;
    let events =
        queen_history::read(&log).map_err(|(line, error)| anyhow!("line {line}: {error}"))?;
    let faults = queen_history::check(&events, SLACK);
    let spent = started.elapsed().as_millis() as u64;
    report.stats.insert("milliseconds to check from outside", spent);
    report.stats.insert("lines of the history", events.len() as u64);
    report.violations.extend(faults.iter().map(|fault| format!("From outside, {fault}")));
    if !faults.is_empty() {
        let file = std::env::temp_dir().join(format!("queen-history-{}.jsonl", report.seed));
        std::fs::write(&file, log).context("keeping the history")?;
        eprintln!("the history with {} faults is in {}", faults.len(), file.display());
    }
    Ok(())
}

/// The effects that are there at the end.
async fn effects(shared: &Shared, history: &History) -> Result<Vec<Event>> {
    let session = Session::open(&shared.target).await?;
    let rows = session.query("SELECT grp, uid FROM torture_effects", &[]).await?;
    let effect = |row: &tokio_postgres::Row| {
        let (group, uid): (i32, i64) = (row.get(0), row.get(1));
        let group = history.groups[group as usize].name.clone();
        Event::Effect(Effect { group, message: uid as u64 })
    };
    Ok(rows.iter().map(effect).collect())
}

/// What the clients saw, and when.
struct Clients<'a> {
    history: &'a History,
    times: &'a [i64],
    txs: HashMap<TxId, Tx>,
}

impl Clients<'_> {
    /// `effects_are_whole`: each ack was in a transaction with its effect.
    fn events(&self, effects_are_whole: bool) -> Vec<Event> {
        let History { groups, pushes, deliveries, completions, releases, .. } = self.history;
        let groups = groups.iter().zip(0..).map(|(group, id)| {
            Event::Group(Group {
                group: group.name.clone(),
                reads: group.registered.map_or(Reads::All, |(from, to)| {
                    Reads::New(Interval(self.at(from), self.at(to)))
                }),
                ordered: !self.history.unordered,
                effects: effects_are_whole && id != EAGER,
            })
        });
        let pushes = pushes.iter().map(|push| Event::Push(self.push(push)));
        let deliveries = deliveries.iter().map(|one| {
            let has_lease = one.group != EAGER;
            Event::Delivery(Delivery {
                group: self.group(one.group),
                key: key(one.stream),
                message: one.uid.into(),
                attempt: one.attempt as u64,
                lease: has_lease.then(|| one.lease.to_string()),
                expires: has_lease.then_some(one.expires),
                pop: one.pop.into(),
                place: one.at.into(),
                call: Interval(self.at(one.began), self.at(one.returned)),
                transaction: self.transaction(one.tx, one.undone, one.returned),
            })
        });
        let settled = completions.iter().map(|one| {
            Event::Settled(Settled {
                group: self.group(one.group),
                message: one.uid.into(),
                outcome: Outcome::Completed,
                lease: one.lease.map(|lease| lease.to_string()),
                call: self.call(one.began, one.tx),
                transaction: self.transaction(one.tx, one.undone, one.began),
            })
        });
        let released = releases.iter().map(|one| {
            let (key, message) = match one.unit {
                Unit::Stream(stream) => (Some(key(stream)), None),
                Unit::Message(uid) => (None, Some(uid.into())),
            };
            Event::Released(Released {
                lease: one.lease.to_string(),
                key,
                message,
                call: self.call(one.began, one.tx),
                transaction: self.transaction(one.tx, one.undone, one.began),
            })
        });
        groups.chain(pushes).chain(deliveries).chain(settled).chain(released).collect()
    }

    fn push(&self, push: &PushRecord) -> Push {
        let undone = push.undone.then_some(push.began);
        Push {
            key: key(push.stream),
            message: push.uid.into(),
            producer: push.producer.into(),
            call: self.call(push.began, push.tx),
            // The messages of one call have ascending numbers.
            place: push.uid.into(),
            transaction: self.transaction(push.tx, undone, push.began),
        }
    }

    fn at(&self, stamp: Stamp) -> i64 {
        self.times[stamp as usize - 1]
    }

    fn group(&self, group: GroupId) -> String {
        self.history.groups[group as usize].name.clone()
    }

    /// A call whose answer was not noted: it had come before the transaction was to end, or with
    /// its end, if the call was the whole transaction.
    fn call(&self, began: Stamp, tx: TxId) -> Interval {
        let answered = self.txs.get(&tx).map_or(began, |tx| match tx.sent > began {
            true => tx.sent,
            false => tx.done.max(began),
        });
        Interval(self.at(began), self.at(answered))
    }

    /// The transaction of a call. One whose end is not known, or that was rolled back to a
    /// savepoint, took nothing with it: it counts as rolled back at this moment.
    fn transaction(&self, id: TxId, undone: Option<Stamp>, since: Stamp) -> Transaction {
        let rolled_back = |at: Stamp| (false, Interval(self.at(at), self.at(at)));
        let (committed, end) = match (undone, self.txs.get(&id)) {
            (Some(at), _) => rolled_back(at),
            (None, None) => rolled_back(since),
            (None, Some(tx)) => (tx.committed, Interval(self.at(tx.sent), self.at(tx.done))),
        };
        Transaction { id: id.into(), committed, end }
    }
}

fn key(stream: StreamId) -> String {
    let (queue, partition) = stream_name(stream);
    format!("{queue}/{partition}")
}
