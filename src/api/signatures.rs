//! How the library expects each function to be declared, which [`super::call`] compares; and which
//! privileges let a role call it.
//!
//! The declaration of a function belongs to the extension's version in the database, its code to
//! the library on disk. A server has one library for all its databases, so the two can differ until
//! `ALTER EXTENSION queen_mq UPDATE` has run. A function reads its arguments by position, so it
//! must not read those of another declaration.

use pgrx::pg_sys::Oid;
use pgrx::pg_sys::{
    BOOLOID as BOOL, FLOAT8OID as FLOAT8, INT4OID as INT4, INT8ARRAYOID as INT8ARRAY,
    INT8OID as INT8, INTERVALOID as INTERVAL, JSONBARRAYOID as JSONBARRAY, JSONBOID as JSONB,
    NUMERICOID as NUMERIC, TEXTARRAYOID as TEXTARRAY, TEXTOID as TEXT,
    TIMESTAMPTZOID as TIMESTAMPTZ, UUIDARRAYOID as UUIDARRAY, UUIDOID as UUID,
};
use queen_engine::rights::Privilege;

/// A function: the types of its arguments, and of its result or of the columns of its rows.
pub struct Signature {
    pub name: &'static str,
    pub arguments: &'static [Oid],
    pub result: &'static [Oid],
    /// The privileges that need it: `queen_grant` of one of them lets a role call it. What a call
    /// is about decides which one it asks for, in [`crate::broker::rights`]. A new function gets
    /// its privilege here, and its place in the table of docs/reference/rights.md.
    pub needs: Needs,
}

/// Privileges of which each is enough to call a function or to read a view.
type Needs = &'static [Privilege];

const PUSH: Needs = &[Privilege::Push];
const POP: Needs = &[Privilege::Pop];
const MANAGE: Needs = &[Privilege::Manage];
const MONITOR: Needs = &[Privilege::Monitor];
const READ: Needs = &[Privilege::Read];
const WRITE: Needs = &[Privilege::Write];
/// Each operation of a bundle asks for the privilege that it would ask for by itself.
const EACH_OPERATION: Needs = &[Privilege::Push, Privilege::Pop, Privilege::Read, Privilege::Write];
const EACH: Needs = &[
    Privilege::Push,
    Privilege::Pop,
    Privilege::Manage,
    Privilege::Monitor,
    Privilege::Read,
    Privilege::Write,
];
/// No privilege is enough: the owner of the extension calls it.
const OWNER_ALONE: Needs = &[];

/// The views, and the privileges that let a role read one. It shows the rows of those queues on
/// which its reader has the privilege. Views with payloads need the one to pop.
pub static VIEWS: &[(&str, Needs)] = &[
    ("queen_bindings", MONITOR),
    ("queen_blocked", MONITOR),
    ("queen_dead_letters", POP),
    ("queen_grants", EACH),
    ("queen_groups", MONITOR),
    ("queen_leases", MONITOR),
    ("queen_messages", POP),
    ("queen_queues", MONITOR),
    ("queen_schedules", POP),
    ("queen_timers", POP),
];

const fn of(
    name: &'static str,
    arguments: &'static [Oid],
    result: &'static [Oid],
    needs: Needs,
) -> Signature {
    Signature { name, arguments, result, needs }
}

/// All functions, in the order of their names.
pub static SIGNATURES: &[Signature] = &[
    of(
        "blocked_partitions",
        &[TEXT, TEXT],
        &[TEXT, INT8, TEXT, TEXT, INT4, INT4, TEXT, TIMESTAMPTZ],
        MONITOR,
    ),
    of(
        "group_figures",
        &[TEXT, TEXT],
        &[INT8, INT8, INT8, INT8, INTERVAL, TIMESTAMPTZ, JSONB],
        MONITOR,
    ),
    of("has_worker", &[], &[BOOL], OWNER_ALONE),
    of("live_leases", &[TEXT, TEXT], &[TEXT, UUID, TIMESTAMPTZ, INT8, INT4], MONITOR),
    of(
        "queen_ack",
        &[UUID, INT8ARRAY, TEXT, TEXT, TEXTARRAY, TEXT, INTERVAL],
        &[INT4, INT4, INT4, BOOL],
        POP,
    ),
    of("queen_bind", &[TEXT, TEXT], &[BOOL], MANAGE),
    of("queen_cancel", &[TEXT, TEXT], &[BOOL], PUSH),
    of(
        "queen_configure",
        &[
            TEXT, INTERVAL, INT4, INTERVAL, FLOAT8, INTERVAL, INT4, TEXT, INTERVAL, INTERVAL,
            INTERVAL, INTERVAL, INT8, TEXT, TEXT, BOOL, TEXTARRAY, BOOL,
        ],
        &[
            TEXT,
            INTERVAL,
            INT4,
            INTERVAL,
            FLOAT8,
            INTERVAL,
            INT4,
            TEXT,
            INTERVAL,
            INTERVAL,
            INTERVAL,
            INTERVAL,
            INT8,
            TEXT,
            TEXT,
            BOOL,
            TIMESTAMPTZ,
        ],
        MANAGE,
    ),
    of(
        "queen_configure_group",
        &[TEXT, TEXT, INTERVAL, INT4, INTERVAL, FLOAT8, INTERVAL, INT4, TEXT, TEXT, TEXTARRAY],
        &[TEXT, TEXT, INTERVAL, INT4, INTERVAL, FLOAT8, INTERVAL, INT4, TEXT, TEXT],
        MANAGE,
    ),
    of("queen_dead_letter_purge", &[TEXT, TEXT, INTERVAL], &[INT8], MANAGE),
    of("queen_dead_letter_replay", &[INT8], &[INT8, TEXT], MANAGE),
    of("queen_dead_letter_replay_all", &[TEXT, TEXT, TEXT, TIMESTAMPTZ, INT4], &[INT8], MANAGE),
    of("queen_delete_queue", &[TEXT], &[INT8], MANAGE),
    of("queen_every", &[TEXT, TEXT, TEXT, JSONB, TEXT, JSONB, TEXT], &[TEXT, TIMESTAMPTZ], PUSH),
    of("queen_extend", &[UUID, INTERVAL], &[TIMESTAMPTZ], POP),
    of("queen_grant", &[TEXT, TEXT, TEXT], &[BOOL], OWNER_ALONE),
    of("queen_grant_kv", &[TEXT, TEXT, TEXT], &[BOOL], OWNER_ALONE),
    of("queen_kv_check", &[TEXT, TEXT, INT8, BOOL], &[BOOL, JSONB, INT8, TEXT], WRITE),
    of("queen_kv_delete", &[TEXT, TEXT, INT8, BOOL], &[BOOL, JSONB, INT8, TEXT], WRITE),
    of("queen_kv_get", &[TEXT, TEXT], &[BOOL, TEXT, JSONB, INT8, TIMESTAMPTZ, TIMESTAMPTZ], READ),
    of(
        "queen_kv_get_many",
        &[TEXT, TEXTARRAY],
        &[BOOL, TEXT, JSONB, INT8, TIMESTAMPTZ, TIMESTAMPTZ],
        READ,
    ),
    of(
        "queen_kv_incr",
        &[TEXT, TEXT, NUMERIC, INTERVAL, BOOL, NUMERIC, NUMERIC, BOOL],
        &[BOOL, JSONB, INT8, TEXT],
        WRITE,
    ),
    of(
        "queen_kv_list",
        &[TEXT, TEXT, TEXT, INT4],
        &[TEXT, JSONB, INT8, TIMESTAMPTZ, TIMESTAMPTZ],
        READ,
    ),
    of(
        "queen_kv_put",
        &[TEXT, TEXT, JSONB, INTERVAL, BOOL, INT8, BOOL],
        &[BOOL, JSONB, INT8, TEXT],
        WRITE,
    ),
    of(
        "queen_kv_put_if_absent",
        &[TEXT, TEXT, JSONB, INTERVAL, BOOL, BOOL],
        &[BOOL, JSONB, INT8, TEXT],
        WRITE,
    ),
    of(
        "queen_message_status",
        &[TEXT, TEXT, TEXT],
        &[TEXT, INT8, TEXT, INT4, TIMESTAMPTZ, TIMESTAMPTZ, TEXT],
        POP,
    ),
    of("queen_metrics", &[], &[TEXT, JSONB, FLOAT8, TEXT, TEXT], MONITOR),
    of("queen_pause", &[TEXT, TEXT], &[BOOL], MANAGE),
    of(
        "queen_pop",
        &[TEXT, TEXT, INT4, TEXT, INT4, INTERVAL, INTERVAL, BOOL, TEXT, TIMESTAMPTZ],
        &[TEXT, TEXT, INT8, TEXT, JSONB, JSONB, TIMESTAMPTZ, TEXT, INT4, UUID, TIMESTAMPTZ, INT4],
        POP,
    ),
    of(
        "queen_pop_any",
        &[TEXTARRAY, TEXT, INT4, INT4, INTERVAL, INTERVAL, BOOL, TEXT, TIMESTAMPTZ],
        &[TEXT, TEXT, INT8, TEXT, JSONB, JSONB, TIMESTAMPTZ, TEXT, INT4, UUID, TIMESTAMPTZ, INT4],
        POP,
    ),
    of("queen_prometheus", &[], &[TEXT], MONITOR),
    of("queen_publish", &[TEXT, JSONB, TEXT, TEXT, JSONB], &[TEXT, INT8, TEXT, TEXT], PUSH),
    of("queen_purge", &[TEXT, TEXT], &[INT8], MANAGE),
    of("queen_push", &[TEXT, JSONB, TEXT, TEXT, JSONB, INTERVAL], &[INT8, TEXT, TEXT], PUSH),
    of(
        "queen_push_batch",
        &[TEXT, JSONBARRAY, TEXT, TEXTARRAY, JSONBARRAY],
        &[INT4, INT8, TEXT, TEXT],
        PUSH,
    ),
    of("queen_push_items", &[JSONB], &[INT4, INT8, TEXT, TEXT], PUSH),
    of("queen_resume", &[TEXT, TEXT], &[BOOL], MANAGE),
    of("queen_revoke", &[TEXT, TEXT, TEXT], &[BOOL], OWNER_ALONE),
    of("queen_revoke_kv", &[TEXT, TEXT, TEXT], &[BOOL], OWNER_ALONE),
    of(
        "queen_schedule",
        &[TEXT, TEXT, JSONB, INTERVAL, TIMESTAMPTZ, TEXT, TEXT, JSONB],
        &[TEXT, TEXT, TIMESTAMPTZ],
        PUSH,
    ),
    of("queen_seek", &[TEXT, TEXT, TEXT, TIMESTAMPTZ, TEXT], &[INT4], MANAGE),
    of("queen_settle", &[UUID, JSONB], &[INT8, TEXT, TEXT, TEXT], POP),
    of("queen_subscribe", &[TEXT, TEXT, TEXT, TIMESTAMPTZ, TEXT], &[BOOL], POP),
    of("queen_sweep", &[INT4], &[TEXT, INT8], OWNER_ALONE),
    of("queen_tx_commit", &[JSONB, JSONB, JSONB, UUIDARRAY], &[JSONB], EACH_OPERATION),
    of("queen_unbind", &[TEXT, TEXT], &[BOOL], MANAGE),
    of("queen_unsubscribe", &[TEXT, TEXT], &[BOOL], MANAGE),
    of("queen_wait", &[TEXT, TEXT, INTERVAL, BOOL], &[BOOL], POP),
    of("queen_worker_start", &[], &[BOOL], OWNER_ALONE),
    of("queue_figures", &[TEXT], &[INT8, INT8, INTERVAL, INT8, INT8, JSONB], MONITOR),
    of("sees", &[TEXT, TEXT], &[BOOL], EACH),
];
