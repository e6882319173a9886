//! queen_mq: a message broker out of SQL functions, inside PostgreSQL.
//!
//! Calls go one way: `api` takes arguments and returns rows, `broker` carries the call out in the
//! transaction, the `queen_engine` crate decides, `store` reads and writes tables by way of `pg`.
//! The engine knows no SQL, and the store decides nothing. `docs/architecture.md` says more.

// A panic must unwind into an ERROR; abort would take the whole server down.
#[cfg(not(panic = "unwind"))]
compile_error!("queen_mq must be built with panic = \"unwind\"");

use pgrx::prelude::*;

mod api;
mod broker;
mod error;
mod pg;
mod settings;
mod store;
mod wait;
mod worker;

::pgrx::pg_module_magic!(name, version);

/// Runs once in each backend that loads the library.
#[pg_guard]
pub extern "C-unwind" fn _PG_init() {
    pg::backtrace::never_capture();
    pg::allocator::prepare();
    settings::register();
    // A setting whose name is misspelt is an error.
    pg::guc::reserve(c"queen_mq");
    pg::catalogue::register(&store::schema::EXTENSION);
    pg::planning::register();
    pg::async_commit::register(&store::schema::LEASES, settings::durable_leases);
    pg::before_commit::register(store::aging::at_stage);
    pg::own_commits::register(worker::note_end);
    pg::counters::register();
    worker::register();
    wait::register();
    store::segment::register();
}

pgrx::extension_sql_file!("../sql/tables.sql", name = "tables", bootstrap);
pgrx::extension_sql_file!(
    "../sql/views.sql",
    name = "views",
    requires = [
        "tables",
        "rights",
        api::rights::queen_mq::sees,
        api::watch::queen_mq::group_figures,
        api::watch::queen_mq::queue_figures,
        api::watch::queen_mq::live_leases,
        api::watch::queen_mq::blocked_partitions
    ]
);
pgrx::extension_sql_file!(
    "../sql/comments.sql",
    name = "comments",
    requires = [
        api::queue::queen_configure,
        api::group::queen_configure_group,
        api::queue::queen_delete_queue,
        api::queue::queen_pause,
        api::queue::queen_resume,
        api::push::queen_push,
        api::push::queen_push_batch,
        api::push::queen_push_items,
        api::pop::queen_pop,
        api::pop::queen_pop_any,
        api::settle::queen_ack,
        api::settle::queen_settle,
        api::settle::queen_extend,
        api::group::queen_subscribe,
        api::group::queen_unsubscribe,
        api::group::queen_seek,
        api::queue::queen_purge,
        api::dead_letter::queen_dead_letter_replay,
        api::dead_letter::queen_dead_letter_replay_all,
        api::dead_letter::queen_dead_letter_purge,
        api::timer::queen_schedule,
        api::timer::queen_every,
        api::timer::queen_cancel,
        api::topic::queen_bind,
        api::topic::queen_unbind,
        api::topic::queen_publish,
        api::message_status::queen_message_status,
        api::watch::queen_metrics,
        api::watch::queen_prometheus,
        api::sweep::queen_sweep,
        api::sweep::queen_worker_start,
        "queen_wait",
        api::bundle::queen_tx_commit,
        api::rights::queen_grant,
        api::rights::queen_revoke,
        api::rights::queen_grant_kv,
        api::rights::queen_revoke_kv,
        api::rights::queen_mq::sees,
        api::watch::queen_mq::group_figures,
        api::watch::queen_mq::queue_figures,
        api::watch::queen_mq::live_leases,
        api::watch::queen_mq::blocked_partitions,
        api::sweep::queen_mq::has_worker
    ]
);
pgrx::extension_sql_file!(
    "../sql/worker.sql",
    name = "worker",
    requires = [api::sweep::queen_mq::has_worker]
);
pgrx::extension_sql_file!(
    "../sql/compression.sql",
    name = "compression",
    requires = ["tables", "marker"]
);
pgrx::extension_sql_file!("../sql/owner.sql", name = "owner", requires = ["rights"]);
pgrx::extension_sql_file!("../sql/grants.sql", name = "grants", finalize);

/// What `cargo pgrx test` asks of a crate.
#[cfg(test)]
pub mod pg_test {
    pub fn setup(_options: Vec<&str>) {}

    pub fn postgresql_conf_options() -> Vec<&'static str> {
        vec![
            "shared_preload_libraries = 'queen_mq'",
            "queen_mq.databases = 'none of these'",
            "fsync = off",
        ]
    }
}
