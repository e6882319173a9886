//! How PostgreSQL plans our statements: each has one plan, in every database and at every moment.
//!
//! A session keeps the plan of a statement from its first use on. PostgreSQL would choose it by the
//! sizes and the statistics of that moment. The table may have been empty then, or just restored or
//! loaded, or never analyzed, and a plan that costs nothing on ten rows reads ten million. But each
//! of our statements has a known task: look rows up one by one, by an index that was made for it.
//! So while PostgreSQL plans one of them, the user's planner settings are put aside, and every
//! table of ours counts as very large and without statistics. The plan then depends on the
//! statement and the indexes alone.

use std::cell::Cell;
use std::ffi::c_int;

use pgrx::{PgList, pg_guard, pg_sys};

use super::catalogue;

/// Rows of a table, and pages of it and of each index, in a ratio like ours: so many that every
/// plan without index conditions costs too much.
const ROWS: f64 = 1e8;
const PAGES: pg_sys::BlockNumber = 1_000_000;
const INDEX_PAGES: pg_sys::BlockNumber = 400_000;
const INDEX_HEIGHT: c_int = 3;

thread_local! {
    /// Whether statements that are planned now are ours.
    static IS_OURS: Cell<bool> = const { Cell::new(false) };
    static BEFORE: Cell<Hooks> = const { Cell::new(Hooks { sizes: None, statistics: None }) };
}

/// The hooks of libraries that were loaded before this one: ours call them.
#[derive(Clone, Copy)]
struct Hooks {
    sizes: pg_sys::get_relation_info_hook_type,
    statistics: pg_sys::get_relation_stats_hook_type,
}

/// To be called when the library is loaded.
pub fn register() {
    // SAFETY: plain globals of this single-threaded process.
    unsafe {
        BEFORE.set(Hooks {
            sizes: pg_sys::get_relation_info_hook,
            statistics: pg_sys::get_relation_stats_hook,
        });
        pg_sys::get_relation_info_hook = Some(tell_sizes);
        pg_sys::get_relation_stats_hook = Some(tell_statistics);
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn tell_sizes(
    root: *mut pg_sys::PlannerInfo,
    table: pg_sys::Oid,
    has_children: bool,
    rel: *mut pg_sys::RelOptInfo,
) {
    // SAFETY: the planner lends what it has just filled in. The hook before is called behind a
    // guard, as pgrx calls PostgreSQL's own functions: an ERROR in it unwinds.
    unsafe {
        if let Some(before) = BEFORE.get().sizes {
            pg_sys::ffi::pg_guard_ffi_boundary(|| before(root, table, has_children, rel));
        }
        // A trigger of the user's reads other tables, which are planned as usual.
        if !IS_OURS.get() || !catalogue::is_ours(table) {
            return;
        }
        let rel = &mut *rel;
        (rel.pages, rel.tuples, rel.allvisfrac) = (PAGES, ROWS, 1.0);
        rel.statlist = std::ptr::null_mut();
        for index in PgList::<pg_sys::IndexOptInfo>::from_pg(rel.indexlist).iter_ptr() {
            let index = &mut *index;
            (index.pages, index.tuples, index.tree_height) = (INDEX_PAGES, ROWS, INDEX_HEIGHT);
        }
    }
}

/// True tells the planner to use the statistics in `found`, which are none, and no others.
#[pg_guard]
unsafe extern "C-unwind" fn tell_statistics(
    root: *mut pg_sys::PlannerInfo,
    table: *mut pg_sys::RangeTblEntry,
    column: pg_sys::AttrNumber,
    found: *mut pg_sys::VariableStatData,
) -> bool {
    // SAFETY: as above; the planner has left the statistics of `found` empty.
    unsafe {
        if IS_OURS.get() && catalogue::is_ours((*table).relid) {
            return true;
        }
        match BEFORE.get().statistics {
            Some(before) => {
                pg_sys::ffi::pg_guard_ffi_boundary(|| before(root, table, column, found))
            }
            None => false,
        }
    }
}

/// While this lives, PostgreSQL plans only index scans and nested loops, even if the user's
/// settings rule them out. The other kinds of scans and joins count as very expensive, for which
/// PostgreSQL would compile the plan to machine code first, so JIT is off as well. So are parallel
/// workers, which `debug_parallel_query` would start for a look-up.
pub struct PinnedPlans {
    switches: [bool; SWITCHES],
    cache_mode: c_int,
    parallel_workers: c_int,
    was_ours: bool,
}

const SWITCHES: usize = 11;

/// Settings of the planner, and the values that `pin` gives them.
fn switches() -> [(*mut bool, bool); SWITCHES] {
    [
        (&raw mut pg_sys::enable_indexscan, true),
        (&raw mut pg_sys::enable_indexonlyscan, true),
        (&raw mut pg_sys::enable_tidscan, true),
        (&raw mut pg_sys::enable_nestloop, true),
        (&raw mut pg_sys::enable_sort, true),
        (&raw mut pg_sys::enable_seqscan, false),
        (&raw mut pg_sys::enable_bitmapscan, false),
        (&raw mut pg_sys::enable_hashjoin, false),
        (&raw mut pg_sys::enable_mergejoin, false),
        (&raw mut pg_sys::enable_material, false),
        (&raw mut pg_sys::jit_enabled, false),
    ]
}

impl PinnedPlans {
    pub fn pin() -> Self {
        // SAFETY: plain settings of this single-threaded backend, put back by `Drop`, which also
        // runs when an ERROR unwinds. None of our statements calls code of the user.
        unsafe {
            let switches = switches().map(|(switch, value)| switch.replace(value));
            let cache_mode = pg_sys::plan_cache_mode;
            pg_sys::plan_cache_mode =
                pg_sys::PlanCacheMode::PLAN_CACHE_MODE_FORCE_GENERIC_PLAN as c_int;
            let parallel_workers = pg_sys::max_parallel_workers_per_gather;
            pg_sys::max_parallel_workers_per_gather = 0;
            Self { switches, cache_mode, parallel_workers, was_ours: IS_OURS.replace(true) }
        }
    }
}

impl Drop for PinnedPlans {
    fn drop(&mut self) {
        IS_OURS.set(self.was_ours);
        // SAFETY: as in `pin`.
        unsafe {
            for ((switch, _), before) in switches().into_iter().zip(self.switches) {
                switch.write(before);
            }
            pg_sys::plan_cache_mode = self.cache_mode;
            pg_sys::max_parallel_workers_per_gather = self.parallel_workers;
        }
    }
}
