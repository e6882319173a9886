//! The rules that the repository keeps and that no other tool knows.
//!
//! One module holds one rule: a function that looks through a [`Repository`] and returns
//! [`Findings`]. `tests/repository.rs` applies every rule to the repository. Each module tests its
//! rule on small texts, good ones and bad ones, as a check that finds nothing proves nothing.

pub mod arrows;
pub mod circles;
pub mod documents;
mod findings;
pub mod links;
pub mod map;
pub mod names;
pub mod phrases;
pub mod promises;
mod prose;
mod repository;
pub mod rust;
mod scope;
pub mod sizes;
pub mod sql_text;
pub mod type_names;
pub mod unsafe_code;

pub use findings::Findings;
pub use repository::Repository;
