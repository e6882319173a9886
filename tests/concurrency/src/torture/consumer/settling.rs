//! How a consumer settles what it holds: whole, in part, too late, again, or not at all.

use anyhow::Result;
use rand::RngExt;
use serde_json::json;
use tokio_postgres::Error;

use super::Consumer;
use crate::queen::{Ack, Settled, settle};
use crate::torture::history::{Completion, Release, TxId, Unit};
use crate::torture::lease::{Lease, State};

/// What to do with a lease in one transaction.
#[derive(Clone, Copy)]
enum Step {
    All,
    Some,
    GiveBack(&'static str),
    Mixed,
    Repeat,
}

impl Consumer {
    /// Do something with the lease that the consumer holds.
    pub(super) async fn settle_some(&mut self) -> Result<bool, Error> {
        let Some(lease) = self.lease.clone() else { return Ok(false) };
        let kind = if self.gentle() { 0 } else { self.worker.rng.random_range(0..100) };
        if lease.brief && kind < 60 && !self.gentle() {
            return self.let_it_expire(lease).await;
        }
        match kind {
            0..35 => self.in_transaction(lease, Step::All).await,
            35..60 => self.in_transaction(lease, Step::Some).await,
            60..68 => self.in_transaction(lease, Step::GiveBack("failed")).await,
            68..74 => self.in_transaction(lease, Step::GiveBack("retry")).await,
            74..82 => self.in_transaction(lease, Step::Mixed).await,
            82..88 => self.in_transaction(lease, Step::Repeat).await,
            88..94 => self.complete_and_pop(lease).await,
            _ => self.complete_alone(lease).await,
        }
    }

    /// Let the lease expire and ack then. The ack must fail, also when another consumer holds the
    /// messages by then.
    async fn let_it_expire(&mut self, lease: Lease) -> Result<bool, Error> {
        self.worker.nap(700.0).await;
        let sql = "SELECT clock_timestamp() > $1";
        let expired: bool = self.worker.session.row(sql, &[&lease.expires]).await?.get(0);
        self.worker.answered();
        if !expired {
            return Ok(false);
        }
        self.worker.count("leases expired", 1);
        if self.worker.chance(0.5) {
            self.lease = None;
            return Ok(false);
        }
        let mut late = lease.clone();
        let tx = self.worker.begin("BEGIN").await?;
        self.complete(&mut late, tx, None).await?;
        self.worker.anomalies.push(format!("an ack succeeded after {lease:?} had expired"));
        self.worker.rollback().await?;
        self.lease = None;
        Ok(false)
    }

    /// Take one step of settling in a transaction of its own, together with the effect of what it
    /// completes.
    async fn in_transaction(&mut self, lease: Lease, step: Step) -> Result<bool, Error> {
        let tx = self.worker.begin("BEGIN").await?;
        let mut after = lease.clone();
        if !self.gentle() && self.worker.chance(0.1) {
            self.worker.run("SAVEPOINT ack").await?;
            let marks = (self.worker.log.completions.len(), self.worker.log.releases.len());
            let mut undone = lease.clone();
            let before = self.completed;
            self.complete(&mut undone, tx, None).await?;
            self.completed = before;
            let now = self.worker.tick();
            self.worker.run("ROLLBACK TO SAVEPOINT ack").await?;
            for one in &mut self.worker.log.completions[marks.0..] {
                one.undone = Some(now);
            }
            for one in &mut self.worker.log.releases[marks.1..] {
                one.undone = Some(now);
            }
            self.worker.count("acks undone", 1);
        }
        match step {
            Step::All => self.complete(&mut after, tx, None).await?,
            Step::Some => {
                let some = after.some_open(&mut self.worker.rng);
                self.complete(&mut after, tx, Some(some)).await?;
            }
            Step::GiveBack(status) => self.give_back(&mut after, tx, status).await?,
            Step::Mixed => self.settle_mixed(&mut after, tx).await?,
            Step::Repeat => self.repeat(&after).await?,
        }
        if !self.gentle() && self.worker.chance(0.08) {
            self.worker.rollback().await?;
            self.worker.count("acks rolled back", 1);
            return Ok(false);
        }
        self.next = Some(after);
        self.worker.commit().await?;
        Ok(true)
    }

    /// Complete the last batch and pop the next one in one transaction.
    async fn complete_and_pop(&mut self, mut lease: Lease) -> Result<bool, Error> {
        let tx = self.worker.begin("BEGIN").await?;
        self.complete(&mut lease, tx, None).await?;
        self.next = self.pop(tx).await?;
        self.worker.count("acks and pops in one transaction", u64::from(self.next.is_some()));
        self.worker.commit().await?;
        Ok(true)
    }

    /// Ack without a transaction block. Where connections are cut it cannot be found out later
    /// whether the ack took effect, so there it gets a transaction.
    async fn complete_alone(&mut self, lease: Lease) -> Result<bool, Error> {
        if self.worker.shared.config.survives() {
            return self.in_transaction(lease, Step::All).await;
        }
        let mut after = lease;
        let all = after.open();
        let tx = self.worker.begin_single();
        let began = self.worker.tick();
        let settled = Ack::all(after.id).run(&self.worker.session).await?;
        self.worker.end_single();
        self.completed_now(&mut after, tx, began, &all, settled);
        self.worker.count("effects not recorded", all.len() as u64);
        self.next = Some(after);
        Ok(true)
    }

    /// Complete some messages of a lease, or all that are open, and record the effect.
    pub(super) async fn complete(
        &mut self,
        lease: &mut Lease,
        tx: TxId,
        some: Option<Vec<usize>>,
    ) -> Result<(), Error> {
        let which = some.clone().unwrap_or_else(|| lease.open());
        let uids: Vec<i64> = which.iter().map(|n| i64::from(lease.messages[*n].uid)).collect();
        let sql = "INSERT INTO torture_effects SELECT $1, unnest($2::bigint[])";
        self.worker.session.rows(sql, &[&(self.group as i32), &uids]).await?;
        self.worker.answered();
        let ack = match some {
            None => Ack::all(lease.id),
            Some(some) if self.worker.chance(0.5) => {
                Ack::messages(lease.id, some.iter().map(|n| lease.messages[*n].message_id))
            }
            Some(some) => {
                let named = some.iter().map(|n| &lease.messages[*n]);
                Ack::ids(lease.id, named.map(|one| one.transaction_id.clone()))
            }
        };
        let began = self.worker.tick();
        let settled = ack.run(&self.worker.session).await?;
        self.worker.answered();
        self.completed_now(lease, tx, began, &which, settled);
        Ok(())
    }

    fn completed_now(
        &mut self,
        lease: &mut Lease,
        tx: TxId,
        began: u64,
        which: &[usize],
        settled: Settled,
    ) {
        let (group, before) = (self.group, lease.clone());
        for n in which {
            let (uid, lease) = (lease.messages[*n].uid, Some(lease.id));
            let completion = Completion { group, uid, lease, tx, began, undone: None };
            self.worker.log.completions.push(completion);
        }
        self.completed += which.len() as u64;
        let over = lease.complete(which);
        self.released(lease, tx, began, over);
        let expected = Settled {
            settled: which.len() as i32,
            already: 0,
            dead_lettered: 0,
            lease_released: lease.is_over(),
        };
        // An ack of everything may also report messages that had been completed before: the
        // contract leaves that open. An ack by name names open messages only.
        if (Settled { already: 0, ..settled }) != expected {
            let text = format!("completing {which:?} of {before:?} gave {settled:?}");
            self.worker.anomalies.push(text);
        }
    }

    fn released(
        &mut self,
        lease: &Lease,
        tx: TxId,
        began: u64,
        units: impl IntoIterator<Item = Unit>,
    ) {
        let all = units.into_iter().map(|unit| Release {
            lease: lease.id,
            unit,
            tx,
            began,
            undone: None,
        });
        self.worker.log.releases.extend(all);
    }

    /// Give one message back, and with it the rest of its unit.
    async fn give_back(
        &mut self,
        lease: &mut Lease,
        tx: TxId,
        status: &'static str,
    ) -> Result<(), Error> {
        let Some(n) = lease.some_open(&mut self.worker.rng).pop() else { return Ok(()) };
        let (unit, id) = (lease.messages[n].unit, lease.messages[n].message_id);
        let began = self.worker.tick();
        let ack = Ack::messages(lease.id, [id]).status(status);
        let settled = ack.run(&self.worker.session).await?;
        self.worker.answered();
        let before = lease.clone();
        let back = lease.give_back(unit);
        self.released(lease, tx, began, [unit]);
        // The contract leaves open whether the messages after the named one count as given back "by
        // this call".
        if !(1..=back as i32).contains(&settled.settled)
            || settled.already != 0
            || settled.dead_lettered != 0
            || settled.lease_released != lease.is_over()
        {
            let text = format!("{status} for {id} of {before:?} gave {settled:?}");
            self.worker.anomalies.push(text);
        }
        self.worker.count(if status == "failed" { "failed" } else { "retries" }, 1);
        Ok(())
    }

    /// Complete some messages and fail one, with one queen_settle.
    async fn settle_mixed(&mut self, lease: &mut Lease, tx: TxId) -> Result<(), Error> {
        let mut some = lease.some_open(&mut self.worker.rng);
        let Some(failed) = some.pop() else { return Ok(()) };
        let named = |n: &usize, status: &str| {
            let one = &lease.messages[*n];
            json!({ "messageId": one.message_id, "status": status })
        };
        let mut results: Vec<_> = some.iter().map(|n| named(n, "completed")).collect();
        results.push(named(&failed, "failed"));
        let uids: Vec<i64> = some.iter().map(|n| i64::from(lease.messages[*n].uid)).collect();
        let sql = "INSERT INTO torture_effects SELECT $1, unnest($2::bigint[])";
        self.worker.session.rows(sql, &[&(self.group as i32), &uids]).await?;
        self.worker.answered();
        let began = self.worker.tick();
        let outcomes = settle(&self.worker.session, lease.id, &json!(results)).await?;
        self.worker.answered();
        let mut got: Vec<_> =
            outcomes.iter().map(|row| (row.message_id, row.outcome.as_str())).collect();
        let mut expected: Vec<_> =
            some.iter().map(|n| (lease.messages[*n].message_id, "completed")).collect();
        expected.push((lease.messages[failed].message_id, "failed"));
        got.sort_unstable();
        expected.sort_unstable();
        if got != expected {
            let text = format!("settling {results:?} of {lease:?} gave {outcomes:?}");
            self.worker.anomalies.push(text);
        }
        for n in &some {
            let (group, uid) = (self.group, lease.messages[*n].uid);
            let (lease, undone) = (Some(lease.id), None);
            let completion = Completion { group, uid, lease, tx, began, undone };
            self.worker.log.completions.push(completion);
        }
        self.completed += some.len() as u64;
        let mut over = lease.complete(&some);
        let unit = lease.messages[failed].unit;
        lease.give_back(unit);
        over.insert(unit);
        self.released(lease, tx, began, over);
        self.worker.count("settled as a set", 1);
        Ok(())
    }

    /// Repeat an ack, as after a lost reply: what this lease completed is completed, and nothing
    /// else happens.
    async fn repeat(&mut self, lease: &Lease) -> Result<(), Error> {
        let done = lease.indexes(State::Completed);
        if done.is_empty() {
            return Ok(());
        }
        let ids = done.iter().map(|n| lease.messages[*n].message_id);
        let settled = Ack::messages(lease.id, ids).run(&self.worker.session).await?;
        self.worker.answered();
        if settled.settled != 0 || settled.already != done.len() as i32 || settled.lease_released {
            let text = format!("repeating {done:?} of {lease:?} gave {settled:?}");
            self.worker.anomalies.push(text);
        }
        self.worker.count("acks repeated", 1);
        Ok(())
    }
}
