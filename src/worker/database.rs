//! Databases, as the launcher and the workers see them: which ones are to be served?

use pgrx::pg_sys;

use crate::pg::{catalogue, databases};
use crate::settings;

pub use crate::pg::databases::is_wanted_alone;

/// A database that takes connections.
pub struct OpenDatabase {
    pub oid: pg_sys::Oid,
    pub name: String,
    /// The settings say that it is to be served.
    pub is_served: bool,
}

/// The databases that take connections. Works in the launcher, which is connected to none of them.
pub fn all() -> Vec<OpenDatabase> {
    let open = |(oid, name): (pg_sys::Oid, String)| {
        let is_served = settings::serves(&name);
        OpenDatabase { oid, name, is_served }
    };
    databases::open_ones().into_iter().map(open).collect()
}

/// Whether the extension is in the database of this process.
pub fn is_installed() -> bool {
    catalogue::has_extension(c"queen_mq")
}

/// Whether the settings say that the database of this process is to be served. They, and its name,
/// may have changed since the launcher looked.
pub fn is_served() -> bool {
    databases::own_name().is_some_and(|name| settings::serves(&name))
}
