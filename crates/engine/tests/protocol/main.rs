//! Every run of the protocol, within bounds: transactions that push and commit in any order,
//! workers that pop, settle, fail, expire, extend and crash, sweeps, seeks, and crashes of the
//! server. Each step calls the engine. The model's own *ledger* says what may come of it.
//!
//! What is left out: how a group finds partitions with something to deliver (the model looks at all
//! of them), leases over several partitions, retention, and the cache that a session has of a
//! partition without order. Transactions of consumers are single steps, or two with
//! [`Bounds::two_steps`]. They have no xid: one more in the holes makes these wider, and a wider
//! set of holes is never wrong.
//!
//! `make model` explores larger bounds, for some minutes (`docs/guarantees.md` has its figures).

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic)]

mod bounds;
mod database;
mod events;
mod exploring;
mod log;
mod mutations;
mod popping;
mod promise;
mod rules;
mod settling;
mod sizes;
mod state;
mod upkeep;

use std::collections::HashMap;
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model as _, Path};

use self::bounds::Bounds;
use self::events::{Event, Events};
use self::exploring::Deed;
use self::mutations::Mutation;
use self::rules::Rules;
use self::sizes::Size;
use self::state::State;

/// The protocol, with these rules, within these bounds.
#[derive(Clone)]
pub struct Protocol {
    pub rules: Rules,
    pub bounds: Bounds,
    pub events: Events,
}

/// Explore all states, or until one of these promises is found broken. Returns the promises that
/// are.
fn explore(
    name: &str,
    model: Protocol,
    depth_first: bool,
    until: HasDiscoveries,
) -> Vec<&'static str> {
    let began = Instant::now();
    let checker = model.checker().threads(2).finish_when(until);
    let (states, depth, broken) = match depth_first {
        true => summary(checker.spawn_dfs().join()),
        false => summary(checker.spawn_bfs().join()),
    };
    let seconds = began.elapsed().as_secs_f64();
    println!("{name}: {states} states, {depth} steps deep, {seconds:.1} seconds");
    for (promise, run) in &broken {
        println!("broken: {promise}, by {:#?}", run.clone().into_actions());
    }
    broken.into_keys().collect()
}

type Broken = HashMap<&'static str, Path<State, Deed>>;

fn summary(checker: impl Checker<Protocol>) -> (usize, usize, Broken) {
    (checker.unique_state_count(), checker.max_depth(), checker.discoveries())
}

/// Explore models one by one. Each keeps all promises, and together they have met each event.
/// Large ones depth first: the states that are still to be looked at need less memory.
fn keep_all_promises(sizes: &[Size], are_large: bool, met: &[Event]) {
    let events = Events::default();
    for (name, bounds) in sizes {
        let model = Protocol { rules: Rules::REAL, bounds: *bounds, events: events.clone() };
        let broken = explore(name, model, are_large, HasDiscoveries::AnyFailures);
        assert_eq!(broken, [""; 0], "{name}");
    }
    for event in met {
        assert!(events.has(*event), "{event:?} has never happened");
    }
}

#[test]
fn an_ordered_group_keeps_all_promises() {
    keep_all_promises(sizes::SMALL_ORDERED, false, events::ORDERED);
}

#[test]
fn a_group_without_order_keeps_all_promises() {
    keep_all_promises(sizes::SMALL_WITHOUT_ORDER, false, events::UNORDERED);
}

#[test]
#[ignore = "takes minutes: make model"]
fn large_ordered_groups_keep_all_promises() {
    keep_all_promises(sizes::LARGE_ORDERED, true, &[]);
}

#[test]
#[ignore = "takes minutes: make model"]
fn large_groups_without_order_keep_all_promises() {
    keep_all_promises(sizes::LARGE_WITHOUT_ORDER, true, &[]);
}

#[test]
#[ignore = "takes an hour: make model"]
fn the_largest_groups_keep_all_promises() {
    keep_all_promises(sizes::LARGEST, true, &[]);
}

/// Of each mutation the model finds the promise that it breaks.
fn finds(mutations: &[fn() -> Mutation]) {
    for mutation in mutations {
        let Mutation { name, broken, rules, bounds } = mutation();
        let model = Protocol { rules, bounds, events: Events::default() };
        let until = HasDiscoveries::AllOf([broken.name()].into());
        let found = explore(name, model, false, until);
        assert!(found.contains(&broken.name()), "{name}: {found:?}");
    }
}

#[test]
fn wrong_rules_of_reading_are_found() {
    finds(mutations::reading::ALL);
}

#[test]
fn wrong_rules_of_leases_are_found() {
    finds(mutations::leases::ALL);
}

#[test]
fn wrong_rules_of_settling_are_found() {
    finds(mutations::settling::ALL);
}

#[test]
fn wrong_rules_without_order_are_found() {
    finds(mutations::without_order::ALL);
}
