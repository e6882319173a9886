//! The pictures of `docs/architecture.md`, one function each.

pub mod canvas;
mod lease;
mod locks;
mod log;
mod pop;
mod rooms;
mod transaction;

use canvas::Picture;

/// Every picture, by the name of its file in `docs/architecture`.
pub fn all() -> Vec<(&'static str, Picture)> {
    vec![
        ("rooms.svg", rooms::draw()),
        ("log.svg", log::draw()),
        ("pop.svg", pop::draw()),
        ("lease.svg", lease::draw()),
        ("locks.svg", locks::draw()),
        ("transaction.svg", transaction::draw()),
    ]
}

/// Where the pictures lie.
pub const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../architecture");
