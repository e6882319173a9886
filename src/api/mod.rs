use pgrx::prelude::*;
use crate::{datum::Jsonb, error::{Code, Error}};
#[pg_extern(security_definer)]
#[search_path(pg_catalog, pg_temp)]
fn queen_probe(queue: Option<&str>, #[allow(unused)] payload: default!(Option<Jsonb>, "NULL")) -> TableIterator<'static, (name!(queue, String), name!(payload, Option<Jsonb>))> {
    if queue == Some("x") { Error::new(Code::LeaseExpired, "lease expired").detail("d").hint("h").raise() }
    TableIterator::once((queue.unwrap_or("none").to_string(), payload))
}
