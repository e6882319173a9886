//! Tests the cursor against a model that remembers everything: transactions overlap, commit late
//! and roll back, pops stop anywhere, leases run out, and messages are settled in every way.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic)]

mod world;

use proptest::prelude::*;
use queen_engine::cursor::Readiness;
use queen_engine::message::MessageId;
use queen_engine::settle::{Refusal, Status, extend};

use self::world::{FOREVER, LEASE, POLICY, Step, World, any_step};

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_repeated_or_out_of_order(steps in prop::collection::vec(any_step(), 1..80)) {
        let mut world = World::default();
        for step in &steps {
            world.run(step);
        }
        world.drain();
    }
}

#[test]
fn a_late_commit_comes_first_and_once() {
    let mut world = World::default();
    world.run(&Step::Push(0, 2)); // segment 1, still open
    world.run(&Step::Push(1, 1));
    world.run(&Step::Commit(1));
    assert_eq!(world.pop(10, 8), [MessageId::new(2, 0)]);
    world.run(&Step::SettleAll(Status::Completed));
    world.run(&Step::Push(1, 1));
    world.run(&Step::Commit(1));
    world.run(&Step::Commit(0));
    let late = [MessageId::new(1, 0), MessageId::new(1, 1), MessageId::new(3, 0)];
    assert_eq!(world.pop(10, 8), late);
}

#[test]
fn more_late_messages_than_wanted_are_drained_over_several_pops() {
    let mut world = World::default();
    for _ in 0..5 {
        world.run(&Step::Push(0, 1));
    }
    world.run(&Step::Push(1, 1));
    world.run(&Step::Commit(1));
    assert_eq!(world.pop(1, 1), [MessageId::new(6, 0)]);
    world.run(&Step::SettleAll(Status::Completed));
    world.run(&Step::Commit(0));
    for segment in 1..=5 {
        assert_eq!(world.pop(1, 1), [MessageId::new(segment, 0)]);
        world.run(&Step::SettleAll(Status::Completed));
    }
    assert!(world.pop(1, 1).is_empty());
}

#[test]
fn a_failure_ends_the_lease_and_keeps_what_was_completed() {
    let mut world = World::default();
    world.run(&Step::Push(0, 3));
    world.run(&Step::Commit(0));
    assert_eq!(world.pop(3, 8).len(), 3);
    world.run(&Step::Settle(0b101, Status::Completed));
    world.run(&Step::Settle(0b010, Status::Failed { delay: None }));
    assert!(world.pop(3, 8).is_empty(), "the retry delay was not kept");
    world.run(&Step::Wait(POLICY.retry_delay));
    assert_eq!(world.pop(3, 8), [MessageId::new(1, 1)]);
}

#[test]
fn extending_never_shortens_and_never_revives() {
    let mut world = World::default();
    world.run(&Step::Push(0, 1));
    world.run(&Step::Commit(0));
    world.pop(1, 1);
    let lease = world.lease.clone().expect("popped").0;
    let (cursor, deadline) =
        extend(&world.cursor, lease, None, Some(1), world.now, FOREVER).expect("is live");
    assert_eq!(deadline, world.now + LEASE);
    let (_, longer) = extend(&cursor, lease, None, None, world.now + 10, FOREVER).expect("is live");
    assert_eq!(longer, world.now + 10 + LEASE);
    let late = extend(&cursor, lease, None, None, world.now + LEASE, FOREVER);
    assert_eq!(late, Err(Refusal::Expired { deadline, deliveries: 1 }));
}

#[test]
fn leases_from_before_a_restore_count_as_expired() {
    let mut world = World::at(5_000_000);
    world.run(&Step::Push(0, 1));
    world.run(&Step::Commit(0));
    world.pop(1, 1);
    assert_ne!(world.cursor.readiness(world.now, FOREVER), Readiness::Now);
    assert_eq!(world.cursor.readiness(world.now, world.now + 1), Readiness::Now);
}
