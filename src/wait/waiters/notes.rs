//! What the open transaction brings, and whom its end wakes.

use std::cell::RefCell;

use pgrx::pg_sys::SubTransactionId;

use super::super::fresh;
use super::{LeaseEnd, PartitionHash, Topic, WakeUp, is_shared, tell_moments, wake_for_each};
use crate::pg::clock::Moment;
use crate::pg::subtransaction;
use crate::pg::transaction_listener::{TransactionEnd, TransactionListener};

/// Notes of one transaction that are told apart. With more of them, its end wakes all sessions that
/// wait for a topic that it has noted.
const TOLD_APART: usize = 64;

thread_local! {
    /// For the commit of the open transaction.
    static BROUGHT: RefCell<Vec<WakeUp>> = const { RefCell::new(Vec::new()) };
    /// For a rollback of it, or of a part of it.
    static HELD: RefCell<Vec<Held>> = const { RefCell::new(Vec::new()) };
    /// Leases that the open transaction has given, and those of one that has just ended.
    static LEASES: RefCell<Vec<LeaseEnd>> = const { RefCell::new(Vec::new()) };
    static GIVEN: RefCell<Vec<LeaseEnd>> = const { RefCell::new(Vec::new()) };
    /// Partitions that the open transaction has pushed to, and those of one that has committed.
    static PUSHED: RefCell<Vec<Push>> = const { RefCell::new(Vec::new()) };
    static COMMITTED: RefCell<Vec<Push>> = const { RefCell::new(Vec::new()) };
    /// Of the transaction that has just ended, and has not given up its locks yet.
    static ENDED: RefCell<Vec<WakeUp>> = const { RefCell::new(Vec::new()) };
}

/// Note that this transaction has messages for `topic` in a partition: its commit wakes one session
/// of each group that waits for them. Rolling back a subtransaction leaves the note, and so may
/// wake a session in vain.
pub fn touch(topic: Topic, partition: PartitionHash) {
    BROUGHT.with_borrow_mut(|notes| note(notes, topic, partition));
}

/// A queue, and a partition that was pushed to.
type Push = (Topic, Box<str>);

/// Note that this transaction has pushed to a partition: [`touch`], and a hint for pops.
pub fn touch_pushed(queue: &str, partition: &str) {
    if !is_shared() {
        return;
    }
    let topic = Topic::queue(queue);
    touch(topic, PartitionHash::of(partition));
    PUSHED.with_borrow_mut(|pushed| {
        let is_known =
            || pushed.iter().any(|(known, name)| *known == topic && **name == *partition);
        if pushed.len() < TOLD_APART && !is_known() {
            pushed.push((topic, partition.into()));
        }
    });
}

/// Note that this transaction changes what all sessions that wait for `topic` may pop.
pub fn touch_all(topic: Topic) {
    BROUGHT.with_borrow_mut(|notes| {
        note(notes, topic, PartitionHash::ANY);
        widen(notes, topic);
    });
}

/// What a subtransaction has locked or claimed. Subtransactions are numbered in the order in which
/// they begin, so a rollback undoes its own notes and all with a higher number.
type Held = (SubTransactionId, WakeUp);

/// Note that this subtransaction has locked or claimed messages of a partition for `topic`: if that
/// is rolled back, another session may pop them.
pub fn touch_if_undone(topic: Topic, partition: PartitionHash) {
    if !is_shared() {
        return;
    }
    ENDS.listen();
    let own = subtransaction::number();
    let news = WakeUp { topic: topic.0, partition, for_all: false };
    HELD.with_borrow_mut(|held| {
        let is_known = |(begun, known): &Held| {
            *begun == own && known.topic == topic.0 && (known.for_all || *known == news)
        };
        if held.iter().any(is_known) {
            return;
        }
        held.push((own, news));
        if held.len() > TOLD_APART {
            // What earlier subtransactions have noted now counts as this one's: each that may still
            // be rolled back by itself has this one in it.
            held.retain(|(_, known)| known.topic != topic.0);
            held.push((own, WakeUp { partition: PartitionHash::ANY, for_all: true, ..news }));
        }
    });
}

/// Forget what this subtransaction has noted for a rollback: it is about to be rolled back, and has
/// held its locks for a moment. A session that has met one looks again soon by itself.
pub fn forget_held() {
    let own = subtransaction::number();
    HELD.with_borrow_mut(|held| held.retain(|(begun, _)| *begun < own));
}

/// Note that this transaction gives a lease of messages of a partition until `at`: if it commits, a
/// session that waits for them must know when the lease ends.
pub fn touch_at(group: Topic, partition: PartitionHash, at: Moment) {
    if !is_shared() {
        return;
    }
    ENDS.listen();
    LEASES.with_borrow_mut(|leases| {
        let partition = if leases.len() < TOLD_APART { partition } else { PartitionHash::ANY };
        let known =
            leases.iter_mut().find(|known| (known.group, known.partition) == (group.0, partition));
        match known {
            Some(known) => known.at = known.at.min(at),
            None => leases.push(LeaseEnd { group: group.0, partition, at }),
        }
    });
}

fn note(notes: &mut Vec<WakeUp>, topic: Topic, partition: PartitionHash) {
    if !is_shared() {
        return;
    }
    ENDS.listen();
    let news = WakeUp { topic: topic.0, partition, for_all: false };
    if notes.iter().any(|known| known.topic == topic.0 && (known.for_all || *known == news)) {
        return;
    }
    match notes.len() < TOLD_APART {
        true => notes.push(news),
        false => {
            notes.push(news);
            widen(notes, topic);
        }
    }
}

/// Make of all notes of a topic one that is for all.
fn widen(notes: &mut Vec<WakeUp>, topic: Topic) {
    notes.retain(|known| known.topic != topic.0);
    notes.push(WakeUp { topic: topic.0, partition: PartitionHash::ANY, for_all: true });
}

static ENDS: TransactionListener = TransactionListener::new(at_end, at_undo, after_locks);

/// Keep the notes that the end of the transaction is for. Nothing here may fail.
fn at_end(end: TransactionEnd) {
    match end {
        TransactionEnd::Committed => {
            drop(HELD.take());
            ENDED.set(BROUGHT.take());
            COMMITTED.set(PUSHED.take());
            GIVEN.set(LEASES.take());
        }
        TransactionEnd::RolledBack => {
            drop((BROUGHT.take(), PUSHED.take(), LEASES.take()));
            ENDED.set(HELD.take().into_iter().map(|(_, news)| news).collect());
        }
        TransactionEnd::Prepared => {
            drop((BROUGHT.take(), PUSHED.take(), HELD.take(), LEASES.take()));
        }
    }
}

/// A subtransaction that is rolled back gives up the rows that it has locked. Its notes stay, and
/// may wake a session in vain when the transaction ends. One that has noted nothing wakes no
/// session: a look in vain must not wake the session that looks.
fn at_undo(own: SubTransactionId) {
    HELD.with_borrow(|held| {
        let undone = held.iter().filter(|(begun, _)| *begun >= own);
        wake_for_each(undone.map(|(_, news)| news));
    });
}

/// Wake the waiting sessions once the transaction has given up its locks, and has told other
/// sessions of its changes of queues and groups. A pop that was woken before that could find the
/// old state, or rows still locked, and would sleep on. Nothing here may fail.
fn after_locks() {
    COMMITTED.take().iter().for_each(|(queue, partition)| fresh::add(*queue, partition));
    wake_for_each(ENDED.take().iter());
    tell_moments(&GIVEN.take());
}
