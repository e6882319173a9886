//! The columns of our tables, by name and type, in the order in which the code counts them, and the
//! columns of their indexes: what direct look-ups and inserts rely on.
//!
//! Where a column lies in the table is another matter: a column that was added or dropped by hand,
//! or that came with an update of the extension, moves none of these (see [`super::relation`]).

use std::ffi::CStr;

use pgrx::pg_sys::{
    BYTEAOID, FLOAT8OID, INT2OID, INT4OID, INT8OID, INTERVALOID, JSONBARRAYOID, JSONBOID, Oid,
    TEXTARRAYOID, TEXTOID, TIMESTAMPTZOID, UUIDOID,
};

/// A table: its columns, counted from 1.
pub struct Layout {
    pub name: &'static CStr,
    pub columns: &'static [(&'static CStr, Oid)],
}

/// A b-tree index: its key columns, in their order.
pub struct Order {
    pub name: &'static CStr,
    pub keys: &'static [&'static CStr],
}

/// The layout of the table of this name.
pub fn of_table(name: &CStr) -> Option<&'static Layout> {
    TABLES.iter().find(|layout| layout.name == name)
}

/// All tables.
pub fn tables() -> impl Iterator<Item = &'static CStr> {
    // The last ones have no layout: only SQL reads and writes them.
    TABLES.iter().map(|layout| layout.name).chain([c"identity", c"owner", c"sweep"])
}

/// The order of the index of this name.
pub fn of_index(name: &CStr) -> Option<&'static Order> {
    INDEXES.iter().find(|order| order.name == name)
}

static TABLES: [Layout; 16] = [
    Layout {
        name: c"queue",
        columns: &[
            (c"id", INT8OID),
            (c"name", TEXTOID),
            (c"created_at", TIMESTAMPTZOID),
            (c"installation", INT8OID),
            (c"xid_offset", INT8OID),
            (c"restored_at", TIMESTAMPTZOID),
            (c"lease_time", INTERVALOID),
            (c"retry_limit", INT4OID),
            (c"retry_delay", INTERVALOID),
            (c"retry_backoff", FLOAT8OID),
            (c"retry_delay_max", INTERVALOID),
            (c"on_exhausted", TEXTOID),
            (c"dedup_window", INTERVALOID),
            (c"max_deliveries", INT4OID),
            (c"delay", INTERVALOID),
            (c"retention", INTERVALOID),
            (c"completed_retention", INTERVALOID),
            (c"max_depth", INT8OID),
            (c"ordering", TEXTOID),
        ],
    },
    Layout {
        name: c"segment",
        columns: &[
            (c"queue_id", INT8OID),
            (c"id", INT8OID),
            (c"xid", INT8OID),
            (c"created_at", TIMESTAMPTZOID),
            (c"n", INT2OID),
            (c"partition", TEXTOID),
            (c"payloads", JSONBARRAYOID),
            (c"transaction_ids", TEXTARRAYOID),
            (c"headers", JSONBARRAYOID),
            (c"only_group", INT8OID),
        ],
    },
    Layout {
        name: c"admission",
        columns: &[
            (c"queue_id", INT8OID),
            (c"partition", TEXTOID),
            (c"transaction_id", TEXTOID),
            (c"message_id", INT8OID),
            (c"admitted_at", TIMESTAMPTZOID),
        ],
    },
    Layout {
        name: c"consumer_group",
        columns: &[
            (c"id", INT8OID),
            (c"queue", TEXTOID),
            (c"name", TEXTOID),
            (c"registered_at", TIMESTAMPTZOID),
            (c"start", BYTEAOID),
            (c"initial", INT8OID),
            (c"baseline", INT8OID),
            (c"ordering", TEXTOID),
        ],
    },
    Layout {
        name: c"cursor",
        columns: &[(c"id", INT8OID), (c"group_id", INT8OID), (c"partition", TEXTOID)],
    },
    Layout {
        name: c"claim",
        columns: &[
            (c"id", INT8OID),
            (c"group_id", INT8OID),
            (c"partition", TEXTOID),
            (c"message_id", INT8OID),
            (c"taken_at", TIMESTAMPTZOID),
            (c"lease_id", UUIDOID),
            (c"deadline", TIMESTAMPTZOID),
        ],
    },
    Layout {
        name: c"progress",
        columns: &[
            (c"cursor_id", INT8OID),
            (c"revision", INT8OID),
            (c"group_id", INT8OID),
            (c"due_at", TIMESTAMPTZOID),
            (c"announced_xid", INT8OID),
            (c"state", BYTEAOID),
        ],
    },
    Layout {
        name: c"discovery",
        columns: &[(c"group_id", INT8OID), (c"revision", INT8OID), (c"state", BYTEAOID)],
    },
    Layout {
        name: c"tally",
        columns: &[(c"queue_id", INT8OID), (c"revision", INT8OID), (c"state", BYTEAOID)],
    },
    Layout {
        name: c"receipt",
        columns: &[
            (c"cursor_id", INT8OID),
            (c"lease_id", UUIDOID),
            (c"ended_at", TIMESTAMPTZOID),
            (c"body", BYTEAOID),
            (c"group_id", INT8OID),
            (c"partition", TEXTOID),
        ],
    },
    Layout {
        name: c"timer",
        columns: &[
            (c"id", INT8OID),
            (c"queue_id", INT8OID),
            (c"timer_key", TEXTOID),
            (c"partition", TEXTOID),
            (c"transaction_id", TEXTOID),
            (c"deliver_at", TIMESTAMPTZOID),
            (c"payload", JSONBOID),
            (c"headers", JSONBOID),
        ],
    },
    Layout { name: c"installation", columns: &[(c"id", INT8OID)] },
    // These are written by SQL alone.
    Layout { name: c"marker", columns: &[] },
    Layout { name: c"lease_set", columns: &[] },
    Layout { name: c"dead_letter", columns: &[] },
    Layout { name: c"replay", columns: &[] },
];

static INDEXES: [Order; 19] = [
    Order { name: c"installation_pkey", keys: &[c"id"] },
    Order { name: c"queue_name_key", keys: &[c"name"] },
    Order { name: c"segment_in_order", keys: &[c"queue_id", c"partition", c"id"] },
    Order { name: c"segment_news", keys: &[c"queue_id", c"xid", c"partition", c"id"] },
    Order { name: c"admission_once", keys: &[c"queue_id", c"partition", c"transaction_id"] },
    Order { name: c"consumer_group_pkey", keys: &[c"id"] },
    Order { name: c"consumer_group_once", keys: &[c"queue", c"name"] },
    Order { name: c"cursor_pkey", keys: &[c"id"] },
    Order { name: c"cursor_once", keys: &[c"group_id", c"partition"] },
    Order { name: c"claim_of_id", keys: &[c"id"] },
    Order { name: c"claim_once", keys: &[c"group_id", c"partition", c"message_id"] },
    Order { name: c"claim_due", keys: &[c"group_id", c"deadline", c"id"] },
    Order { name: c"progress_newest", keys: &[c"cursor_id", c"revision"] },
    Order { name: c"progress_due", keys: &[c"group_id", c"due_at", c"cursor_id"] },
    Order { name: c"progress_announced", keys: &[c"group_id", c"announced_xid", c"cursor_id"] },
    Order { name: c"discovery_newest", keys: &[c"group_id", c"revision"] },
    Order { name: c"tally_newest", keys: &[c"queue_id", c"revision"] },
    Order { name: c"timer_due", keys: &[c"queue_id", c"deliver_at", c"id"] },
    Order { name: c"receipt_once", keys: &[c"cursor_id", c"lease_id"] },
];
