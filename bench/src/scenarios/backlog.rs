//! Scenario 10: does a backlog slow pushes and pops?

use anyhow::Result;

use crate::db::Db;
use crate::fill::Backlog;
use crate::job::{Action, System};
use crate::lab::{Contender, Lab};
use crate::load::{self, Latencies};
use crate::outcome::{Check, Goal, Outcome, Sample};

const SESSIONS: usize = 16;
const PARTITIONS: u64 = 1000;

/// One measurement in both databases: with the backlog, and without.
struct Pair {
    what: &'static str,
    action: Action,
    /// The messages it pops in the database without a backlog.
    needs: u64,
    rates: [Vec<f64>; 2],
    latencies: [Latencies; 2],
}

impl Pair {
    fn new(what: &'static str, action: Action, needs: u64) -> Result<Self> {
        let latencies = [load::latencies()?, load::latencies()?];
        Ok(Self { what, action, needs, rates: [Vec::new(), Vec::new()], latencies })
    }
}

pub async fn run(lab: &Lab) -> Result<Outcome> {
    let messages = lab.scale.big_backlog;
    let big = lab.server.database("big").await?;
    let small = lab.server.database("small").await?;
    let backlog = Backlog { messages, partitions: PARTITIONS, segment: 100 };
    let heap = Contender::consumes(System::Queen, 1, SESSIONS, backlog);
    lab.progress.set_message(format!("filling in {messages} messages"));
    lab.fresh(&big, &heap, "heap").await?;

    let mut pairs = [
        Pair::new("push 1", Action::Push { batch: 1 }, 0)?,
        Pair::new("pop 1 + ack", Action::Consume { batch: 1 }, lab.scale.singles)?,
        Pair::new("pop 100 + ack", Action::Consume { batch: 100 }, lab.scale.batches)?,
    ];
    for round in 0..lab.scale.rounds {
        for (n, pair) in pairs.iter_mut().enumerate() {
            one_round(lab, [&small, &big], pair, &format!("q{n}_{round}")).await?;
        }
    }

    let method = format!(
        "16 sessions and 1,000 partitions, on a queue with {messages} messages and, in a database \
         of its own, on one without (when popping: with no more than is popped); all were pushed \
         100 per call"
    );
    let mut outcome = Outcome::new(10, "a big backlog against an empty queue", method);
    for pair in pairs {
        report(&mut outcome, pair);
    }
    lab.server.drop_database(big).await?;
    lab.server.drop_database(small).await?;
    Ok(outcome)
}

async fn one_round(lab: &Lab, [small, big]: [&Db; 2], pair: &mut Pair, queue: &str) -> Result<()> {
    lab.progress.set_message(pair.what);
    let mut contender =
        Contender::pushes(System::Queen, 1, PARTITIONS, SESSIONS).doing(pair.action);
    let with = lab.measure(big, &contender, "heap", lab.scale.duration).await?;
    if pair.needs > 0 {
        let backlog = Backlog { messages: pair.needs, partitions: PARTITIONS, segment: 100 };
        contender.backlog = Some(backlog);
    }
    let without = lab.turn(small, &contender, queue).await?;
    for (n, measured) in [without, with].into_iter().enumerate() {
        pair.rates[n].push(measured.rate());
        pair.latencies[n].add(&measured.latencies)?;
    }
    Ok(())
}

fn report(outcome: &mut Outcome, pair: Pair) {
    let samples: Vec<Sample> = ["empty", "backlog"]
        .into_iter()
        .zip(pair.rates)
        .zip(pair.latencies)
        .map(|((name, rates), latencies)| {
            Sample::of_rates(format!("{}, {name}", pair.what), rates, &latencies)
        })
        .collect();
    let what = format!("{}, backlog / empty", pair.what);
    let check = Check::paired(what, &samples[1], &samples[0], Some(Goal::AtLeast(0.9)));
    outcome.checks.push(check);
    outcome.samples.extend(samples);
}
