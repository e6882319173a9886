//! State of the whole backend while code of the extension runs, and how it is put back.
//!
//! A [`Guard`] notes the role in force and the level of settings (GUCs) before it changes them, and
//! puts them back when it goes out of scope. An ERROR of PostgreSQL is a panic while it passes
//! through Rust, and a panic drops guards on its way out. So code that catches the error, for
//! instance the exception handler of a PL/pgSQL block, goes on in the state that it had set up
//! itself.

use std::cell::Cell;
use std::ffi::c_int;

use pgrx::pg_sys;

use super::kept_open;

/// Puts the state of the backend that it has changed back when it is dropped.
pub struct Guard {
    user: pg_sys::Oid,
    security: c_int,
    outer: Path,
    outer_roles: Roles,
}

/// As whom the innermost guard acts, and for whom.
#[derive(Clone, Copy)]
struct Roles {
    caller: pg_sys::Oid,
    acting: pg_sys::Oid,
}

/// What the innermost guard has done about the search_path.
#[derive(Clone, Copy)]
enum Path {
    /// There is no guard.
    Unguarded,
    AsItWas,
    /// Pinned, in this level of settings.
    Pinned(c_int),
}

thread_local! {
    static PATH: Cell<Path> = const { Cell::new(Path::Unguarded) };
    static ROLES: Cell<Roles> = const {
        Cell::new(Roles { caller: pg_sys::InvalidOid, acting: pg_sys::InvalidOid })
    };
}

/// The role that was in force where the innermost guard began: the one that has called. After SET
/// ROLE it is that role, and in a SECURITY DEFINER function the function's owner. InvalidOid
/// without a guard.
pub fn caller() -> pg_sys::Oid {
    ROLES.get().caller
}

/// The role as which the innermost guard acts. InvalidOid without a guard.
pub fn acting() -> pg_sys::Oid {
    ROLES.get().acting
}

/// Whether the innermost guard acts as the role that has called.
pub fn acts_as_caller() -> bool {
    let Roles { caller, acting } = ROLES.get();
    caller == acting && caller != pg_sys::InvalidOid
}

impl Guard {
    /// Act as `role`, in a restricted operation, as PostgreSQL does it for index expressions and
    /// materialized views: no code that runs under the guard can become another role, or leave
    /// anything behind that the caller would run later.
    pub fn act_as(role: pg_sys::Oid) -> Self {
        let (mut user, mut security) = (pg_sys::InvalidOid, 0);
        let restricted =
            pg_sys::SECURITY_LOCAL_USERID_CHANGE | pg_sys::SECURITY_RESTRICTED_OPERATION;
        // SAFETY: reads and sets plain variables of the backend; `Drop` puts them back.
        unsafe {
            pg_sys::GetUserIdAndSecContext(&mut user, &mut security);
            pg_sys::SetUserIdAndSecContext(role, security | restricted as c_int);
        }
        let outer_roles = ROLES.replace(Roles { caller: user, acting: role });
        Self { user, security, outer: PATH.replace(Path::AsItWas), outer_roles }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Path::Pinned(level) = PATH.replace(self.outer) {
            // SAFETY: the level was opened by `pin_search_path` under this guard. Where the
            // transaction is being rolled back, its end would do what this does.
            unsafe { pg_sys::AtEOXact_GUC(false, level) };
        }
        ROLES.set(self.outer_roles);
        // SAFETY: sets plain variables to what `act_as` has found.
        unsafe { pg_sys::SetUserIdAndSecContext(self.user, self.security) };
    }
}

/// Resolve names in `pg_catalog` (and last in `pg_temp`) until the innermost guard goes out of
/// scope. The caller needs this before it parses, plans or runs anything by name: SQL statements,
/// and the user's own triggers and CHECK constraints, which run as the role of the guard. It needs
/// it before a subtransaction, too: a subtransaction that is older than the level of settings would
/// end that level with itself. Costs one level for each guard. Without a guard there is nothing to
/// pin.
pub fn pin_search_path() {
    kept_open::close_unused();
    if !matches!(PATH.get(), Path::AsItWas) {
        return;
    }
    // SAFETY: the name and the value are NUL-terminated constants; the level is closed by the
    // guard, or by the end of the (sub)transaction if that comes first.
    unsafe {
        let level = pg_sys::NewGUCNestLevel();
        PATH.set(Path::Pinned(level));
        pg_sys::set_config_option(
            c"search_path".as_ptr(),
            c"pg_catalog, pg_temp".as_ptr(),
            pg_sys::GucContext::PGC_USERSET,
            pg_sys::GucSource::PGC_S_SESSION,
            pg_sys::GucAction::GUC_ACTION_SAVE,
            true,
            0,
            false,
        );
    }
}
