//! What happens to a cursor besides pops and settlements: budgets of deliveries, messages that are
//! not for the group, expiry without a pop, seeks.

use queen_engine::cursor::{Cursor, Drain, Start};
use queen_engine::holes::{Holes, Snapshot};
use queen_engine::lease::LeaseId;
use queen_engine::message::{MessageId, Span, Spans};
use queen_engine::pop::{FoundSegment, Pop, Popped, Read};
use queen_engine::receipt::Ending;
use queen_engine::settle::{Named, Policy, Refusal, Status, settle};

const MINUTE: i64 = 60_000_000;
const POLICY: Policy = Policy {
    retry_limit: 3,
    retry_delay: 0,
    retry_backoff: 1.0,
    retry_delay_max: 0,
    drop_exhausted: false,
};

fn no_transaction_runs() -> Snapshot {
    Snapshot::new(&[], 100, 100, None)
}

fn lease(random: u64) -> LeaseId {
    LeaseId::of_one(1, 0, random)
}

/// Pop from a log of these segments.
fn pop(
    cursor: &Cursor,
    log: &[FoundSegment],
    wanted: usize,
    max: Option<u32>,
    now: i64,
) -> Option<Popped> {
    let snapshot = no_transaction_runs();
    let mut pop = Pop::begin(cursor.clone(), &snapshot, wanted, max);
    while let Some(read) = pop.next_read() {
        let after = match read {
            Read::Beyond { after } => after,
            Read::Late { .. } => unreachable!("nothing is late here"),
        };
        let found: Vec<FoundSegment> =
            log.iter().filter(|found| found.segment > after).copied().collect();
        pop.supply(&read, &found, true);
    }
    pop.finish(Some((lease(now as u64), MINUTE)), now)
}

fn segment(segment: u64, messages: u16) -> FoundSegment {
    FoundSegment { segment, messages, skip: false, repeats: None }
}

fn ids(spans: &Spans) -> Vec<(u64, u16)> {
    spans.messages().map(|id| (id.segment(), id.index())).collect()
}

#[test]
fn a_message_delivered_too_often_is_exhausted_and_the_rest_flows() {
    let log = [segment(1, 1), segment(2, 2)];
    let first = pop(&Cursor::default(), &log, 2, Some(2), 0).unwrap();
    let second = pop(&first.cursor, &log, 1, Some(2), 2 * MINUTE).unwrap();
    assert_eq!((ids(&second.taken), second.exhausted.len()), (vec![(1, 0)], 0));
    // The first message has been delivered twice, the second once, the third never.
    let third = pop(&second.cursor, &log, 9, Some(2), 4 * MINUTE).unwrap();
    assert_eq!(ids(&third.taken), [(2, 0), (2, 1)]);
    let dead: Vec<_> = third.exhausted.iter().map(|dead| (dead.message, dead.deliveries)).collect();
    assert_eq!(dead, [(MessageId::new(1, 0), 2)]);
    assert_eq!(third.cursor.settled, 1);
    // There is nothing to deliver, but the exhausted messages still have to be written.
    let last = pop(&third.cursor, &log, 9, Some(1), 6 * MINUTE).unwrap();
    assert_eq!((last.taken.count(), last.exhausted.len(), last.cursor.settled), (0, 2, 3));
    assert!(last.cursor.leases.is_empty());
    assert_eq!(pop(&last.cursor, &log, 9, Some(1), 8 * MINUTE), None);
}

#[test]
fn what_is_not_for_the_group_is_passed_and_counts_as_settled() {
    let skipped = FoundSegment { skip: true, ..segment(1, 3) };
    let popped = pop(&Cursor::default(), &[skipped, segment(2, 1)], 5, None, 0).unwrap();
    assert_eq!((ids(&popped.taken), popped.cursor.settled), (vec![(2, 0)], 3));
    let alone = pop(&Cursor::default(), &[skipped], 5, None, 0).unwrap();
    assert_eq!((alone.taken.count(), alone.cursor.settled, alone.cursor.position), (0, 3, 1));
    assert_eq!(pop(&alone.cursor, &[skipped], 5, None, 0), None);
}

#[test]
fn reading_ends_where_it_is_told_to() {
    let snapshot = no_transaction_runs();
    let mut pop = Pop::begin(Cursor::default(), &snapshot, 5, None);
    let read = pop.next_read().unwrap();
    pop.supply(&read, &[segment(1, 1)], false);
    pop.stop();
    assert_eq!(pop.next_read(), None);
    let popped = pop.finish(Some((lease(1), MINUTE)), 0).unwrap();
    assert_eq!((ids(&popped.taken), popped.cursor.position), (vec![(1, 0)], 1));
}

#[test]
fn reclaiming_does_what_the_next_pop_would() {
    let log = [segment(1, 2)];
    let first = pop(&Cursor::default(), &log, 1, None, 0).unwrap();
    let mut cursor = first.cursor.clone();
    assert_eq!(cursor.reclaim(MINUTE - 1, i64::MIN), []);
    assert_eq!(cursor, first.cursor);
    let ended = cursor.reclaim(MINUTE, i64::MIN);
    assert_eq!(ended.iter().map(|(_, trace)| trace.ending).collect::<Vec<_>>(), [Ending::Expired]);
    assert_eq!((ids(&cursor.waiting), cursor.leases.len()), (vec![(1, 0), (1, 1)], 0));
    let after = pop(&cursor, &log, 2, None, 2 * MINUTE).unwrap();
    let without = pop(&first.cursor, &log, 2, None, 2 * MINUTE).unwrap();
    assert_eq!(after.cursor, without.cursor);
}

#[test]
fn a_seek_takes_leases_away_and_says_so() {
    let first = pop(&Cursor::default(), &[segment(7, 2)], 2, None, 0).unwrap();
    let held = lease(0);
    let (moved, revoked) = first.cursor.moved_to(Start { position: 3, ..Start::default() });
    assert_eq!((moved.position, moved.open(), moved.settled), (3, 0, 0));
    let [(id, trace)] = &revoked[..] else { panic!("one lease was live") };
    assert_eq!((*id, trace.ending), (held, Ending::Revoked));
    let all = Named { rest: Some(Status::Completed), ..Named::default() };
    let refusal = settle(&moved, held, Some(trace), &all, &POLICY, 1, i64::MIN).unwrap_err();
    assert_eq!(refusal, Refusal::Superseded { holder: None });
    // The counts of deliveries start again.
    let again = pop(&moved, &[segment(7, 2)], 1, None, 1).unwrap();
    assert_eq!(again.taken.max_deliveries(), 1);
    // A purge leaves the position where it is.
    let emptied = first.cursor.emptied();
    assert_eq!((emptied.position, emptied.open()), (7, 0));
}

#[test]
fn who_reads_on_from_a_retired_cursor_finds_nothing() {
    let mut cursor = Cursor { position: 7, settled: 3, ..Cursor::default() };
    assert!(pop(&cursor, &[segment(8, 2)], 2, None, 0).is_some());
    cursor.holes = Holes::from_ranges(vec![(5, 6)]);
    let retired = cursor.retired();
    assert_eq!(pop(&retired, &[segment(8, 2)], 2, None, 0), None);
    assert!(retired.has_read(6, 5) && retired.has_read(1 << 43, 5));
    assert_eq!(retired.settled, cursor.settled);
}

#[test]
fn what_was_read_is_told_from_what_is_still_to_come() {
    let holes = |xids: &[u64]| Holes::from_ranges(xids.iter().map(|x| (*x, x + 1)).collect());
    let mut cursor = Cursor { position: 50, holes: holes(&[5, 6]), ..Cursor::default() };
    assert!(cursor.has_read(50, 4) && cursor.has_read(10, 4));
    assert!(!cursor.has_read(51, 4), "beyond the position");
    assert!(!cursor.has_read(10, 5), "of a transaction that was running");
    // While segments of transaction 5 are being drained and 6 still runs: they have been read up to
    // segment 20.
    cursor.drain = Some(Drain { after: 20, until: holes(&[6]) });
    assert!(cursor.has_read(20, 5) && !cursor.has_read(21, 5));
    assert!(!cursor.has_read(10, 6));
}

#[test]
fn what_a_start_does_not_cover_is_what_was_still_to_come() {
    let snapshot = Snapshot::new(&[5, 8], 10, 12, Some(9));
    let start = Start::after(40, &snapshot);
    // 10 and 11 had begun without being in the list; 9 is the registering transaction itself.
    let unseen = [(5, 6, 0), (8, 9, 0), (10, 12, 0), (9, 10, 40), (12, i64::MAX as u64, 0)];
    assert_eq!(start.unseen(), unseen);
    assert_eq!(Start::default().unseen(), [(0, i64::MAX as u64, 0)]);
}

#[test]
fn spans_of_nothing_are_nothing() {
    let empty: Spans = [Span { segment: 1, first: 0, len: 0, deliveries: 0 }].into_iter().collect();
    assert!(empty.is_empty());
}
