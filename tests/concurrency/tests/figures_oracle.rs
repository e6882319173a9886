//! The figures that a session brings forward from look to look are those that a look at everything
//! finds: after random operations in several transactions, and by a count that the test keeps.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use queen_tests::{Ack, Pop, Session, TestDb};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::Value;

/// More than a small group has, so that a session remembers it.
const PARTITIONS: u32 = 300;

/// Everything that the views and the metrics show; ages in relation to that of the queue's oldest
/// message, to a tenth of a millisecond.
const FIGURES: &str = "
    WITH metrics AS MATERIALIZED (SELECT name, labels, value FROM queen_metrics()),
         ages AS (SELECT m.name, m.labels, round((oldest.value - m.value)::numeric, 4) AS less
                  FROM metrics m LEFT JOIN metrics oldest
                      ON oldest.name = 'queen_queue_oldest_age_seconds'
                      AND oldest.labels ->> 'queue' = m.labels ->> 'queue'
                  WHERE m.name ~ '_age_')
    SELECT jsonb_build_object(
        'queues', (SELECT jsonb_agg(to_jsonb(q) - 'oldest_age' ORDER BY queue) FROM queen_queues q),
        'groups', (SELECT jsonb_agg(to_jsonb(g) - 'oldest_pending_age'
                                    ORDER BY queue, consumer_group) FROM queen_groups g),
        'leases', (SELECT jsonb_agg(to_jsonb(l) ORDER BY queue, consumer_group, partition, lease_id)
                   FROM queen_leases l),
        'metrics', (SELECT jsonb_agg(to_jsonb(m) ORDER BY name, labels) FROM metrics m
                    WHERE name !~ '_age_'),
        'ages', (SELECT jsonb_agg(to_jsonb(a) ORDER BY name, labels) FROM ages a))";

async fn figures(session: &Session) -> Result<Value> {
    Ok(session.query_one(FIGURES, &[]).await?.get(0))
}

/// Those of a look at everything: a transaction in SERIALIZABLE remembers nothing.
async fn found_anew(session: &Session) -> Result<Value> {
    session.run("BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY").await?;
    let figures = figures(session).await;
    session.run("ROLLBACK").await?;
    figures
}

/// The first kind of figure in which the two differ.
fn difference(a: &Value, b: &Value) -> String {
    let kinds = ["queues", "groups", "leases", "metrics", "ages"];
    let differs = kinds.iter().find(|kind| a[*kind] != b[*kind]);
    differs.map_or_else(String::new, |kind| {
        let rows = |of: &Value| of[kind].as_array().cloned().unwrap_or_default();
        let (a, b) = (rows(a), rows(b));
        let only = |of: &[Value], others: &[Value]| {
            of.iter().filter(|row| !others.contains(row)).map(Value::to_string).collect::<Vec<_>>()
        };
        format!("{kind}: {:?} instead of {:?}", only(&a, &b), only(&b, &a))
    })
}

struct Actor {
    session: Session,
    /// In a transaction that is not ended.
    is_open: bool,
}

struct Play {
    rng: StdRng,
    actors: Vec<Actor>,
    /// Messages that were pushed, and that were completed for the group g, by committed calls.
    pushed: i64,
    completed: i64,
    /// Both for the open transaction of each actor.
    open: Vec<(i64, i64)>,
}

impl Play {
    fn queue(&mut self) -> &'static str {
        ["ordered", "unordered"][self.rng.random_range(0..2)]
    }

    /// One call of a random kind by a random actor.
    async fn step(&mut self) -> Result<()> {
        let at = self.rng.random_range(0..self.actors.len());
        let kind = self.rng.random_range(0..100);
        match kind {
            0..35 => self.push(at).await,
            35..70 => self.consume(at).await,
            70..85 => self.transaction(at).await,
            85..93 if !self.actors[at].is_open => {
                self.actors[at].session.run("SELECT queen_sweep(300)").await.map_err(Into::into)
            }
            _ => Ok(()),
        }
    }

    async fn push(&mut self, at: usize) -> Result<()> {
        let (from, count) = (self.rng.random_range(1..=PARTITIONS), self.rng.random_range(1..=20));
        let queue = self.queue();
        let sql = format!(
            "SELECT count(*) FROM queen_push_items((SELECT jsonb_agg(jsonb_build_object(
                 'queue', '{queue}', 'partition', 'p' || k % {PARTITIONS}, 'payload', k))
             FROM generate_series({from}, {from} + {count} - 1) AS k))"
        );
        self.actors[at].session.count(&sql).await?;
        self.note(at, i64::from(count), 0);
        Ok(())
    }

    /// Pop, and settle in one of several ways, or not at all.
    async fn consume(&mut self, at: usize) -> Result<()> {
        let (queue, lease) = (self.queue(), ["1 hour", "1 ms"][self.rng.random_range(0..2)]);
        let how = self.rng.random_range(0..6);
        let session = &self.actors[at].session;
        let pop = Pop::new(queue).group("g").mode("all").batch(7).partitions(5);
        let popped = pop.lease(if how < 4 { "1 hour" } else { lease }).run(session).await?;
        let Some(first) = popped.first() else { return Ok(()) };
        let lease_id = first.lease()?;
        let completed = match how {
            0 | 1 => Ack::all(lease_id).run(session).await?.settled,
            2 => {
                Ack::messages(lease_id, [first.message_id]).failed("no").run(session).await?;
                0
            }
            3 => {
                let one = Ack::messages(lease_id, [first.message_id]);
                one.status("dead_letter").run(session).await?.settled
            }
            _ => 0,
        };
        self.note(at, 0, i64::from(completed));
        Ok(())
    }

    /// Begin a transaction or a savepoint, or end one.
    async fn transaction(&mut self, at: usize) -> Result<()> {
        let actor = &mut self.actors[at];
        if !actor.is_open {
            actor.is_open = true;
            return actor.session.run("BEGIN").await.map_err(Into::into);
        }
        actor.is_open = false;
        let open = std::mem::take(&mut self.open[at]);
        match self.rng.random_range(0..3) {
            0 => actor.session.run("ROLLBACK").await?,
            _ => {
                actor.session.run("COMMIT").await?;
                (self.pushed, self.completed) = (self.pushed + open.0, self.completed + open.1);
            }
        }
        Ok(())
    }

    fn note(&mut self, at: usize, pushed: i64, completed: i64) {
        let open = &mut self.open[at];
        let counts = match self.actors[at].is_open {
            true => (&mut open.0, &mut open.1),
            false => (&mut self.pushed, &mut self.completed),
        };
        *counts.0 += pushed;
        *counts.1 += completed;
    }

    async fn end_transactions(&mut self) -> Result<()> {
        for at in 0..self.actors.len() {
            if self.actors[at].is_open {
                self.transaction(at).await?;
            }
        }
        Ok(())
    }
}

async fn prepared(db: &TestDb, seed: u64) -> Result<Play> {
    let session = db.session().await?;
    let (mut actors, mut open) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        actors.push(Actor { session: db.session().await?, is_open: false });
        open.push((0, 0));
    }
    session.run("SELECT queen_configure('unordered', ordering => 'none')").await?;
    for queue in ["ordered", "unordered"] {
        let sql = format!(
            "SELECT queen_configure('{queue}', retry_delay => '1 hour', retry_limit => 1);
             SELECT queen_subscribe('{queue}', 'g', 'all');
             SELECT queen_subscribe('{queue}', 'idle', 'all');
             SELECT queen_push_items((SELECT jsonb_agg(jsonb_build_object(
                 'queue', '{queue}', 'partition', 'p' || k, 'payload', k))
             FROM generate_series(0, {PARTITIONS} - 1) AS k))"
        );
        session.run(&sql).await?;
    }
    let rng = StdRng::seed_from_u64(seed);
    Ok(Play { rng, actors, pushed: 2 * i64::from(PARTITIONS), completed: 0, open })
}

/// Compare what the watching session shows with a look at everything before it, and one after it,
/// at a moment at which the worker changes nothing.
async fn compare(watching: &Session, oracle: &Session, what: &str) -> Result<Value> {
    for _ in 0..50 {
        // Leases of a millisecond are over in all three looks.
        tokio::time::sleep(Duration::from_millis(5)).await;
        let before = found_anew(oracle).await?;
        let shown = figures(watching).await?;
        let found = found_anew(oracle).await?;
        if before == found {
            ensure!(shown == found, "{what}: {}", difference(&shown, &found));
            return Ok(shown);
        }
    }
    bail!("{what}: no two looks at everything have found the same")
}

fn pending(figures: &Value, group: &str) -> i64 {
    let groups = figures["groups"].as_array().cloned().unwrap_or_default();
    let of = groups.iter().filter(|row| row["consumer_group"] == group);
    of.filter_map(|row| row["pending"].as_i64()).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_brought_forward_is_what_a_look_at_everything_finds() -> Result<()> {
    let seed = rand::random();
    let db = TestDb::fresh().await?;
    let [ref watching, ref oracle] = db.sessions().await?;
    let mut play = prepared(&db, seed).await?;
    for round in 0..60 {
        for _ in 0..play.rng.random_range(0..5) {
            play.step().await?;
        }
        let shown = compare(watching, oracle, &format!("seed {seed}, round {round}")).await?;
        assert_eq!(pending(&shown, "g"), play.pushed - play.completed, "{seed}, {round}");
        assert_eq!(pending(&shown, "idle"), play.pushed, "{seed}, {round}");
    }
    play.end_transactions().await?;
    compare(watching, oracle, &format!("seed {seed}, at the end")).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_administrator_does_is_followed_as_well() -> Result<()> {
    let seed = rand::random();
    let db = TestDb::fresh().await?;
    let [ref watching, ref oracle, ref session] = db.sessions().await?;
    let mut play = prepared(&db, seed).await?;
    let deeds = [
        "SELECT queen_seek('ordered', 'g', 'end')",
        "SELECT queen_seek('ordered', 'idle', 'end')",
        "SELECT queen_seek('ordered', 'g', 'start', partition => 'p7')",
        "SELECT queen_seek('unordered', 'g', 'start')",
        "SELECT queen_unsubscribe('ordered', 'idle')",
        "SELECT queen_subscribe('ordered', 'idle')",
        "SELECT queen_dead_letter_replay(dead_letter_id) FROM queen_dead_letters",
        "SELECT queen_configure('ordered', retention => '1 us'); SELECT queen_sweep(2000)",
        "SELECT queen_configure('ordered', unset => '{retention}')",
        "SELECT queen_configure('unordered', completed_retention => '1 us');
         SELECT queen_sweep(2000)",
        "VACUUM FULL queen_mq.progress",
        "VACUUM queen_mq.progress, queen_mq.claim, queen_mq.cursor",
        "SELECT queen_purge('unordered')",
        "SELECT queen_delete_queue('ordered')",
        "SELECT queen_push('ordered', '1', 'p1'), queen_push('ordered', '1', 'p2')",
        "SELECT queen_purge('ordered')",
    ];
    for (round, deed) in deeds.into_iter().enumerate() {
        for _ in 0..8 {
            play.step().await?;
        }
        play.end_transactions().await?;
        for statement in deed.split(';') {
            session.run(statement).await?;
        }
        compare(watching, oracle, &format!("seed {seed}, {round}: {deed}")).await?;
    }
    Ok(())
}
