//! No error carries a backtrace, whatever the server's environment says.
//!
//! pgrx captures one for each error that passes through Rust, PostgreSQL's own errors included, and
//! puts it into their DETAIL. To capture the first one of a session takes longer than many a
//! `lock_timeout`. The standard library decides whether to capture any: it reads the environment
//! when it is first asked, and remembers the answer for the process.

use std::backtrace::Backtrace;
use std::env;

const VARIABLE: &str = "RUST_LIB_BACKTRACE";

/// Let the standard library decide now, in an environment that says no. The environment is left as
/// it was. `_PG_init` calls this.
pub fn never_capture() {
    let before = env::var_os(VARIABLE);
    // SAFETY: PostgreSQL's processes have one thread, so nothing reads the environment meanwhile.
    unsafe { env::set_var(VARIABLE, "0") };
    drop(Backtrace::capture());
    // SAFETY: as above.
    unsafe {
        match before {
            Some(value) => env::set_var(VARIABLE, value),
            None => env::remove_var(VARIABLE),
        }
    }
}
