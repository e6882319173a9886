//! pg_upgrade starts the old and the new server itself, with `-b`, between reading the old server's
//! next transaction id and copying its files. A row written then would have an id that the new
//! cluster has not reached, or lie in a file that was copied before. So a server that was started
//! in this way runs no worker and no function of ours. The new cluster does the work that is due
//! once it is started for its users.

use pgrx::pg_sys;

use crate::error::{Code, Error, Result};

/// Whether pg_upgrade has started this server.
pub fn is_under_way() -> bool {
    // SAFETY: a plain global of the process, set before libraries are loaded and never changed.
    unsafe { pg_sys::IsBinaryUpgrade }
}

/// 55000 where pg_upgrade has started this server.
pub fn refuse_under_binary_upgrade() -> Result<()> {
    if !is_under_way() {
        return Ok(());
    }
    Err(Error::new(
        Code::ObjectNotInPrerequisiteState,
        "queen_mq does nothing in a server that pg_upgrade has started",
    )
    .detail("What is written during a binary upgrade is lost, or damages the upgraded cluster.")
    .hint("Call it again when pg_upgrade has ended and the new server is up."))
}
