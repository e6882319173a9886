//! Writing the options that a consumer group has of its own, in place of its queue's, and whether
//! it is paused. They are read with the other columns of the group, in [`super::group`].

use pgrx::pg_sys;

use super::options::Options;
use crate::pg::catalogue;
use crate::pg::columns::arg;
use crate::pg::spi::Statement;

static SET: Statement = Statement::new(
    "UPDATE queen_mq.consumer_group SET lease_time = $2, retry_limit = $3, retry_delay = $4,
         retry_backoff = $5, retry_delay_max = $6, max_deliveries = $7, on_exhausted = $8,
         ordering = $9
     WHERE id = $1",
    &[
        pg_sys::INT8OID,
        pg_sys::INTERVALOID,
        pg_sys::INT4OID,
        pg_sys::INTERVALOID,
        pg_sys::FLOAT8OID,
        pg_sys::INTERVALOID,
        pg_sys::INT4OID,
        pg_sys::TEXTOID,
        pg_sys::TEXTOID,
    ],
);

/// Write the options that the group has of its own. The caller has locked the group's row.
pub fn set(group: i64, own: &Options) {
    catalogue::announce();
    SET.run(&[
        arg(group),
        own.lease_time.and_then(arg),
        own.retry_limit.and_then(arg),
        own.retry_delay.and_then(arg),
        own.retry_backoff.and_then(arg),
        own.retry_delay_max.and_then(arg),
        own.max_deliveries.and_then(arg),
        own.on_exhausted.as_deref().and_then(arg),
        own.ordering.as_deref().and_then(arg),
    ]);
}

static SET_PAUSED: Statement = Statement::new(
    "UPDATE queen_mq.consumer_group SET paused = $2 WHERE id = $1",
    &[pg_sys::INT8OID, pg_sys::BOOLOID],
);

/// Let pops of the group find nothing, or what there is again. The caller has locked the row.
pub fn set_paused(group: i64, is_paused: bool) {
    catalogue::announce();
    SET_PAUSED.run(&[arg(group), arg(is_paused)]);
}
