//! Scenario 18: a consumer's loop, which settles a message and pops the next in one transaction.

use anyhow::Result;

use super::consume::single_backlog;
use crate::job::{ACK_AND_POP, Action, Loop, System};
use crate::lab::{Contender, Lab};
use crate::outcome::{Goal, Outcome};

const SESSIONS: usize = 8;
const TWO: &str = "queen_mq, two transactions";
const DURABLE: &str = "queen_mq, two transactions, durable leases";
const TRANSACTION: &str = "queen_mq, BEGIN … COMMIT";
const FUNCTION: &str = "queen_mq, one call";
const PGMQ_TWO: &str = "pgmq, two transactions";
const PGMQ_TRANSACTION: &str = "pgmq, BEGIN … COMMIT";

pub async fn run(lab: &Lab) -> Result<Outcome> {
    let db = lab.server.database("ack_and_pop").await?;
    db.session().await?.batch_execute(ACK_AND_POP).await?;
    let of = |system: System, label: &str| {
        Contender::consumes(system, 1, SESSIONS, single_backlog(lab)).labelled(label)
    };
    let contenders = [
        of(System::Queen, TWO),
        of(System::Queen, DURABLE).with("SET queen_mq.durable_leases = on"),
        of(System::Queen, TRANSACTION).doing(Action::Loop(Loop::Transaction)),
        of(System::Queen, FUNCTION).doing(Action::Loop(Loop::Function)),
        of(System::Pgmq, PGMQ_TWO),
        of(System::Pgmq, PGMQ_TRANSACTION).doing(Action::Loop(Loop::Transaction)),
    ];

    let method = format!(
        "{SESSIONS} sessions settle a message and pop the next one, again and again, from {} in \
         1,000 partitions: in two transactions as in scenario 4, in one transaction of four round \
         trips, or by one call of a function in PL/pgSQL, which is one round trip. A pop in a \
         transaction of its own waits for the disk with durable leases only",
        lab.scale.singles
    );
    let mut outcome = Outcome::new(18, "a loop of ack + pop", method);
    outcome.samples = lab.contest(&db, &contenders).await?;
    outcome.compare(FUNCTION, TWO, Some(Goal::AtLeast(1.5)));
    outcome.compare(TRANSACTION, TWO, None);
    outcome.compare(FUNCTION, DURABLE, None);
    outcome.compare(PGMQ_TRANSACTION, PGMQ_TWO, None);
    outcome.compare(FUNCTION, PGMQ_TRANSACTION, None);
    lab.server.drop_database(db).await?;
    Ok(outcome)
}
