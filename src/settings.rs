//! Settings: `queen_mq.*` in postgresql.conf, ALTER DATABASE or SET.

use std::ffi::CString;

use pgrx::guc::{GucContext, GucFlags, GucRegistry, GucSetting};

static AUTO_CREATE: GucSetting<bool> = GucSetting::<bool>::new(true);
static DURABLE_LEASES: GucSetting<bool> = GucSetting::<bool>::new(false);
static SWEEP_INTERVAL: GucSetting<i32> = GucSetting::<i32>::new(1000);
static MAX_WORKERS: GucSetting<i32> = GucSetting::<i32>::new(2);
static DATABASES: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));

pub fn register() {
    GucRegistry::define_bool_guc(
        c"queen_mq.auto_create",
        c"Lets queen_push create the queues that it names.",
        c"When off, pushing to or popping from a queue that was not configured is an error.",
        &AUTO_CREATE,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_bool_guc(
        c"queen_mq.durable_leases",
        c"Lets a commit that has written nothing but leases wait for the disk.",
        c"When off, a crash may take the newest leases; their messages are then delivered again.",
        &DURABLE_LEASES,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"queen_mq.sweep_interval",
        c"How often the background worker sweeps.",
        c"It sweeps earlier when a timer is due.",
        &SWEEP_INTERVAL,
        100,
        3_600_000,
        GucContext::Sighup,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_int_guc(
        c"queen_mq.max_workers",
        c"How many background workers serve the databases, in turn if there are more databases.",
        c"Each takes a slot of max_worker_processes, and the launcher takes one more.",
        &MAX_WORKERS,
        1,
        1024,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_string_guc(
        c"queen_mq.databases",
        c"The databases that background workers serve.",
        c"Names with commas between them; empty: every database that has the extension.",
        &DATABASES,
        GucContext::Sighup,
        GucFlags::default(),
    );
}

/// In microseconds.
pub fn sweep_interval() -> i64 {
    i64::from(SWEEP_INTERVAL.get()) * 1000
}

/// How many background workers the launcher starts at most.
pub fn max_workers() -> usize {
    usize::try_from(MAX_WORKERS.get()).unwrap_or(1)
}

/// Whether background workers are to serve the database of this name.
pub fn serves(database: &str) -> bool {
    let Some(names) = DATABASES.get() else { return true };
    let names = names.to_string_lossy();
    names.trim().is_empty() || names.split(',').any(|name| name.trim() == database)
}

/// Whether leases commit as `synchronous_commit` says.
pub fn durable_leases() -> bool {
    DURABLE_LEASES.get()
}

/// Whether a push may create its queue.
pub fn auto_create() -> bool {
    AUTO_CREATE.get()
}
