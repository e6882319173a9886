//! `lock_timeout`, lowered for a while.

use pgrx::pg_sys;

/// `lock_timeout` as it is while this value lives: the caller's own, if that is lower already. The
/// value has a level of settings of its own, which also undoes what a trigger sets meanwhile.
pub struct LockTimeout {
    level: i32,
    is_lowered: bool,
}

impl LockTimeout {
    /// Lower `lock_timeout` to so many milliseconds, 1 or more.
    pub fn lower_to(milliseconds: i32) -> Self {
        // SAFETY: the name and the value are NUL-terminated; the level is closed by `Drop`, which
        // also runs when an ERROR unwinds.
        unsafe {
            let before = pg_sys::LockTimeout;
            let is_lowered = before <= 0 || before > milliseconds;
            let level = pg_sys::NewGUCNestLevel();
            let this = Self { level, is_lowered };
            if is_lowered {
                let mut value = [0; 12];
                let text = milliseconds.to_string();
                value[..text.len()].copy_from_slice(text.as_bytes());
                pg_sys::set_config_option(
                    c"lock_timeout".as_ptr(),
                    value.as_ptr().cast(),
                    pg_sys::GucContext::PGC_USERSET,
                    pg_sys::GucSource::PGC_S_SESSION,
                    pg_sys::GucAction::GUC_ACTION_SAVE,
                    true,
                    0,
                    false,
                );
            }
            this
        }
    }

    /// Whether the caller's own limit was higher, or there was none.
    pub fn is_lowered(&self) -> bool {
        self.is_lowered
    }
}

impl Drop for LockTimeout {
    fn drop(&mut self) {
        // SAFETY: the level that `lower_to` has opened.
        unsafe { pg_sys::AtEOXact_GUC(false, self.level) };
    }
}
