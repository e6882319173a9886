//! Settings: `queen_mq.*` in postgresql.conf, ALTER DATABASE or SET.

use pgrx::guc::{GucContext, GucFlags, GucRegistry, GucSetting};

static AUTO_CREATE: GucSetting<bool> = GucSetting::<bool>::new(true);

pub fn register() {
    GucRegistry::define_bool_guc(
        c"queen_mq.auto_create",
        c"Lets queen_push create the queues that it names.",
        c"When off, pushing to or popping from a queue that was not configured is an error.",
        &AUTO_CREATE,
        GucContext::Userset,
        GucFlags::default(),
    );
}

/// Whether a push may create its queue.
pub fn auto_create() -> bool {
    AUTO_CREATE.get()
}
