//! What queen_mq decides, without PostgreSQL.
//!
//! The extension reads rows, asks this crate what follows from them, and writes the answer. Here
//! is no SQL and no clock: time comes in as an argument, in microseconds since 2000-01-01 00:00
//! UTC, as PostgreSQL counts it. No function panics, whatever it is given.
//!
//! The words, each before the words that need it:
//!
//! - A **message** is what a producer pushes, into a *partition* of a *queue*. What one push writes
//!   into one partition stands in **segments** of up to 28 messages ([`message`]). The messages of
//!   a segment never change. All segments of a queue are its *log*.
//! - A segment has an **id**, drawn from a sequence, and the **xid**, the id of the transaction
//!   that pushed it. A partition is read in the order of ids. A **snapshot** says which
//!   transactions a reader sees.
//! - A **group** of consumers reads a queue. What it has read of a partition is its **cursor**
//!   there: a *position*, which is the id of the last segment read, and more ([`cursor`]). A
//!   **hole** is a transaction that may still bring segments up to the position ([`holes`]).
//! - A **pop** reads messages from a cursor ([`pop`]). It gives them to a consumer under a
//!   **lease**, until a *deadline* ([`lease`]). The consumer **settles** them under the lease
//!   ([`settle`]). A message that failed is delivered again after a delay ([`backoff`]), and how
//!   often it failed is remembered ([`failures`]). When the lease has ended, a **receipt**
//!   remembers what became of its messages ([`receipt`]).
//! - In an **ordered** group, one lease at a time holds messages of a partition. In a group
//!   **without order**, each message is leased by itself, under a **claim**: a cursor of this one
//!   message.
//! - **Discovery** is how a group finds partitions with something to deliver ([`discovery`]), and
//!   the **tally** of a queue is how many messages it has taken in ([`tally`]). The **floor** is up
//!   to where its log is empty ([`floor`]).
//! - A **schedule** says when the occurrences of a recurring message are ([`schedule`]).
//! - A **topic** says what a message is about; **bindings** say which queues get it ([`topic`]).
//! - A **marker** is a value under a name, with an expiry. It belongs to no queue ([`kv`]).
//! - A **privilege** is what a role may do with a queue, or with the markers of a namespace
//!   ([`rights`]).
//!
//! Cursors, receipts, discoveries and tallies are stored as bytes ([`codec`]).

pub mod backoff;
pub mod codec;
pub mod cursor;
pub mod discovery;
pub mod failures;
pub mod floor;
pub mod holes;
pub mod kv;
pub mod lease;
pub mod message;
pub mod names;
pub mod open;
pub mod pop;
pub mod receipt;
pub mod rights;
pub mod schedule;
pub mod settle;
pub mod tally;
pub mod topic;
