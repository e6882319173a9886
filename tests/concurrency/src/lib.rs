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
pub use expect::{Fails, drain, eventually};
pub use queen::{Ack, Item, Message, Outcome, Pop, Push, PushBatch, Pushed, Settled};
