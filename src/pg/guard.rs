//! What holds for the whole backend while code of the extension runs, and how it is put back.
//!
//! A [`Guard`] notes the role in force, the planner's settings and the level of settings (GUCs) before
//! it changes any of them, and puts them back when it goes out of scope. An ERROR of PostgreSQL is a
//! panic while it passes through Rust, and a panic drops guards on its way out. So whatever catches
//! the error, for instance the exception handler of a PL/pgSQL block, goes on in the state that its
//! own code had set up.

use std::cell::Cell;
use std::ffi::c_int;

use pgrx::pg_sys;

/// Sees to it that what it has changed for the backend is put back.
pub struct Guard {
    user: pg_sys::Oid,
    security: c_int,
    planner: Planner,
    /// The outer guard's answer to whether, and where, the search_path is pinned.
    outer_level: Option<c_int>,
}

thread_local! {
    /// The level of settings in which the innermost guard has pinned the search_path.
    static LEVEL: Cell<Option<c_int>> = const { Cell::new(None) };
}

impl Guard {
    /// Act as `role`, with no more rights than it has: as PostgreSQL does it for index expressions and
    /// materialized views, so that nothing that runs here can become somebody else, or leave behind
    /// what the caller would run later. Statements are planned as [`Planner::pin`] says.
    pub fn act_as(role: pg_sys::Oid) -> Self {
        let (mut user, mut security) = (pg_sys::InvalidOid, 0);
        let restricted =
            pg_sys::SECURITY_LOCAL_USERID_CHANGE | pg_sys::SECURITY_RESTRICTED_OPERATION;
        // SAFETY: reads and sets plain variables of the backend; `Drop` puts them back.
        unsafe {
            pg_sys::GetUserIdAndSecContext(&mut user, &mut security);
            pg_sys::SetUserIdAndSecContext(role, security | restricted as c_int);
        }
        Self { user, security, planner: Planner::pin(), outer_level: LEVEL.replace(None) }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(level) = LEVEL.replace(self.outer_level) {
            // SAFETY: the level was opened by `pin_search_path` under this guard. Where the
            // transaction is being rolled back, its end would do what this does.
            unsafe { pg_sys::AtEOXact_GUC(false, level) };
        }
        self.planner.put_back();
        // SAFETY: sets plain variables to what `act_as` has found.
        unsafe { pg_sys::SetUserIdAndSecContext(self.user, self.security) };
    }
}

/// Resolve names in `pg_catalog` alone until the innermost guard goes out of scope. Needed before
/// anything is parsed, planned or run by name: SQL statements, and the user's own triggers and CHECK
/// constraints, which run as the role of the guard. Costs a level of settings, once for each guard.
pub fn pin_search_path() {
    if LEVEL.get().is_some() {
        return;
    }
    // SAFETY: the name and the value are NUL-terminated constants; the level is closed by the guard,
    // or by the end of the (sub)transaction if that comes first.
    unsafe {
        let level = pg_sys::NewGUCNestLevel();
        LEVEL.set(Some(level));
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

/// The planner's settings. Our statements are all look-ups by an index that was made for them. On a
/// table without statistics, or with those of a quieter hour, the planner would now and then prefer to
/// read it whole, and the session would keep that plan. So while they are planned and run, index scans
/// and nested loops are the only choice. What is ruled out counts as very expensive, which would make
/// PostgreSQL compile the plan to machine code first, so that is off as well; and so are parallel
/// workers, which `debug_parallel_query` would start for a look-up.
struct Planner {
    seqscan: bool,
    bitmapscan: bool,
    hashjoin: bool,
    mergejoin: bool,
    material: bool,
    jit: bool,
    cache_mode: c_int,
    parallel_workers: c_int,
}

impl Planner {
    fn pin() -> Self {
        // SAFETY: plain settings of this single-threaded backend, put back by the guard.
        unsafe {
            let before = Self {
                seqscan: pg_sys::enable_seqscan,
                bitmapscan: pg_sys::enable_bitmapscan,
                hashjoin: pg_sys::enable_hashjoin,
                mergejoin: pg_sys::enable_mergejoin,
                material: pg_sys::enable_material,
                jit: pg_sys::jit_enabled,
                cache_mode: pg_sys::plan_cache_mode,
                parallel_workers: pg_sys::max_parallel_workers_per_gather,
            };
            pg_sys::enable_seqscan = false;
            pg_sys::enable_bitmapscan = false;
            pg_sys::enable_hashjoin = false;
            pg_sys::enable_mergejoin = false;
            pg_sys::enable_material = false;
            pg_sys::jit_enabled = false;
            pg_sys::plan_cache_mode =
                pg_sys::PlanCacheMode::PLAN_CACHE_MODE_FORCE_GENERIC_PLAN as c_int;
            pg_sys::max_parallel_workers_per_gather = 0;
            before
        }
    }

    fn put_back(&self) {
        // SAFETY: as in `pin`.
        unsafe {
            pg_sys::enable_seqscan = self.seqscan;
            pg_sys::enable_bitmapscan = self.bitmapscan;
            pg_sys::enable_hashjoin = self.hashjoin;
            pg_sys::enable_mergejoin = self.mergejoin;
            pg_sys::enable_material = self.material;
            pg_sys::jit_enabled = self.jit;
            pg_sys::plan_cache_mode = self.cache_mode;
            pg_sys::max_parallel_workers_per_gather = self.parallel_workers;
        }
    }
}
