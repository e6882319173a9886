//! Rules that are wrong, one at a time, each with the promise that the model must find broken. So
//! the model would notice if the engine did this.

pub mod leases;
pub mod reading;
pub mod settling;
pub mod without_order;

use super::bounds::Bounds;
use super::promise::Promise;
use super::rules::Rules;

pub struct Mutation {
    pub name: &'static str,
    pub broken: Promise,
    pub rules: Rules,
    pub bounds: Bounds,
}

fn mutation(name: &'static str, broken: Promise, rules: Rules, bounds: Bounds) -> Mutation {
    Mutation { name, broken, rules, bounds }
}
