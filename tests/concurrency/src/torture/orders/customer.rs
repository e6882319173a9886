//! Who push orders, and repeat each one until it is acknowledged.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result};
use rand::RngExt;
use serde_json::json;
use tokio::time::sleep;
use tokio_postgres::Error;

use super::ledger::{Entry, Span};
use super::{Desk, Excuse, QUEUES, Shop, excuse};
use crate::queen::Item;

pub async fn work(shop: Arc<Shop>, customer: i32) -> Result<()> {
    let mut desk = Desk::open(&shop).await?;
    let queue = QUEUES[customer as usize % 2].0;
    let mut n = 0;
    while !shop.closing.load(Ordering::Relaxed) {
        let count = rand::rng().random_range(1..=3);
        let orders: Vec<Item> =
            (0..count).map(|more| order(&shop, queue, customer, n + more)).collect();
        n += count;
        // An order comes after the one before it in its partition, so that one comes first.
        while let Err(error) = push(&shop, &desk, &orders).await {
            match excuse(&error) {
                Excuse::Lost => {
                    shop.count("customers' connections lost");
                    desk = Desk::open(&shop).await?;
                }
                Excuse::Again(name) => shop.count(name),
                _ => return Err(error).context("a push may not raise this"),
            }
            sleep(Duration::from_millis(10)).await;
        }
        let pause = rand::rng().random_range(0..20);
        sleep(Duration::from_millis(pause)).await;
    }
    Ok(())
}

fn order(shop: &Shop, queue: &str, customer: i32, n: i64) -> Item {
    let partition = rand::rng().random_range(0..shop.season.partitions);
    Item {
        queue: queue.into(),
        payload: json!({ "customer": customer, "n": n, "notes": "x".repeat(400) }),
        partition: format!("p{partition}"),
        transaction_id: Some(format!("{customer}-{n}")),
    }
}

async fn push(shop: &Shop, desk: &Desk, orders: &[Item]) -> Result<(), Error> {
    let before = desk.position().await?;
    if rand::rng().random_bool(0.5) {
        Item::push(orders, &desk.session).await?;
    } else if let Err(error) = push_in_transaction(desk, orders).await {
        desk.session.run("ROLLBACK").await?;
        return Err(error);
    }
    let after = desk.position().await.unwrap_or(i64::MAX);
    let span = Span { epoch: desk.epoch, before, after };
    let acknowledged = orders.iter().filter_map(|order| {
        let order = order.transaction_id.clone()?;
        Some(Entry { order, receipt: 0, span })
    });
    shop.ledger().queued.extend(acknowledged);
    Ok(())
}

async fn push_in_transaction(desk: &Desk, orders: &[Item]) -> Result<(), Error> {
    desk.session.run("BEGIN").await?;
    for order in orders {
        Item::push(std::slice::from_ref(order), &desk.session).await?;
    }
    desk.session.run("COMMIT").await
}
