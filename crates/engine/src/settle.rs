//! What becomes of messages when their consumer settles them, and who may do so.
//!
//! A consumer says a *status* of messages and names the lease under which it got them. The
//! *outcome* is what becomes of each:
//!
//! - **completed**: it is done;
//! - **failed**: it is charged with a failure and delivered again after a delay: that of the call,
//!   or one that grows with its failures ([`crate::backoff`]). A message with more failures than
//!   the queue allows is *exhausted*, and becomes a dead letter or is dropped;
//! - **retry**: it is delivered again, without a charge, and without a delay if none is asked for;
//! - **dead letter**: it is kept aside and not delivered again.
//!
//! **When the lease ends.** On a cursor, a failure or a retry ends the lease and gives back all
//! that it still holds there: messages must not be worked on before the one that comes back. (A
//! claim has one message, so in a group without order only that one is given back.) The end is the
//! same if the failure made a dead letter. Otherwise the lease ends when it holds nothing any more.
//!
//! **The fence.** A message is settled only while the lease holds it and is live. After that, the
//! settlement is refused with a reason, or counts as a repetition (`fence` says when).
//!
//! **All or nothing.** If one of the named messages cannot be settled, none is.

mod fence;

pub use self::fence::Refusal;

use std::collections::{BTreeMap, BTreeSet};

use self::fence::Standing;
use crate::backoff::retry_delay;
use crate::cursor::{Cursor, Lease};
use crate::lease::LeaseId;
use crate::message::{MessageId, Spans};
use crate::receipt::{Ending, Receipt, Said};

/// What a consumer says of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    /// It is done.
    Completed,
    /// It could not be done. The next attempt comes after a delay, in microseconds; None: after
    /// that of the policy.
    Failed { delay: Option<i64> },
    /// It is to be delivered again, without a charge, after a delay in microseconds.
    Retry { delay: i64 },
    /// It can never be done.
    DeadLetter,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Completed,
    /// It was charged with a failure and is delivered again.
    Failed,
    /// It is delivered again.
    Retry,
    /// It is kept as a dead letter: by its status, or because it was exhausted.
    DeadLettered,
    /// It was exhausted, and the queue keeps no dead letters.
    Dropped,
    /// An earlier call has said this status of it, under this lease. Nothing changes.
    Already,
}

/// What a queue does with failures. Times in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// A message with more failures than this is exhausted.
    pub retry_limit: u32,
    /// The delay after the first failure.
    pub retry_delay: i64,
    /// The factor by which the delay grows with each further failure.
    pub retry_backoff: f64,
    /// The longest delay.
    pub retry_delay_max: i64,
    /// Whether exhausted messages are dropped. If not, they become dead letters.
    pub drop_exhausted: bool,
}

impl Policy {
    /// What `status` comes to for a message with so many failures, this one included.
    fn outcome(&self, status: Status, failures: u32) -> Outcome {
        match status {
            Status::Completed => Outcome::Completed,
            Status::Retry { .. } => Outcome::Retry,
            Status::DeadLetter => Outcome::DeadLettered,
            Status::Failed { .. } if failures <= self.retry_limit => Outcome::Failed,
            Status::Failed { .. } if self.drop_exhausted => Outcome::Dropped,
            Status::Failed { .. } => Outcome::DeadLettered,
        }
    }

    /// How long a message waits that comes back with `status` after so many failures, this one
    /// included.
    fn delay_of(&self, status: Status, failures: u32) -> i64 {
        let Self { retry_delay: first, retry_backoff: factor, retry_delay_max: most, .. } = *self;
        match status {
            Status::Failed { delay: Some(delay) } | Status::Retry { delay } => delay,
            Status::Failed { delay: None } => retry_delay(first, factor, most, failures),
            Status::Completed | Status::DeadLetter => 0,
        }
    }
}

/// What a consumer says of the messages of a lease on one cursor.
#[derive(Clone, Debug, Default)]
pub struct Named {
    /// Of these messages.
    pub each: BTreeMap<MessageId, Status>,
    /// Of all others that the lease still holds.
    pub rest: Option<Status>,
}

/// A message that becomes a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    pub message: MessageId,
    /// How often it was reported as failed.
    pub failures: u32,
    /// How often it was delivered to the group.
    pub deliveries: u32,
}

/// What a settlement comes to on one cursor, to be written by the caller.
#[derive(Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The next state of the cursor. None if nothing changes.
    pub cursor: Option<Cursor>,
    /// What became of each message that was named, or held and meant by `rest`.
    pub outcomes: Vec<(MessageId, Outcome)>,
    /// With `rest`: how many messages the lease had completed before, or settled with its status;
    /// without those named.
    pub already: usize,
    /// Messages that become dead letters.
    pub dead: Vec<DeadLetter>,
    /// The receipt of the lease, if it has ended by this.
    pub receipt: Option<Receipt>,
    /// Whether the lease holds nothing on this cursor any more.
    pub released: bool,
}

impl Settlement {
    /// Keep with the next state what was said of messages that failed and come back: `said` tells
    /// it of each.
    pub fn keep_errors<'a>(&mut self, said: impl Fn(MessageId) -> Option<&'a str>) {
        let Some(cursor) = &mut self.cursor else { return };
        // From the last message on: those to be delivered first are kept with preference.
        let failed = self.outcomes.iter().rev().filter(|(_, outcome)| *outcome == Outcome::Failed);
        let texts: Vec<_> = failed.map(|(message, _)| (*message, said(*message))).collect();
        cursor.failures.say(&texts);
    }
}

/// Settle messages of `lease` on one cursor. `receipt` is that of the lease, if it has ended there.
/// `void_before` is as in [`Lease::is_live`].
pub fn settle(
    cursor: &Cursor,
    lease: LeaseId,
    receipt: Option<&Receipt>,
    named: &Named,
    policy: &Policy,
    now: i64,
    void_before: i64,
) -> Result<Settlement, Refusal> {
    let (standing, found) = Standing::of(cursor, lease, receipt, now, void_before)?;
    let mut wanted = named.each.clone();
    let mut already = 0;
    if let Some(status) = named.rest {
        let before = standing.done.messages().chain(standing.said_so(status));
        already = before.filter(|id| !named.each.contains_key(id)).count();
        // All others that the lease still holds: none, after it has given back what was left.
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
    match found {
        Some(lease) if !applied.is_empty() => {
            let mut settlement = apply(cursor, lease, &applied, policy, now);
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
            released: found.is_none(),
        }),
    }
}

/// Carry out what was named, all of which is allowed. `lease` is live on the cursor.
fn apply(
    cursor: &Cursor,
    lease: &Lease,
    named: &BTreeMap<MessageId, Status>,
    policy: &Policy,
    now: i64,
) -> Settlement {
    let (mut cursor, mut lease) = (cursor.clone(), lease.clone());
    cursor.leases.retain(|other| other.id != lease.id);
    let (outcomes, delay) = decide_outcomes(&mut cursor, named, policy);
    let dead = dead_letters(&cursor, &lease, &outcomes);
    let said = said(&lease, named);
    take_off_settled(&mut cursor, &mut lease, &outcomes);
    let receipt = if said.is_empty() && !lease.held.is_empty() {
        cursor.leases.push(lease);
        None
    } else {
        cursor.waiting.prepend(lease.held.clone());
        cursor.retry_at = (delay > 0).then(|| now.saturating_add(delay));
        Some(match said.is_empty() {
            true => Receipt::of(lease, Ending::Settled),
            false => Receipt::gave_back(lease, said),
        })
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

/// Charge the failures and decide the outcomes. Returns the outcomes, and how long what comes back
/// waits: as long as that of its messages that waits longest.
fn decide_outcomes(
    cursor: &mut Cursor,
    named: &BTreeMap<MessageId, Status>,
    policy: &Policy,
) -> (Vec<(MessageId, Outcome)>, i64) {
    let mut outcomes = Vec::with_capacity(named.len());
    let mut longest = 0;
    for (&message, &status) in named {
        if matches!(status, Status::Failed { .. }) {
            cursor.failures.charge(message);
        }
        let failures = cursor.failures.of(message);
        let outcome = policy.outcome(status, failures);
        if matches!(outcome, Outcome::Failed | Outcome::Retry) {
            longest = longest.max(policy.delay_of(status, failures));
        }
        outcomes.push((message, outcome));
    }
    (outcomes, longest)
}

/// What the holder of the lease says that gives messages back: also where a message turns out to be
/// exhausted.
fn said(lease: &Lease, named: &BTreeMap<MessageId, Status>) -> Said {
    let with = |is_meant: fn(&Status) -> bool| match named.values().any(is_meant) {
        true => lease.held.partition(|id| named.get(&id).is_some_and(is_meant)).0,
        false => Spans::new(),
    };
    Said {
        failed: with(|status| matches!(status, Status::Failed { .. })),
        retried: with(|status| matches!(status, Status::Retry { .. })),
    }
}

/// The dead letters among the outcomes.
fn dead_letters(
    cursor: &Cursor,
    lease: &Lease,
    outcomes: &[(MessageId, Outcome)],
) -> Vec<DeadLetter> {
    let dead = outcomes.iter().filter(|(_, outcome)| *outcome == Outcome::DeadLettered);
    dead.map(|&(message, _)| {
        let deliveries = lease.held.find(message).map_or(0, |span| span.deliveries);
        DeadLetter { message, failures: cursor.failures.of(message), deliveries }
    })
    .collect()
}

/// Take the messages that are settled now from those that are held, and forget their failures.
fn take_off_settled(cursor: &mut Cursor, lease: &mut Lease, outcomes: &[(MessageId, Outcome)]) {
    let with = |wanted: &[Outcome]| -> BTreeSet<MessageId> {
        outcomes.iter().filter(|(_, o)| wanted.contains(o)).map(|(id, _)| *id).collect()
    };
    let completed = with(&[Outcome::Completed]);
    let buried = with(&[Outcome::DeadLettered, Outcome::Dropped]);
    let (done, open) = lease.held.partition(|id| completed.contains(&id));
    let (dead, open) = open.partition(|id| buried.contains(&id));
    cursor.settled += (done.count() + dead.count()) as i64;
    cursor.failures.retain(|id| !completed.contains(id) && !buried.contains(id));
    lease.done.extend(done.iter());
    lease.dead.extend(dead.iter());
    lease.held = open;
}

/// Extend `lease` on one cursor until `duration` from `now`, or as long as it was given for.
/// Returns the next state of the cursor and the deadline, which never becomes earlier. What has
/// expired is not revived, even if no other consumer has got it yet. The arguments are those of
/// [`settle`].
pub fn extend(
    cursor: &Cursor,
    lease: LeaseId,
    receipt: Option<&Receipt>,
    duration: Option<i64>,
    now: i64,
    void_before: i64,
) -> Result<(Cursor, i64), Refusal> {
    let (standing, found) = Standing::of(cursor, lease, receipt, now, void_before)?;
    match (found, standing.over) {
        (Some(live), None) => {
            let until = now.saturating_add(duration.unwrap_or(live.duration));
            let deadline = live.deadline.max(until);
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
