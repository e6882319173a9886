//! What each verb of the contract does in a transaction: which rows it reads and locks, in which
//! order, what the engine decides about them, and what is written. No SQL text, and no argument
//! checking.

pub mod bundle;
pub mod dead_letter;
pub mod group;
pub mod hold;
pub mod housekeeping;
pub mod latest;
pub mod lookup;
pub mod marker;
pub mod message_status;
pub mod pause;
pub mod pop;
pub mod purge;
pub mod push;
pub mod queue;
pub mod restore;
pub mod rights;
pub mod settle;
pub mod stats;
pub mod timer;
pub mod topic;
