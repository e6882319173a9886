//! PgBouncer in transaction mode: whichever connection a transaction gets, no call depends on what
//! its session did before.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use queen_tests::cluster::Bouncer;
use queen_tests::{Pop, Session, TestDb, at_once, complete, eventually, figures_of};
use tokio_postgres::SimpleQueryMessage;

const CLIENTS: usize = 12;
const PER_CLIENT: usize = 25;
const SOON: Duration = Duration::from_secs(20);

/// The first column of each row, by a simple query: older versions of PgBouncer have no prepared
/// statements in this mode.
async fn column(session: &Session, sql: &str) -> Result<Vec<String>> {
    let rows = session.simple_query(sql).await.with_context(|| sql.to_owned())?;
    let value = |message: SimpleQueryMessage| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    };
    Ok(rows.into_iter().filter_map(value).collect())
}

/// Pop, charge, mark and ack. Every other order is handled in one transaction, the rest in two, so
/// that the lease goes from one connection to another.
async fn consume(session: &Session, client: usize) -> Result<usize> {
    let mut idle = 0;
    let mut charged = 0;
    while idle < 40 {
        let popped = "SELECT lease_id || ' ' || (payload ->> 'order') \
                      FROM queen_pop('orders', 'billing', subscription_mode => 'all')";
        let one_transaction = charged % 2 == 0;
        if one_transaction {
            session.simple_query("BEGIN").await?;
        }
        let Some(message) = column(session, popped).await?.pop() else {
            if one_transaction {
                session.simple_query("COMMIT").await?;
            }
            idle += 1;
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        };
        idle = 0;
        let (lease, order) = message.split_once(' ').context("two columns")?;
        if !one_transaction {
            session.simple_query("BEGIN").await?;
        }
        let sql = format!(
            "INSERT INTO charges VALUES ({order}, {client});
             SELECT queen_kv_put_if_absent('billing', 'charge:{order}', '1', ttl => '1 h',
                 required => true);
             SELECT queen_ack('{lease}')"
        );
        session.simple_query(&sql).await.with_context(|| format!("order {order}"))?;
        session.simple_query("COMMIT").await?;
        charged += 1;
    }
    Ok(charged)
}

/// Push orders into so many partitions, and charge each of them exactly once.
async fn charge_all(db: &TestDb, direct: &Session, partitions: usize) -> Result<()> {
    direct.run("CREATE TABLE charges (number int PRIMARY KEY, client int)").await?;
    direct.run("SELECT queen_push('orders', '{\"order\": -1}', 'p0')").await?;
    let bouncer = Bouncer::start(db.config())?;
    let config = bouncer.config(db.config());
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(
            eventually("connection through PgBouncer", SOON, async || {
                Ok(Session::open(&config).await.ok())
            })
            .await?,
        );
    }
    let charged = at_once(clients, move |client, session| async move {
        for number in 0..PER_CLIENT {
            let order = client * PER_CLIENT + number;
            let sql = format!(
                "SELECT queen_push('orders', '{{\"order\": {order}}}', 'p{}', 'order-{order}')",
                order % partitions
            );
            session.simple_query(&sql).await?;
        }
        consume(&session, client).await
    })
    .await?;
    let mut total = 0;
    for one in charged {
        total += one?;
    }
    let rows = direct.rows("SELECT number FROM charges", &[]).await?;
    let mut counts: BTreeMap<i32, usize> = BTreeMap::new();
    rows.iter().for_each(|row| *counts.entry(row.get(0)).or_default() += 1);
    ensure!(counts.keys().copied().eq(-1..(CLIENTS * PER_CLIENT) as i32), "{counts:?}");
    assert_eq!(total, counts.len());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_depends_on_the_session() -> Result<()> {
    let db = TestDb::fresh().await?;
    let direct = db.session().await?;
    charge_all(&db, &direct, 9).await?;
    assert_eq!(direct.count("SELECT pending FROM queen_groups").await?, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn nor_without_order_where_clients_share_a_partition() -> Result<()> {
    let db = TestDb::fresh().await?;
    let direct = db.session().await?;
    direct.run("SELECT queen_configure('orders', ordering => 'none')").await?;
    direct.run("SELECT queen_push('orders', '{\"order\": -2}', 'p0')").await?;
    // In a group with order, this lease would keep the rest of the partition from all other
    // consumers.
    let held = Pop::new("orders").group("billing").mode("all").lease("1 h").one(&direct).await?;
    charge_all(&db, &direct, 1).await?;
    let figures = figures_of(&direct, "orders", "billing").await?;
    assert_eq!(figures, (1, 1, 0), "pending, in flight and retrying");
    complete(&direct, &[held]).await?;
    assert_eq!(figures_of(&direct, "orders", "billing").await?, (0, 0, 0));
    Ok(())
}
