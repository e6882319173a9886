//! Giving messages an outcome, under the fence of a lease.

use std::collections::{BTreeMap, BTreeSet};

use crate::backoff::retry_delay;
use crate::cursor::{Cursor, Lease};
use crate::lease::LeaseId;
use crate::message::{MessageId, Spans};
use crate::receipt::{Ending, Receipt};

/// What the consumer says of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    Completed,
    Failed,
    Retry,
    DeadLetter,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Completed,
    Failed,
    Retry,
    DeadLettered,
    Dropped,
    /// It was settled so before, under this same lease.
    Already,
}

/// The queue's rules for failures. Times in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    pub retry_limit: u32,
    pub retry_delay: i64,
    pub retry_backoff: f64,
    pub retry_delay_max: i64,
    /// Exhausted messages are dropped, not kept as dead letters.
    pub drop_exhausted: bool,
}

impl Policy {
    /// What `status` comes to for a message that has failed so often, this time included.
    fn outcome(&self, status: Status, failures: u32) -> Outcome {
        match status {
            Status::Completed => Outcome::Completed,
            Status::Retry => Outcome::Retry,
            Status::DeadLetter => Outcome::DeadLettered,
            Status::Failed if failures <= self.retry_limit => Outcome::Failed,
            Status::Failed if self.drop_exhausted => Outcome::Dropped,
            Status::Failed => Outcome::DeadLettered,
        }
    }

    /// How long what came back waits, when its message with the most failures has this many.
    fn delay_after(&self, failures: u32) -> i64 {
        match failures {
            0 => 0,
            n => retry_delay(self.retry_delay, self.retry_backoff, self.retry_delay_max, n),
        }
    }
}

/// Which messages are meant.
#[derive(Clone, Debug, Default)]
pub struct Named {
    pub each: BTreeMap<MessageId, Status>,
    /// And whatever else the lease holds that is not settled yet.
    pub rest: Option<Status>,
}

/// A message that goes to the dead letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    pub message: MessageId,
    pub failures: u32,
    pub deliveries: u32,
}

/// A settlement to be written.
#[derive(Debug, PartialEq, Eq)]
pub struct Settlement {
    /// None: nothing changed.
    pub cursor: Option<Cursor>,
    pub outcomes: Vec<(MessageId, Outcome)>,
    /// Messages an ack of everything found settled before.
    pub already: usize,
    pub dead: Vec<DeadLetter>,
    /// The lease has ended.
    pub receipt: Option<Receipt>,
    /// Nothing of the lease is left on this cursor.
    pub released: bool,
}

/// Why a settlement is refused, in the order of precedence.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// Somebody else was given a named message since. The present holder's deadline and delivery
    /// attempt, if it is in somebody's hands.
    Superseded { holder: Option<(i64, u32)> },
    /// The lease's time is over: its deadline and delivery attempt.
    Expired { deadline: i64, deliveries: u32 },
    /// No such lease, or its trace is gone.
    Unknown,
    /// The message is not, or no longer, part of the lease.
    NotInLease { message: Option<MessageId> },
    /// The message was settled otherwise under this lease.
    AlreadySettled { message: MessageId },
}

/// A lease as it stands: in the cursor, or as a receipt.
struct Standing<'a> {
    cursor: &'a Cursor,
    held: &'a Spans,
    done: &'a Spans,
    dead: &'a Spans,
    /// None: live. Otherwise how and when it ended.
    over: Option<(Ending, i64)>,
}

impl<'a> Standing<'a> {
    fn of(
        cursor: &'a Cursor,
        lease: LeaseId,
        receipt: Option<&'a Receipt>,
        now: i64,
        void_before: i64,
    ) -> Result<(Self, Option<&'a Lease>), Refusal> {
        if let Some(found) = cursor.leases.iter().find(|l| l.id == lease) {
            let live = found.is_live(now, void_before);
            let over = (!live).then_some((Ending::Expired, found.deadline));
            let Lease { held, done, dead, .. } = found;
            return Ok((Self { cursor, held, done, dead, over }, Some(found)));
        }
        let Receipt { ending, deadline, done, dead, open } = receipt.ok_or(Refusal::Unknown)?;
        Ok((Self { cursor, held: open, done, dead, over: Some((*ending, *deadline)) }, None))
    }

    /// What becomes of `message` with `status`: None means that it is to be applied.
    fn judge(&self, message: MessageId, status: Status) -> Result<Option<Outcome>, Refusal> {
        if self.done.find(message).is_some() {
            return match status {
                Status::Completed => Ok(Some(Outcome::Already)),
                _ => Err(Refusal::AlreadySettled { message }),
            };
        }
        if self.dead.find(message).is_some() {
            return match status {
                Status::DeadLetter | Status::Failed => Ok(Some(Outcome::Already)),
                _ => Err(Refusal::AlreadySettled { message }),
            };
        }
        let Some(span) = self.held.find(message) else {
            return Err(Refusal::NotInLease { message: Some(message) });
        };
        match self.over {
            None => Ok(None),
            Some(over) => Err(self.lost(message, span.deliveries, over)),
        }
    }

    /// Why an unsettled message of a lease that is over can't be settled.
    fn lost(&self, message: MessageId, deliveries: u32, over: (Ending, i64)) -> Refusal {
        let (ending, deadline) = over;
        let still_here = ending != Ending::Revoked
            && (self.cursor.waiting.find(message).is_some()
                || self.cursor.leases.iter().any(|l| std::ptr::eq(&l.held, self.held)));
        match ending {
            _ if !still_here => Refusal::Superseded { holder: self.holder(message) },
            Ending::GaveBack => Refusal::NotInLease { message: Some(message) },
            _ => Refusal::Expired { deadline, deliveries },
        }
    }

    fn holder(&self, message: MessageId) -> Option<(i64, u32)> {
        let holds = |l: &Lease| l.held.find(message).map(|s| (l.deadline, s.deliveries));
        self.cursor.leases.iter().find_map(holds)
    }
}

/// Settle messages of `lease` on one cursor. `receipt` is the lease's trace if it has ended.
pub fn settle(
    cursor: &Cursor,
    lease: LeaseId,
    receipt: Option<&Receipt>,
    named: &Named,
    policy: &Policy,
    now: i64,
    void_before: i64,
) -> Result<Settlement, Refusal> {
    let (standing, live) = Standing::of(cursor, lease, receipt, now, void_before)?;
    let mut wanted = named.each.clone();
    let mut already = 0;
    if let Some(status) = named.rest {
        already = standing.done.messages().filter(|id| !named.each.contains_key(id)).count();
        // What the lease has given back is nobody's to settle any more, and no error.
        if !matches!(standing.over, Some((Ending::GaveBack, _))) {
            for id in standing.held.messages() {
                wanted.entry(id).or_insert(status);
            }
        }
    }
    let mut outcomes = Vec::new();
    let mut applied = BTreeMap::new();
    let mut refusals = Vec::new();
    for (message, status) in wanted {
        match standing.judge(message, status) {
            Ok(Some(outcome)) => outcomes.push((message, outcome)),
            Ok(None) => drop(applied.insert(message, status)),
            Err(refusal) => refusals.push(refusal),
        }
    }
    if let Some(first) = refusals.into_iter().min() {
        return Err(first);
    }
    match live {
        Some(found) if !applied.is_empty() => {
            let mut settlement = apply(cursor, found, &applied, policy, now);
            settlement.outcomes.extend(outcomes);
            settlement.already = already;
            Ok(settlement)
        }
        _ => Ok(Settlement {
            cursor: None,
            outcomes,
            already,
            dead: Vec::new(),
            receipt: None,
            released: live.is_none(),
        }),
    }
}

/// Everything is allowed: carry it out.
fn apply(
    cursor: &Cursor,
    lease: &Lease,
    named: &BTreeMap<MessageId, Status>,
    policy: &Policy,
    now: i64,
) -> Settlement {
    let (mut cursor, mut lease) = (cursor.clone(), lease.clone());
    cursor.leases.retain(|other| other.id != lease.id);
    let (outcomes, most_failures) = decide_outcomes(&mut cursor, named, policy);
    let dead = dead_letters(&cursor, &lease, &outcomes);
    take_off_settled(&mut cursor, &mut lease, &outcomes);
    let gives_back = named.values().any(|s| matches!(s, Status::Failed | Status::Retry));
    let ending = match (gives_back, lease.held.is_empty()) {
        (true, _) => Some(Ending::GaveBack),
        (false, true) => Some(Ending::Settled),
        (false, false) => None,
    };
    let receipt = match ending {
        None => {
            cursor.leases.push(lease);
            None
        }
        Some(ending) => {
            cursor.waiting.prepend(lease.held.clone());
            let delay = policy.delay_after(most_failures);
            cursor.retry_at = (delay > 0).then(|| now.saturating_add(delay));
            Some(Receipt::of(lease, ending))
        }
    };
    Settlement {
        cursor: Some(cursor),
        outcomes,
        already: 0,
        dead,
        released: receipt.is_some(),
        receipt,
    }
}

/// Count the failures and decide each outcome. And the highest number of failures of a message
/// that will be delivered again after one.
fn decide_outcomes(
    cursor: &mut Cursor,
    named: &BTreeMap<MessageId, Status>,
    policy: &Policy,
) -> (Vec<(MessageId, Outcome)>, u32) {
    let mut outcomes = Vec::with_capacity(named.len());
    let mut most_failures = 0;
    for (&message, &status) in named {
        if status == Status::Failed {
            *cursor.failures.entry(message).or_default() += 1;
        }
        let failures = cursor.failures_of(message);
        let outcome = policy.outcome(status, failures);
        if outcome == Outcome::Failed {
            most_failures = most_failures.max(failures);
        }
        outcomes.push((message, outcome));
    }
    (outcomes, most_failures)
}

fn dead_letters(
    cursor: &Cursor,
    lease: &Lease,
    outcomes: &[(MessageId, Outcome)],
) -> Vec<DeadLetter> {
    let dead = outcomes.iter().filter(|(_, outcome)| *outcome == Outcome::DeadLettered);
    dead.map(|&(message, _)| {
        let deliveries = lease.held.find(message).map_or(0, |span| span.deliveries);
        DeadLetter { message, failures: cursor.failures_of(message), deliveries }
    })
    .collect()
}

/// What is settled is no longer held, and its failures are forgotten.
fn take_off_settled(cursor: &mut Cursor, lease: &mut Lease, outcomes: &[(MessageId, Outcome)]) {
    let with = |wanted: &[Outcome]| -> BTreeSet<MessageId> {
        outcomes.iter().filter(|(_, o)| wanted.contains(o)).map(|(id, _)| *id).collect()
    };
    let completed = with(&[Outcome::Completed]);
    let buried = with(&[Outcome::DeadLettered, Outcome::Dropped]);
    let (done, open) = lease.held.partition(|id| completed.contains(&id));
    let (dead, open) = open.partition(|id| buried.contains(&id));
    cursor.settled += (done.count() + dead.count()) as i64;
    cursor.failures.retain(|id, _| !completed.contains(id) && !buried.contains(id));
    lease.done.extend(done.iter());
    lease.dead.extend(dead.iter());
    lease.held = open;
}

/// Hold on to what is left of `lease` until at least `now + duration` (its own by default).
pub fn extend(
    cursor: &Cursor,
    lease: LeaseId,
    receipt: Option<&Receipt>,
    duration: Option<i64>,
    now: i64,
    void_before: i64,
) -> Result<(Cursor, i64), Refusal> {
    let (standing, live) = Standing::of(cursor, lease, receipt, now, void_before)?;
    match (live, standing.over) {
        (Some(found), None) => {
            let until = now.saturating_add(duration.unwrap_or(found.duration));
            let deadline = found.deadline.max(until);
            let mut cursor = cursor.clone();
            cursor.leases.iter_mut().filter(|l| l.id == lease).for_each(|l| l.deadline = deadline);
            Ok((cursor, deadline))
        }
        (_, Some((Ending::Settled | Ending::GaveBack, _))) | (None, None) => {
            Err(Refusal::NotInLease { message: None })
        }
        (_, Some(over)) => Err(standing
            .held
            .iter()
            .flat_map(|span| span.messages().map(move |id| (id, span.deliveries)))
            .map(|(id, deliveries)| standing.lost(id, deliveries, over))
            .min()
            .unwrap_or(Refusal::NotInLease { message: None })),
    }
}
