//! Tests of this layer by itself, in a running server.
//!
//! Each test runs in a session and a transaction of its own, which is rolled back. See [`lab`] for
//! the tables that tests work on, [`session`] for the other sessions that they need, and
//! [`backend`] for what they ask of the server process in which they run.

mod backend;
mod catalogue;
mod clock;
mod databases;
mod datum;
mod declared;
mod delete;
mod errors;
mod guard;
mod insert;
mod insert_if_new;
mod kept_open;
mod lab;
mod new_array;
mod planning;
mod process;
mod relation;
mod result_rows;
mod row_cache;
mod row_lock;
mod scan_order;
mod scan_snapshot;
mod session;
mod spi;
mod subtransaction;
mod time_zone;
mod transaction_listener;
mod triggers;
mod try_insert;
