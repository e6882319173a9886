//! Compares what the clients were told with what the database holds.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::time::sleep;
use tokio_postgres::Error;
use tokio_postgres::config::Config as Target;

use super::ledger::Fate;
use super::{COME_BACK, DRAIN, Shop};
use crate::{Session, eventually};

/// What must not be there in any snapshot: a name for it, and a query for examples.
const NEVER: [(&str, &str); 6] = [
    (
        "Doubled",
        "SELECT format('%s was charged %s times', order_id, count(*)) FROM charges
         GROUP BY order_id HAVING count(*) > 1",
    ),
    (
        "Without marker",
        "SELECT order_id FROM charges
         EXCEPT SELECT key FROM queen_mq.marker WHERE ns = 'charged'",
    ),
    (
        "Without charge",
        "SELECT key FROM queen_mq.marker WHERE ns = 'charged' EXCEPT SELECT order_id FROM charges",
    ),
    (
        "Without order",
        "SELECT order_id FROM charges EXCEPT SELECT transaction_id FROM queen_messages",
    ),
    ("Repeated", "SELECT transaction_id FROM queen_messages GROUP BY 1 HAVING count(*) > 1"),
    (
        "Overtaken",
        "SELECT format('%s of %s after number %s', order_id, partition, former)
         FROM (SELECT *, lag(n) OVER (PARTITION BY partition, customer ORDER BY place) AS former
               FROM charges WHERE queue = 'orders') AS charge
         WHERE former >= n",
    ),
];

/// Damage in tables.
const DAMAGED: &str = "
    SELECT format('%s (%s, %s): %s', c.oid::regclass, found.blkno, found.offnum, found.msg)
    FROM pg_class AS c
    JOIN pg_namespace AS n ON n.oid = c.relnamespace,
        LATERAL verify_heapam(c.oid, check_toast => true) AS found
    WHERE c.relkind = 'r' AND (n.nspname = 'queen_mq' OR c.relname = 'charges')";

const INDEXES: &str = "
    SELECT i.indexrelid::regclass::text
    FROM pg_index AS i
    JOIN pg_class AS c ON c.oid = i.indexrelid
    JOIN pg_am AS a ON a.oid = c.relam AND a.amname = 'btree'
    WHERE c.relnamespace = 'queen_mq'::regnamespace";

/// How many examples of one kind are kept.
const EXAMPLES: usize = 3;

/// Check what must hold at any moment. What was acknowledged until now must be there, and with a
/// promotion, of what the fork cut off, nothing.
pub async fn audit(shop: &Shop, target: &Target) -> Result<()> {
    let began = std::time::Instant::now();
    loop {
        match try_audit(shop, target).await {
            Ok(found) => {
                let mut ledger = shop.ledger();
                ledger.violations.extend(found);
                *ledger.stats.entry("audits").or_default() += 1;
                return Ok(());
            }
            // The server may crash meanwhile.
            Err(error) if error.as_db_error().is_none() && began.elapsed() < COME_BACK => {
                sleep(Duration::from_millis(50)).await;
            }
            Err(error) => return Err(error).context("an audit failed"),
        }
    }
}

async fn try_audit(shop: &Shop, target: &Target) -> Result<Vec<String>, Error> {
    let session = Session::open(target).await?;
    session.run("SET statement_timeout = '300s'").await?;
    let mut found = told(shop, &session).await?;
    session.begin_snapshot().await?;
    for (name, sql) in NEVER {
        add(&mut found, name, texts(&session, sql, &[]).await?);
    }
    session.run("COMMIT").await?;
    add(&mut found, "Damaged", texts(&session, DAMAGED, &[]).await?);
    for index in texts(&session, INDEXES, &[]).await? {
        let check = "SELECT bt_index_check($1::text::regclass, true)";
        match session.query(check, &[&index]).await {
            Ok(_) => {}
            Err(error) if error.as_db_error().is_some() => {
                found.push(format!("Damaged: {index}: {error:?}"));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// What was acknowledged is there; what a promotion has cut off is not.
async fn told(shop: &Shop, session: &Session) -> Result<Vec<String>, Error> {
    let (kept, lost) = {
        let ledger = shop.ledger();
        let of = |fate| {
            (ledger.of_fate(&ledger.queued, fate).0, ledger.of_fate(&ledger.charged, fate).1)
        };
        (of(Fate::Kept), of(Fate::Lost))
    };
    let mut found = Vec::new();
    let missing = "SELECT unnest($1::text[]) EXCEPT SELECT transaction_id FROM queen_messages";
    add(&mut found, "Lost order", texts(session, missing, &[&kept.0]).await?);
    let missing = "SELECT receipt::text FROM (SELECT unnest($1::bigint[]) AS receipt
                   EXCEPT SELECT receipt FROM charges) AS missing";
    add(&mut found, "Lost charge", texts(session, missing, &[&kept.1]).await?);
    let there = "SELECT unnest($1::text[]) INTERSECT SELECT transaction_id FROM queen_messages";
    add(&mut found, "Order past the fork", texts(session, there, &[&lost.0]).await?);
    let there = "SELECT receipt::text FROM charges WHERE receipt = ANY($1)";
    add(&mut found, "Charge past the fork", texts(session, there, &[&lost.1]).await?);
    if shop.season.synchronous {
        // A synchronous standby has all that was acknowledged.
        add(&mut found, "Lost order", lost.0);
        let receipts = lost.1.iter().map(i64::to_string).collect();
        add(&mut found, "Lost charge", receipts);
    } else {
        let mut ledger = shop.ledger();
        ledger.stats.insert("orders lost with the tail", lost.0.len() as u64);
        ledger.stats.insert("charges lost with the tail", lost.1.len() as u64);
    }
    Ok(found)
}

fn add(found: &mut Vec<String>, name: &str, examples: Vec<String>) {
    if examples.is_empty() {
        return;
    }
    let shown = &examples[..examples.len().min(EXAMPLES)];
    found.push(format!("{name}: {} such as {shown:?}", examples.len()));
}

async fn texts(
    session: &Session,
    sql: &str,
    values: &[&(dyn tokio_postgres::types::ToSql + Sync)],
) -> Result<Vec<String>, Error> {
    Ok(session.query(sql, values).await?.iter().map(|row| row.get(0)).collect())
}

/// Wait until each order is charged, and the group has nothing left.
pub async fn drained(shop: &Shop) -> Result<()> {
    let (target, _) = shop.primary();
    let session = Session::open(&target).await?;
    let left = "SELECT count(*) FROM (SELECT transaction_id FROM queen_messages
                EXCEPT SELECT order_id FROM charges) AS uncharged";
    let pending = "SELECT coalesce(sum(pending), 0)::bigint FROM queen_groups
                   WHERE consumer_group = 'billing'";
    let waited = eventually("charge of everything", DRAIN, async || {
        let done = session.count(left).await? == 0 && session.count(pending).await? == 0;
        if !done {
            sleep(Duration::from_millis(50)).await;
        }
        Ok(done.then_some(()))
    })
    .await;
    if waited.is_err() {
        for (name, sql) in STUCK {
            let found = texts(&session, sql, &[]).await?;
            eprintln!("{name}:\n  {}", found.join("\n  "));
        }
    }
    waited
}

/// What to look at when orders are left.
const STUCK: [(&str, &str); 4] = [
    (
        "uncharged",
        "SELECT format('%s %s %s %s', queue, partition, transaction_id, message_id)
         FROM queen_messages WHERE transaction_id NOT IN (SELECT order_id FROM charges) LIMIT 20",
    ),
    ("groups", "SELECT g::text FROM queen_groups AS g"),
    ("leases", "SELECT l::text FROM queen_leases AS l LIMIT 20"),
    (
        "sessions",
        "SELECT format('%s %s %s %s/%s by %s, %s: %s', pid, backend_type, state, wait_event_type,
                    wait_event, pg_blocking_pids(pid), clock_timestamp() - state_change,
                    left(query, 90))
         FROM pg_stat_activity WHERE backend_type IN ('client backend', 'queen_mq worker')",
    ),
];

/// The figures at the end, from the database.
pub async fn figures(shop: &Shop) -> Result<()> {
    let session = Session::open(&shop.primary().0).await?;
    for (name, sql) in [
        ("orders in the log", "SELECT count(*) FROM queen_messages"),
        ("charges in the table", "SELECT count(*) FROM charges"),
        ("dead letters", "SELECT count(*) FROM queen_dead_letters"),
    ] {
        let count = session.count(sql).await?;
        shop.ledger().stats.insert(name, count as u64);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use anyhow::Result;

    use super::audit;
    use crate::TestDb;
    use crate::torture::orders::ledger::{Entry, Span};
    use crate::torture::orders::{Season, Shop, set_up};

    /// Charges and markers that are wrong in each way.
    const WRONG: &str = "
        SELECT queen_push('orders', to_jsonb(i), partition => 'p', transaction_id => i::text)
        FROM generate_series(1, 4) AS i;
        INSERT INTO charges (order_id, queue, partition, customer, n, message_id, receipt)
        VALUES ('2', 'orders', 'p', 1, 2, 0, 2), ('1', 'orders', 'p', 1, 1, 0, 1),
            ('3', 'orders', 'p', 2, 3, 0, 3), ('3', 'orders', 'p', 2, 4, 0, 4),
            ('made up', 'orders', 'p', 3, 4, 0, 5);
        SELECT queen_kv_put('charged', key, '1', forever => true)
        FROM unnest(ARRAY['1', '2', '3', '4']) AS key;
        SELECT queen_push('parcels', '1', partition => 'p', transaction_id => '1')";

    #[tokio::test(flavor = "multi_thread")]
    async fn an_audit_finds_each_fault() -> Result<()> {
        let db = TestDb::fresh().await?;
        set_up(db.config()).await?;
        let shop = Shop::new(Season::default(), db.config().clone());
        audit(&shop, db.config()).await?;
        assert_eq!(shop.ledger().violations, Vec::<String>::new());

        db.session().await?.run(WRONG).await?;
        let entry = |order: &str, receipt, before| {
            let span = Span { epoch: 0, before, after: before + 1 };
            Entry { order: order.into(), receipt, span }
        };
        {
            let mut ledger = shop.ledger();
            ledger.queued = vec![entry("lost", 0, 1), entry("4", 0, 100)];
            ledger.charged = vec![entry("4", 9, 1), entry("2", 2, 100)];
            ledger.forks = vec![50];
        }
        audit(&shop, db.config()).await?;
        let mut names: Vec<String> = Vec::new();
        for violation in &shop.ledger().violations {
            names.extend(violation.split(':').next().map(str::to_owned));
        }
        names.sort();
        names.dedup();
        let all = [
            "Charge past the fork",
            "Doubled",
            "Lost charge",
            "Lost order",
            "Order past the fork",
            "Overtaken",
            "Repeated",
            "Without charge",
            "Without marker",
            "Without order",
        ];
        assert_eq!(names, all);
        Ok(())
    }
}
