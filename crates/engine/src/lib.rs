//! What queen_mq decides, without PostgreSQL.
//!
//! A log of segments is read by cursors. A cursor is a position and the snapshot in which it was
//! reached ([`holes`]); what it handed out and what came back is part of its state ([`cursor`]).
//! [`pop`] takes messages from a cursor, [`settle`] gives them an outcome, [`discovery`] remembers
//! where a consumer group has looked for work. Nothing here knows SQL, time comes in as an
//! argument (microseconds since 2000-01-01, as PostgreSQL counts), and every function is total.

pub mod backoff;
pub mod codec;
pub mod cursor;
pub mod discovery;
pub mod holes;
pub mod kv;
pub mod lease;
pub mod message;
pub mod names;
pub mod pop;
pub mod receipt;
pub mod settle;
pub mod tally;
