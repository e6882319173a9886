//! What the concurrency, crash and restore tests of queen_mq share.
//!
//! The tests talk to a running PostgreSQL as any client would: nothing in here knows more of the
//! extension than its SQL contract. The environment says where:
//!
//! - `QUEEN_TEST_URL`: the connection string of a superuser of a cluster with
//!   `shared_preload_libraries = 'queen_mq'`, `max_connections = 200` and
//!   `max_prepared_transactions = 20`. Every test makes, and drops, a database of its own there.
//! - `QUEEN_TEST_PGBIN`: the directory of initdb, pg_ctl, pg_dump and pg_restore, for the tests
//!   that need clusters of their own.
//! - `QUEEN_TEST_TORTURE_SECONDS` (20), `QUEEN_TEST_RR_SECONDS` (60): how long the torture, and
//!   the old snapshot, last.
//! - `QUEEN_TEST_KEEP`: keep databases and clusters, to look into them.

pub mod clock;
pub mod cluster;
pub mod containment;
pub mod db;
pub mod expect;
pub mod memory;
pub mod queen;
pub mod torture;
pub mod unordered;
pub mod upgrade;
pub mod waiting;

pub use db::{Session, TestDb};
pub use expect::{Fails, at_once, complete, drain, eventually, expiry};
pub use queen::{
    Ack, Applied, Item, Message, Outcome, Pop, Push, PushBatch, Pushed, Settled, counts,
    dead_letters, figures_of, find, marker, n, numbers, put_if_absent, settle, sorted,
};
