//! Prepared transactions of this database.

use pgrx::pg_sys;

use super::columns::arg;
use super::process;
use super::snapshot::ActiveSnapshot;
use super::spi::Statement;
use crate::error::Result;

static ANY: Statement = Statement::new(
    "SELECT EXISTS (SELECT FROM pg_catalog.pg_prepared_xact() AS p WHERE p.dbid = $1)",
    &[pg_sys::OIDOID],
);

/// Whether a transaction of this database is prepared at this moment.
pub fn any() -> Result<bool> {
    let database = process::database();
    ActiveSnapshot::new_snapshot(|under| {
        Ok(ANY.read(&[arg(database)], under).first().and_then(|row| row.only()).unwrap_or(true))
    })
}
