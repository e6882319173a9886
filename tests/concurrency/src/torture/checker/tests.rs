//! Tests of the checker: small histories with one fault, and similar ones without it.

use super::super::history::Group;
use super::*;

/// A history in the making. Stamps are given by hand, so each test reads as a timeline.
struct Tale(History);

impl Tale {
    fn new() -> Self {
        let group = |name: &str| Group { name: name.into(), registered: None };
        Self(History { groups: vec![group("g")], ..History::default() })
    }

    fn tx(&mut self, id: TxId, sent: Stamp, committed: bool) -> &mut Self {
        self.0.txs.push(Tx { id, sent, done: sent + 2, committed });
        self
    }

    fn push(&mut self, uid: Uid, producer: u32, tx: TxId, began: Stamp) -> &mut Self {
        self.0.pushes.push(PushRecord {
            uid,
            producer,
            stream: 0,
            tx,
            began,
            message_id: i64::from(uid) * 10,
            undone: false,
            locked: None,
        });
        self
    }

    /// A push that is a transaction of its own, number 100 + uid.
    fn pushed(&mut self, uid: Uid, producer: u32, at: Stamp) -> &mut Self {
        self.push(uid, producer, 100 + uid, at).tx(100 + uid, at, true)
    }

    /// A pop that returns five stamps later. On the server's clock one stamp is one second.
    fn pop(&mut self, pop: u32, tx: TxId, began: Stamp, uids: &[Uid]) -> &mut Self {
        for (at, uid) in uids.iter().enumerate() {
            let before = self.0.deliveries.iter().filter(|one| one.uid == *uid).count() as i32;
            self.0.deliveries.push(Delivery {
                group: 0,
                stream: 0,
                uid: *uid,
                message_id: i64::from(*uid) * 10,
                attempt: before + 1,
                pop,
                at: at as u32,
                tx,
                began,
                returned: began + 5,
                lease: Uuid::from_u128(u128::from(pop)),
                clock: Some(began as i64 * 1_000_000),
                expires: (began as i64 + 1000) * 1_000_000,
                undone: None,
            });
        }
        self
    }

    /// A pop that is a transaction of its own, number 1000 + pop.
    fn popped(&mut self, pop: u32, began: Stamp, uids: &[Uid]) -> &mut Self {
        self.pop(pop, 1000 + pop, began, uids).tx(1000 + pop, began, true)
    }

    fn ack(&mut self, pop: u32, tx: TxId, began: Stamp, uids: &[Uid], over: bool) -> &mut Self {
        let lease = Some(Uuid::from_u128(u128::from(pop)));
        for uid in uids {
            let completion = Completion { group: 0, uid: *uid, lease, tx, began, undone: None };
            self.0.completions.push(completion);
        }
        if over {
            self.released(pop, tx, began);
        }
        self
    }

    fn released(&mut self, pop: u32, tx: TxId, began: Stamp) -> &mut Self {
        let lease = Uuid::from_u128(u128::from(pop));
        self.0.releases.push(Release { lease, unit: Unit::Stream(0), tx, began, undone: None });
        self
    }

    /// An ack of everything, a transaction of its own, number 2000 + pop.
    fn acked(&mut self, pop: u32, at: Stamp, uids: &[Uid]) -> &mut Self {
        self.ack(pop, 2000 + pop, at, uids, true).tx(2000 + pop, at, true)
    }

    fn faults(&self) -> Vec<Fault> {
        let mut faults: Vec<Fault> = check(&self.0).iter().map(|one| one.fault).collect();
        faults.dedup();
        faults
    }
}

#[test]
fn a_plain_history_is_clean() {
    let mut tale = Tale::new();
    tale.pushed(1, 1, 10).pushed(2, 1, 20).pushed(3, 2, 21);
    tale.popped(1, 30, &[1]).acked(1, 40, &[1]);
    tale.popped(2, 50, &[3, 2]).acked(2, 60, &[2, 3]);
    assert_eq!(tale.faults(), []);
}

#[test]
fn a_message_that_never_comes_is_lost() {
    let mut tale = Tale::new();
    tale.pushed(1, 1, 10).pushed(2, 2, 10);
    tale.popped(1, 30, &[1]).acked(1, 40, &[1]);
    assert_eq!(tale.faults(), [Fault::Lost]);
}

#[test]
fn a_message_that_is_never_completed_is_lost() {
    let mut tale = Tale::new();
    tale.pushed(1, 1, 10).popped(1, 30, &[1]);
    assert_eq!(tale.faults(), [Fault::Lost]);
}

#[test]
fn an_ack_that_rolls_back_completes_nothing() {
    let mut tale = Tale::new();
    tale.pushed(1, 1, 10).popped(1, 30, &[1]);
    tale.ack(1, 5, 40, &[1], true).tx(5, 45, false);
    assert_eq!(tale.faults(), [Fault::Lost]);
}

#[test]
fn completing_twice_is_seen() {
    let mut tale = Tale::new();
    tale.pushed(1, 1, 10).popped(1, 30, &[1]).acked(1, 40, &[1]);
    tale.ack(1, 5, 50, &[1], false).tx(5, 52, true);
    assert_eq!(tale.faults(), [Fault::CompletedTwice]);
}

#[test]
fn a_rolled_back_push_is_a_phantom() {
    let mut tale = Tale::new();
    tale.push(1, 1, 5, 10).tx(5, 12, false);
    tale.popped(1, 30, &[1]);
    assert_eq!(tale.faults(), [Fault::Phantom]);
}

#[test]
fn a_push_undone_by_a_savepoint_is_a_phantom() {
    let mut tale = Tale::new();
    tale.pushed(1, 1, 10).popped(1, 30, &[1]);
    tale.0.pushes[0].undone = true;
    assert_eq!(tale.faults(), [Fault::Phantom]);
}

#[test]
fn a_message_that_no_producer_pushed_is_a_phantom() {
    let mut tale = Tale::new();
    tale.popped(1, 30, &[7]);
    assert_eq!(tale.faults(), [Fault::Phantom]);
}

#[test]
fn a_delivery_before_the_commit_is_seen() {
    let mut tale = Tale::new();
    tale.push(1, 1, 5, 10).tx(5, 36, true);
    // The answer to the COMMIT came at 35.
    tale.popped(1, 30, &[1]).acked(1, 40, &[1]);
    assert_eq!(tale.faults(), [Fault::Uncommitted]);
    // At 37 the transaction may have been committed.
    let mut tale = Tale::new();
    tale.push(1, 1, 5, 10).tx(5, 36, true);
    tale.popped(1, 32, &[1]).acked(1, 40, &[1]);
    assert_eq!(tale.faults(), []);
}

#[test]
fn two_messages_of_a_producer_that_swap_are_an_inversion() {
    let mut tale = Tale::new();
    tale.push(1, 1, 5, 10).push(2, 1, 5, 11).tx(5, 15, true);
    tale.popped(1, 30, &[2]).acked(1, 40, &[2]);
    tale.popped(2, 50, &[1]).acked(2, 60, &[1]);
    assert_eq!(tale.faults(), [Fault::Inversion]);
}

#[test]
fn an_overtaken_message_is_named_once() {
    let mut tale = Tale::new();
    tale.pushed(1, 1, 10).pushed(2, 1, 20).pushed(3, 1, 30).pushed(4, 2, 11);
    tale.popped(1, 40, &[4, 2, 3]).acked(1, 50, &[2, 3, 4]);
    tale.popped(2, 60, &[1]).acked(2, 70, &[1]);
    assert_eq!(check(&tale.0).len(), 1);
    assert_eq!(tale.faults(), [Fault::Inversion]);
}

#[test]
fn a_swap_within_one_pop_is_an_inversion() {
    let mut tale = Tale::new();
    tale.push(1, 1, 5, 10).push(2, 1, 5, 11).tx(5, 15, true);
    tale.popped(1, 30, &[2, 1]).acked(1, 40, &[1, 2]);
    assert_eq!(tale.faults(), [Fault::Inversion]);
}

#[test]
fn what_began_after_a_commit_comes_after_it() {
    let mut tale = Tale::new();
    // The first transaction is answered at 12; the second push begins at 13.
    tale.pushed(1, 1, 10).pushed(2, 2, 13);
    tale.popped(1, 30, &[2]).acked(1, 40, &[2]);
    tale.popped(2, 50, &[1]).acked(2, 60, &[1]);
    assert_eq!(tale.faults(), [Fault::Inversion]);
}

#[test]
fn overlapping_transactions_may_swap() {
    let mut tale = Tale::new();
    tale.pushed(1, 1, 10).pushed(2, 2, 11);
    tale.popped(1, 30, &[2]).acked(1, 40, &[2]);
    tale.popped(2, 50, &[1]).acked(2, 60, &[1]);
    assert_eq!(tale.faults(), []);
}

#[test]
fn the_order_of_a_lock_is_kept() {
    // The transactions overlap, and the second one under the lock has the smaller number.
    let mut tale = Tale::new();
    tale.push(1, 1, 5, 12).push(2, 2, 6, 10).tx(5, 20, true).tx(6, 15, true);
    tale.0.pushes[0].locked = Some((0, 2));
    tale.0.pushes[1].locked = Some((0, 1));
    tale.popped(1, 30, &[1]).acked(1, 40, &[1]);
    tale.popped(2, 50, &[2]).acked(2, 60, &[2]);
    assert_eq!(tale.faults(), [Fault::Inversion]);
    tale.0.pushes[0].locked = Some((0, 1));
    tale.0.pushes[1].locked = Some((0, 2));
    assert_eq!(tale.faults(), []);
}

#[test]
fn overtaking_an_unsettled_message_is_seen() {
    let mut tale = Tale::new();
    tale.pushed(1, 1, 10).pushed(2, 1, 20);
    tale.popped(1, 30, &[1]);
    // The lease was released, but the message was not completed.
    tale.released(1, 5, 36).tx(5, 37, true);
    tale.popped(2, 40, &[2]).acked(2, 50, &[2]);
    tale.popped(3, 60, &[1]).acked(3, 70, &[1]);
    assert_eq!(tale.faults(), [Fault::Overtook]);
}

#[test]
fn an_ack_counts_from_its_commit_on() {
    // The pop returns at 45. The COMMIT of the ack that settles the earlier message is sent at 46.
    let mut tale = Tale::new();
    tale.pushed(1, 1, 10).pushed(2, 1, 20).popped(1, 30, &[1]);
    tale.ack(1, 5, 36, &[1], true).tx(5, 46, true);
    tale.popped(2, 40, &[2]).acked(2, 50, &[2]);
    assert_eq!(tale.faults(), [Fault::Overtook, Fault::Shared]);
    // In the pop's own transaction the ack counts at once, also when the transaction rolls back.
    let mut tale = Tale::new();
    tale.pushed(1, 1, 10).pushed(2, 1, 20).popped(1, 30, &[1]);
    tale.ack(1, 5, 36, &[1], true).pop(2, 5, 40, &[2]).tx(5, 46, false);
    tale.ack(1, 6, 56, &[1], true).pop(3, 6, 60, &[2]).ack(3, 6, 66, &[2], true).tx(6, 68, true);
    tale.0.deliveries[2].attempt = 1;
    assert_eq!(tale.faults(), []);
}

#[test]
fn an_ack_undone_by_a_savepoint_does_not_count() {
    let mut tale = Tale::new();
    tale.pushed(1, 1, 10).pushed(2, 1, 20).popped(1, 30, &[1]);
    tale.ack(1, 5, 36, &[1], true).pop(2, 5, 40, &[2]).tx(5, 70, true);
    tale.0.completions[0].undone = Some(38);
    tale.0.releases[0].undone = Some(38);
    tale.ack(1, 5, 60, &[1], true).ack(2, 5, 60, &[2], true);
    assert_eq!(tale.faults(), [Fault::Overtook, Fault::Shared]);
}

#[test]
fn a_completed_message_stays_away() {
    let mut tale = Tale::new();
    tale.pushed(1, 1, 10).popped(1, 30, &[1]).acked(1, 40, &[1]);
    tale.popped(2, 50, &[1]);
    assert_eq!(tale.faults(), [Fault::Resurrected]);
}

#[test]
fn a_stream_has_one_holder() {
    // The messages are unrelated, so only the lease shows the fault.
    let mut tale = Tale::new();
    tale.pushed(1, 1, 10).pushed(2, 2, 11);
    tale.popped(1, 30, &[1]).popped(2, 40, &[2]);
    tale.acked(1, 50, &[1]).acked(2, 60, &[2]);
    assert_eq!(tale.faults(), [Fault::Shared]);
}

#[test]
fn an_expired_lease_holds_nothing() {
    let mut tale = Tale::new();
    tale.pushed(1, 1, 10).popped(1, 30, &[1]).popped(2, 1031, &[1]).acked(2, 1040, &[1]);
    assert_eq!(tale.faults(), []);
    let mut tale = Tale::new();
    tale.pushed(1, 1, 10).popped(1, 30, &[1]).popped(2, 1029, &[1]).acked(2, 1040, &[1]);
    assert_eq!(tale.faults(), [Fault::Shared]);
}

#[test]
fn an_open_transaction_holds_what_it_popped_after_the_lease() {
    let mut tale = Tale::new();
    tale.pushed(1, 1, 10).pop(1, 5, 30, &[1]).tx(5, 2000, true);
    tale.popped(2, 1100, &[1]).acked(2, 1110, &[1]);
    assert_eq!(tale.faults(), [Fault::Shared]);
}

#[test]
fn a_rolled_back_pop_frees_its_messages() {
    let mut tale = Tale::new();
    tale.pushed(1, 1, 10).pop(1, 5, 30, &[1]).tx(5, 36, false);
    tale.popped(2, 37, &[1]).acked(2, 50, &[1]);
    tale.0.deliveries[1].attempt = 1;
    assert_eq!(tale.faults(), []);
    // Until it rolls back it holds its messages.
    let mut tale = Tale::new();
    tale.pushed(1, 1, 10).pop(1, 5, 30, &[1]).tx(5, 50, false);
    tale.popped(2, 37, &[1]).acked(2, 60, &[1]);
    tale.0.deliveries[1].attempt = 1;
    assert_eq!(tale.faults(), [Fault::Shared]);
}

#[test]
fn attempts_count_committed_deliveries() {
    let mut tale = Tale::new();
    tale.pushed(1, 1, 10).pop(1, 5, 30, &[1]).tx(5, 36, false);
    tale.popped(2, 37, &[1]).acked(2, 50, &[1]);
    // The pop that rolled back was counted.
    assert_eq!(tale.faults(), [Fault::Attempt]);
    tale.0.gaps = true;
    assert_eq!(tale.faults(), []);
}

#[test]
fn a_message_keeps_its_number_and_place() {
    let mut tale = Tale::new();
    tale.pushed(1, 1, 10).popped(1, 30, &[1]).acked(1, 40, &[1]);
    tale.0.deliveries[0].message_id = 11;
    assert_eq!(tale.faults(), [Fault::Identity]);
}

#[test]
fn a_message_comes_once_in_a_pop() {
    let mut tale = Tale::new();
    tale.pushed(1, 1, 10).popped(1, 30, &[1]).acked(1, 40, &[1]);
    let again = Delivery { at: 1, attempt: 2, ..tale.0.deliveries[0].clone() };
    tale.0.deliveries.push(again);
    assert_eq!(tale.faults(), [Fault::Repeated]);
}

#[test]
fn a_group_sees_what_commits_after_it_registered() {
    let registered = |tale: &mut Tale| tale.0.groups[0].registered = Some((20, 25));
    // The transaction that is answered before 20 is not for this group. The one that is sent after
    // 25 is.
    let mut tale = Tale::new();
    tale.pushed(1, 1, 10).pushed(2, 2, 26).popped(1, 30, &[2]).acked(1, 40, &[2]);
    registered(&mut tale);
    assert_eq!(tale.faults(), []);
    let mut tale = Tale::new();
    tale.pushed(1, 1, 10).popped(1, 30, &[1]).acked(1, 40, &[1]);
    registered(&mut tale);
    assert_eq!(tale.faults(), [Fault::BeforeRegistration]);
    let mut tale = Tale::new();
    tale.pushed(1, 1, 26);
    registered(&mut tale);
    assert_eq!(tale.faults(), [Fault::Lost]);
    // A transaction in between may be for the group or not. If the group gets the message, it must
    // complete it.
    let mut tale = Tale::new();
    tale.pushed(1, 1, 22);
    registered(&mut tale);
    assert_eq!(tale.faults(), []);
    tale.popped(1, 30, &[1]);
    assert_eq!(tale.faults(), [Fault::Lost]);
}
