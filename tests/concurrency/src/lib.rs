//! What the concurrency, crash and restore tests of queen_mq share.
//!
//! The tests talk to a running PostgreSQL as any client would: nothing in here knows more of the
//! extension than its SQL contract.

pub mod cluster;
pub mod db;
pub mod expect;
pub mod queen;
pub mod torture;

pub use db::{Session, TestDb};
pub use expect::{Fails, at_once, complete, drain, eventually, expiry};
pub use queen::{
    Ack, Applied, Item, Message, Outcome, Pop, Push, PushBatch, Pushed, Settled, marker, n,
    numbers, put_if_absent, settle,
};
