//! Settlements and extensions, of leases that are live and of leases that have ended.

use std::collections::BTreeMap;

use queen_engine::message::MessageId;
use queen_engine::settle::{Named, Outcome, Policy, Refusal, Settlement, Status};

use super::Protocol;
use super::bounds::Trouble;
use super::events::Event;
use super::promise::Promise;
use super::state::{Call, Holding, NOW, State, TICK, Verdict, Worker};

impl Verdict {
    fn status(self) -> Status {
        match self {
            Self::Completed => Status::Completed,
            Self::Failed => Status::Failed { delay: None },
            Self::Retry => Status::Retry { delay: 0 },
            Self::Dead => Status::DeadLetter,
        }
    }

    /// The trouble that a worker makes which says so.
    pub fn trouble(self) -> Option<Trouble> {
        match self {
            Self::Completed => None,
            Self::Failed => Some(Trouble::Fail),
            Self::Retry => Some(Trouble::Retry),
            Self::Dead => Some(Trouble::Bury),
        }
    }

    /// Whether it ends the lease in its partition.
    fn gives_back(self) -> bool {
        matches!(self, Self::Failed | Self::Retry)
    }
}

impl Call {
    pub fn rest() -> Self {
        Self { messages: Vec::new(), is_rest: true, verdict: Verdict::Completed }
    }

    pub fn of(message: MessageId, verdict: Verdict) -> Self {
        Self { messages: vec![message], is_rest: false, verdict }
    }

    fn named(&self) -> Named {
        let status = self.verdict.status();
        Named {
            each: self.messages.iter().map(|message| (*message, status)).collect(),
            rest: self.is_rest.then_some(status),
        }
    }

    /// The messages that it means.
    fn meant(&self, holding: &Holding) -> Vec<MessageId> {
        if self.is_rest { holding.open.clone() } else { self.messages.clone() }
    }
}

impl Protocol {
    fn policy(&self) -> Policy {
        Policy {
            retry_limit: self.bounds.retry_limit,
            retry_delay: TICK,
            retry_backoff: 1.0,
            retry_delay_max: TICK,
            drop_exhausted: false,
        }
    }

    fn decided(
        &self,
        state: &State,
        holding: &Holding,
        call: &Call,
    ) -> Option<Result<Settlement, Refusal>> {
        let stored = state.database.partition(holding.partition);
        let row = match holding.claim {
            None => Some(&stored.cursor),
            Some(message) => stored.claim(message),
        };
        let receipt = state.database.receipt(holding.lease);
        // The claim may have been removed. What is known of the lease is then in its receipt.
        let cursor = row.map(|row| row.cursor()).unwrap_or_default();
        let holder = (&cursor, holding.lease, receipt.as_ref());
        Some((self.rules.settle)(holder, &call.named(), &self.policy(), NOW))
    }

    /// A worker settles. If the reply is lost, it will repeat the call.
    pub fn settle(&self, state: &mut State, worker: usize, call: &Call, reply_is_lost: bool) {
        let Worker::Holding(mut holding) = state.workers[worker].clone() else { return };
        state.workers[worker] = Worker::Idle;
        let meant = call.meant(&holding);
        let held = state.database.grant(holding.lease).map(|grant| grant.messages.clone());
        let is_holder = held.is_some_and(|held| meant.iter().all(|one| held.contains(one)));
        let Some(decided) = self.decided(state, &holding, call) else { return };
        match decided {
            Err(refusal) => {
                self.events.note(event_of(&refusal));
                state.demand(Promise::HolderIsHeard, !is_holder);
            }
            Ok(done) => {
                state.demand(Promise::Fence, is_holder);
                self.apply(state, &holding, &meant, call.verdict, done);
                holding.open.retain(|message| !meant.contains(message));
                let is_over = call.verdict.gives_back() || holding.open.is_empty();
                state.workers[worker] = match (reply_is_lost, is_over) {
                    (true, _) => Worker::Repeating(holding, call.clone()),
                    (false, true) => Worker::Idle,
                    (false, false) => Worker::Holding(holding),
                };
            }
        }
    }

    /// Write what was decided, enter it into the ledger, and judge it.
    fn apply(
        &self,
        state: &mut State,
        holding: &Holding,
        meant: &[MessageId],
        verdict: Verdict,
        done: Settlement,
    ) {
        if !self.rules.settlement_is_flushed && state.may(&self.bounds, Trouble::Crash) {
            state.unflushed.push(state.database.clone());
        }
        let Settlement { cursor, outcomes, receipt, .. } = done;
        let (lease, claim) = (holding.lease, holding.claim);
        let row = state.database.partition_mut(holding.partition).row_mut(claim);
        if let (Some(cursor), Some(row)) = (&cursor, row) {
            row.write(cursor);
        }
        let ended = receipt.map(|receipt| (lease, receipt)).into_iter().collect();
        state.database.keep_receipts(ended, self.rules.receipt);
        if self.rules.settlement_is_flushed {
            state.flush();
        }
        let outcomes: BTreeMap<MessageId, Outcome> = outcomes.into_iter().collect();
        for message in meant {
            let outcome = outcomes.get(message).copied();
            self.judge_outcome(state, *message, verdict, outcome);
        }
        match verdict.gives_back() {
            true => state.database.end_grant(lease),
            false => state.database.take_from_grant(lease, meant),
        }
    }

    fn judge_outcome(
        &self,
        state: &mut State,
        message: MessageId,
        verdict: Verdict,
        outcome: Option<Outcome>,
    ) {
        let failures = state.database.fact(message).failures + 1;
        let is_used_up = failures > self.bounds.retry_limit;
        let expected = match verdict {
            Verdict::Completed => Outcome::Completed,
            Verdict::Retry => Outcome::Retry,
            Verdict::Dead => Outcome::DeadLettered,
            Verdict::Failed if is_used_up => Outcome::DeadLettered,
            Verdict::Failed => Outcome::Failed,
        };
        let promise = match verdict {
            Verdict::Failed => Promise::Budget,
            _ => Promise::HolderIsHeard,
        };
        state.demand(promise, outcome == Some(expected));
        let comes_at = NOW + TICK;
        state.database.change_fact(message, |fact| match expected {
            Outcome::Failed => (fact.failures, fact.not_before) = (failures, comes_at),
            Outcome::Completed | Outcome::DeadLettered => {
                (fact.is_settled, fact.failures) = (true, 0);
            }
            _ => (),
        });
        if expected == Outcome::DeadLettered {
            self.events.note(Event::DeadLettered);
        }
    }

    /// A worker repeats a call that was accepted. Whatever has happened since, nothing changes.
    pub fn repeat(&self, state: &mut State, worker: usize) {
        let Worker::Repeating(holding, call) = state.workers[worker].clone() else { return };
        state.workers[worker] = Worker::Idle;
        let decided = self.decided(state, &holding, &call);
        let is_right = matches!(&decided, Some(Ok(done)) if done.cursor.is_none()
            && done.receipt.is_none()
            && done.outcomes.iter().all(|(_, outcome)| *outcome == Outcome::Already)
            && done.outcomes.len() == call.messages.len());
        state.demand(Promise::Repetition, is_right);
        self.events.note(Event::Repeated);
    }

    /// A worker extends its lease.
    pub fn extend(&self, state: &mut State, worker: usize) {
        let Worker::Holding(holding) = state.workers[worker].clone() else { return };
        let lease = holding.lease;
        let before = state.database.grant(lease).map(|grant| grant.deadline);
        let stored = state.database.partition(holding.partition);
        let row = match holding.claim {
            None => Some(&stored.cursor),
            Some(message) => stored.claim(message),
        };
        let cursor = row.map(|row| row.cursor()).unwrap_or_default();
        let receipt = state.database.receipt(lease);
        let duration = 2 * TICK;
        let holder = (&cursor, lease, receipt.as_ref());
        let Ok((cursor, deadline)) = (self.rules.extend)(holder, duration, NOW) else {
            state.demand(Promise::HolderIsHeard, before.is_none());
            state.workers[worker] = Worker::Idle;
            return;
        };
        state.demand(Promise::Fence, before.is_some());
        self.events.note(Event::Extended);
        let expected = before.map(|before| before.max(NOW + duration));
        state.demand(Promise::Deadline, expected.is_none_or(|expected| deadline >= expected));
        if state.may(&self.bounds, Trouble::Crash) {
            state.unflushed.push(state.database.clone());
        }
        if let Some(row) = state.database.partition_mut(holding.partition).row_mut(holding.claim) {
            row.write(&cursor);
        }
        for grant in state.database.grants.iter_mut().filter(|grant| grant.lease == lease) {
            grant.deadline = deadline;
        }
    }
}

fn event_of(refusal: &Refusal) -> Event {
    match refusal {
        Refusal::Superseded { .. } => Event::Superseded,
        Refusal::Expired { .. } => Event::Expired,
        Refusal::Unknown => Event::Unknown,
        Refusal::NotInLease { .. } | Refusal::AlreadySettled { .. } => Event::NotInLease,
    }
}
