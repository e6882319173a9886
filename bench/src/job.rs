//! What a session does again and again: one step of work, written for each system.

use anyhow::{Result, bail};
use bytes::{BufMut, BytesMut};
use futures_util::SinkExt;
use serde_json::json;
use tokio_postgres::Row;
use tokio_postgres::types::Json;
use uuid::Uuid;

use crate::db::Session;
use crate::payload::{Payloads, Size};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    Queen,
    Pgmq,
    /// The textbook way: a table, `FOR UPDATE SKIP LOCKED`, delete, commit.
    Table,
    /// graphile-worker, whose jobs are done by a worker of its own.
    Graphile,
}

impl System {
    pub fn label(self) -> &'static str {
        match self {
            Self::Queen => "queen_mq",
            Self::Pgmq => "pgmq",
            Self::Table => "table",
            Self::Graphile => "graphile-worker",
        }
    }

    /// Creates the queue. queen_mq would also create it with the first push.
    pub async fn create(self, session: &Session, queue: &str) -> Result<()> {
        match self {
            Self::Queen => {
                session.rows("SELECT queue FROM queen_configure($1)", &[&queue]).await?;
            }
            Self::Pgmq => {
                session.rows("SELECT pgmq.create($1)", &[&queue]).await?;
            }
            Self::Table => {
                let sql = format!(
                    "CREATE TABLE {queue} (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
                                           payload jsonb NOT NULL)"
                );
                session.batch_execute(&sql).await?;
            }
            // It has one table for all jobs.
            Self::Graphile => {
                session.batch_execute("TRUNCATE graphile_worker._private_jobs").await?;
            }
        }
        Ok(())
    }
}

/// Makes a queue of queen_mq one for competing consumers, like those of the other systems.
pub async fn without_order(session: &Session, queue: &str) -> Result<()> {
    let sql = "SELECT queue FROM queen_configure($1, ordering => 'none')";
    session.rows(sql, &[&queue]).await?;
    Ok(())
}

/// How a message's effect, its marker and its ack are put into one transaction.
#[derive(Clone, Copy, Debug)]
pub enum Effect {
    /// BEGIN; INSERT; queen_kv_put_if_absent; queen_ack; COMMIT
    Plain,
    /// BEGIN; INSERT; queen_tx_commit; COMMIT
    Bundle,
    /// INSERT and queen_tx_commit in one statement
    Statement,
}

/// How the ack of one message and the pop of the next are put into one transaction.
#[derive(Clone, Copy, Debug)]
pub enum Loop {
    /// BEGIN; ack; pop; COMMIT
    Transaction,
    /// One call of [`ACK_AND_POP`].
    Function,
}

#[derive(Clone, Copy, Debug)]
pub enum Action {
    Push { batch: usize },
    Copy { batch: usize },
    Consume { batch: i32 },
    Cycle { batch: usize },
    Effect(Effect),
    Loop(Loop),
}

/// One kind of step on one queue.
#[derive(Clone, Debug)]
pub struct Job {
    pub system: System,
    pub queue: String,
    pub action: Action,
    pub size: Size,
    pub partitions: u64,
}

/// Where in the run a step stands: the session's number and how many steps it has made.
#[derive(Clone, Copy)]
pub struct Turn {
    pub worker: u64,
    pub step: u64,
}

impl Turn {
    /// A number that spreads the steps of all sessions over partitions and payloads.
    fn spread(self) -> u64 {
        self.worker.wrapping_mul(7919).wrapping_add(self.step)
    }
}

/// What a session keeps from one step to the next: the message that a loop has popped.
#[derive(Default)]
pub struct Held(Option<Popped>);

const OWN_WORKER: &str = "graphile-worker has a worker of its own";

/// What a pop returned. The payloads are sent to the client, which does not look at them.
struct Popped {
    ids: Vec<i64>,
    lease: Option<Uuid>,
}

impl Job {
    /// Makes one step. Returns the number of messages it handled; 0 when there was nothing to do.
    pub async fn step(
        &self,
        session: &Session,
        payloads: &Payloads,
        turn: Turn,
        held: &mut Held,
    ) -> Result<u64> {
        let count = match self.action {
            Action::Push { batch } => self.push(session, payloads, turn, batch).await?,
            Action::Copy { batch } => self.copy(session, payloads, turn, batch).await?,
            Action::Consume { batch } => self.consume(session, batch).await?,
            Action::Cycle { batch } => {
                self.push(session, payloads, turn, batch).await?;
                self.consume(session, i32::try_from(batch)?).await?
            }
            Action::Effect(effect) => self.charge(session, effect).await?,
            Action::Loop(way) => self.ack_and_pop(session, way, held).await?,
        };
        Ok(count as u64)
    }

    async fn push(&self, s: &Session, p: &Payloads, turn: Turn, batch: usize) -> Result<usize> {
        if batch == 1 {
            self.push_one(s, p, turn).await?;
        } else {
            self.push_many(s, p, turn, batch).await?;
        }
        Ok(batch)
    }

    async fn push_one(&self, session: &Session, payloads: &Payloads, turn: Turn) -> Result<()> {
        let payload = payloads.one(self.size, turn.spread());
        match self.system {
            System::Queen => {
                let sql = "SELECT message_id FROM queen_push($1, $2, $3)";
                session.row(sql, &[&self.queue, payload, &self.partition(turn)]).await?;
            }
            System::Pgmq => {
                session.row("SELECT pgmq.send($1, $2)", &[&self.queue, payload]).await?;
            }
            System::Table => {
                let sql = format!("INSERT INTO {} (payload) VALUES ($1) RETURNING id", self.queue);
                session.row(&sql, &[payload]).await?;
            }
            System::Graphile => bail!(OWN_WORKER),
        }
        Ok(())
    }

    async fn push_many(&self, s: &Session, p: &Payloads, turn: Turn, batch: usize) -> Result<()> {
        let payloads = p.batch(self.size, turn.spread(), batch);
        match self.system {
            System::Queen => {
                let sql = "SELECT message_id FROM queen_push_batch($1, $2, $3)";
                s.rows(sql, &[&self.queue, &payloads, &self.partition(turn)]).await?;
            }
            System::Pgmq => {
                s.rows("SELECT pgmq.send_batch($1, $2)", &[&self.queue, &payloads]).await?;
            }
            System::Table => {
                let sql = format!(
                    "INSERT INTO {} (payload) SELECT unnest($1::jsonb[]) RETURNING id",
                    self.queue
                );
                s.rows(&sql, &[&payloads]).await?;
            }
            System::Graphile => bail!(OWN_WORKER),
        }
        Ok(())
    }

    /// COPY into the plain table: nothing that stores these rows durably does less.
    async fn copy(&self, s: &Session, p: &Payloads, turn: Turn, batch: usize) -> Result<usize> {
        let mut text = BytesMut::new();
        for payload in p.batch(self.size, turn.spread(), batch) {
            // The payloads contain no character that COPY has to escape.
            text.put_slice(payload.text().as_bytes());
            text.put_u8(b'\n');
        }
        let sink = s.copy_in(&format!("COPY {} (payload) FROM STDIN", self.queue)).await?;
        let mut sink = std::pin::pin!(sink);
        sink.send(text.freeze()).await?;
        Ok(usize::try_from(sink.finish().await?)?)
    }

    async fn consume(&self, session: &Session, batch: i32) -> Result<usize> {
        if self.system == System::Table {
            return self.take_from_table(session, batch).await;
        }
        let popped = self.pop(session, batch).await?;
        if !popped.ids.is_empty() {
            self.settle(session, &popped).await?;
        }
        Ok(popped.ids.len())
    }

    async fn pop(&self, session: &Session, batch: i32) -> Result<Popped> {
        let sql = match self.system {
            System::Queen => "SELECT message_id, payload, lease_id FROM queen_pop($1, batch => $2)",
            System::Pgmq => "SELECT msg_id, message FROM pgmq.read($1, 60, $2)",
            System::Table => bail!("the textbook has no lease"),
            System::Graphile => bail!(OWN_WORKER),
        };
        let rows = session.rows(sql, &[&self.queue, &batch]).await?;
        let lease = match self.system {
            System::Queen => rows.first().map(|row| row.get(2)),
            _ => None,
        };
        Ok(Popped { ids: ids(&rows), lease })
    }

    async fn settle(&self, session: &Session, popped: &Popped) -> Result<()> {
        match (popped.lease, popped.ids.as_slice()) {
            (Some(lease), _) => {
                session.row("SELECT settled FROM queen_ack($1)", &[&lease]).await?;
            }
            (None, [id]) => {
                let sql = "SELECT pgmq.delete($1, $2::bigint)";
                session.row(sql, &[&self.queue, id]).await?;
            }
            (None, ids) => {
                let sql = "SELECT pgmq.delete($1, $2::bigint[])";
                session.rows(sql, &[&self.queue, &ids]).await?;
            }
        }
        Ok(())
    }

    async fn take_from_table(&self, session: &Session, batch: i32) -> Result<usize> {
        let select = format!(
            "SELECT id, payload FROM {} ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED",
            self.queue
        );
        let delete = format!("DELETE FROM {} WHERE id = ANY ($1)", self.queue);
        session.batch_execute("BEGIN").await?;
        let popped = ids(&session.rows(&select, &[&i64::from(batch)]).await?);
        session.execute(&delete, &[&popped]).await?;
        session.batch_execute("COMMIT").await?;
        Ok(popped.len())
    }

    /// Pops one message and charges for it exactly once. The marker is named after the message.
    async fn charge(&self, session: &Session, effect: Effect) -> Result<usize> {
        let popped = self.pop(session, 1).await?;
        let (Some(lease), Some(id)) = (popped.lease, popped.ids.first()) else { return Ok(0) };
        let key = format!("charge:{}:{id}", self.queue);
        match effect {
            Effect::Plain => charge_plainly(session, &key, lease).await?,
            Effect::Bundle => {
                session.batch_execute("BEGIN").await?;
                session.execute("INSERT INTO charges VALUES ($1, 995)", &[&key]).await?;
                commit_bundle(session, BUNDLE, &key, lease).await?;
                session.batch_execute("COMMIT").await?;
            }
            Effect::Statement => commit_bundle(session, CHARGE_AND_BUNDLE, &key, lease).await?,
        }
        Ok(1)
    }

    /// Settles the message that the step before has popped, and pops the next one in the same
    /// transaction.
    async fn ack_and_pop(&self, s: &Session, way: Loop, held: &mut Held) -> Result<usize> {
        let done = held.0.take();
        let popped = match (way, done.as_ref().and_then(|done| done.lease)) {
            (Loop::Function, Some(lease)) => {
                let rows = s.rows(ACK_AND_POP_CALL, &[&lease, &self.queue]).await?;
                Popped { ids: ids(&rows), lease: rows.first().map(|row| row.get(2)) }
            }
            (Loop::Function, None) => self.pop(s, 1).await?,
            (Loop::Transaction, _) => {
                s.batch_execute("BEGIN").await?;
                if let Some(done) = &done {
                    self.settle(s, done).await?;
                }
                let popped = self.pop(s, 1).await?;
                s.batch_execute("COMMIT").await?;
                popped
            }
        };
        held.0 = (!popped.ids.is_empty()).then_some(popped);
        Ok(done.map_or(0, |done| done.ids.len()))
    }

    fn partition(&self, turn: Turn) -> String {
        format!("p{}", turn.spread() % self.partitions)
    }
}

/// Where the charges of [`Action::Effect`] go.
pub const CHARGES: &str = "CREATE TABLE charges (id text PRIMARY KEY, cents int NOT NULL)";

/// The function of [`Loop::Function`]. `docs/reference/settle.md` shows it.
pub const ACK_AND_POP: &str = "
    CREATE FUNCTION ack_and_pop(done uuid, queue text)
    RETURNS TABLE (message_id bigint, payload jsonb, lease_id uuid) LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM queen_ack(done);
        RETURN QUERY SELECT p.message_id, p.payload, p.lease_id FROM queen_pop(queue) AS p;
    END $$";
const ACK_AND_POP_CALL: &str = "SELECT message_id, payload, lease_id FROM ack_and_pop($1, $2)";

const BUNDLE: &str = "SELECT queen_tx_commit($1, $2)";
const CHARGE_AND_BUNDLE: &str = "WITH charge AS (INSERT INTO charges VALUES ($3, 995))
     SELECT queen_tx_commit($1, $2)";

async fn charge_plainly(session: &Session, key: &str, lease: Uuid) -> Result<()> {
    session.batch_execute("BEGIN").await?;
    session.execute("INSERT INTO charges VALUES ($1, 995)", &[&key]).await?;
    let sql = "SELECT applied FROM queen_kv_put_if_absent('bench', $1, '{\"cents\": 995}',
                                                          ttl => '1 hour', required => true)";
    session.row(sql, &[&key]).await?;
    session.row("SELECT settled FROM queen_ack($1)", &[&lease]).await?;
    session.batch_execute("COMMIT").await?;
    Ok(())
}

async fn commit_bundle(session: &Session, sql: &str, key: &str, lease: Uuid) -> Result<()> {
    let operations = json!([{ "type": "ack", "leaseId": lease.to_string() }]);
    let kv = json!([{ "op": "putIfAbsent", "ns": "bench", "key": key, "value": { "cents": 995 },
                      "ttlSeconds": 3600, "required": true }]);
    let row = if sql == BUNDLE {
        session.row(sql, &[&operations, &kv]).await?
    } else {
        session.row(sql, &[&operations, &kv, &key]).await?
    };
    let Json(answer): Json<serde_json::Value> = row.get(0);
    if answer["success"] != true {
        bail!("queen_tx_commit refused: {answer}");
    }
    Ok(())
}

fn ids(rows: &[Row]) -> Vec<i64> {
    rows.iter().map(|row| row.get(0)).collect()
}
