//! Every public function and view with one valid call.

/// One call. [`super::Stage::prepare`] makes everything ready for it. Placeholders: `{q}` is the
/// queue. It has the messages `a`, `b` and `c` in partition `p`, and the groups `g` (which has
/// popped nothing) and `holder`. `{lease}` is the lease of `holder` on `a` (message id `{message}`)
/// and `b`. `{dead}` is a dead letter. The queue has a timer `timer` and is
/// bound to `{q}.#`. The namespace `n` has a
/// marker `{q}` with version `{version}`. The call uses literals only, so it depends on the
/// search_path for the function's name alone.
pub struct Call {
    pub name: &'static str,
    /// The text after FROM, or a statement that begins with CALL.
    pub sql: &'static str,
    /// One table of the extension that the call reads or writes.
    pub table: &'static str,
    /// The call writes.
    pub writes: bool,
    /// What another session does before the call.
    pub rival: Rival,
}

/// A write of another transaction that concerns the call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Rival {
    /// No other transaction can delay the call or make it fail.
    None,
    /// The call waits until the transaction that did this ends. If that transaction commits, the
    /// call sees what it wrote, also in REPEATABLE READ.
    Holds(&'static str),
    /// The call waits as with `Holds`. In REPEATABLE READ it raises 40001 if that transaction
    /// commits after the call's snapshot was taken.
    Conflicts(&'static str),
}

impl Rival {
    /// What the other transaction does, if the call waits for it.
    pub fn holds(self) -> Option<&'static str> {
        match self {
            Self::Holds(sql) | Self::Conflicts(sql) => Some(sql),
            Self::None => None,
        }
    }

    /// What the other transaction does, if the call then fails in REPEATABLE READ.
    pub fn conflicts(self) -> Option<&'static str> {
        match self {
            Self::Conflicts(sql) => Some(sql),
            Self::None | Self::Holds(_) => None,
        }
    }
}

const fn writes(name: &'static str, table: &'static str, sql: &'static str, rival: Rival) -> Call {
    Call { name, sql, table, writes: true, rival }
}

const fn reads(name: &'static str, table: &'static str, sql: &'static str) -> Call {
    Call { name, sql, table, writes: false, rival: Rival::None }
}

const PUT: &str = "SELECT queen_kv_put('n', '{q}', '7', forever => true)";
const ACK: &str = "SELECT queen_ack('{lease}', '{{message}}')";
const TWIN: &str = "SELECT queen_push('{q}', '1', 'p', 'twin')";
const SCHEDULE: &str = "SELECT queen_schedule('{q}', 'timer', '7', delay => '2 hours')";
const REPLAY: &str = "SELECT queen_dead_letter_replay({dead})";

use Rival::{Conflicts, Holds};

/// Every function of the reference, each kind of operation of a bundle, and every view.
pub const CALLS: &[Call] = &[
    writes("queen_push", "segment", "queen_push('{q}', '1', 'p', 'twin')", Conflicts(TWIN)),
    writes(
        "queen_push of a new queue",
        "queue",
        "queen_push('{q} new', '1')",
        Holds("SELECT queen_push('{q} new', '2')"),
    ),
    writes(
        "queen_push with a delay",
        "timer",
        "queen_push('{q}', '1', 'p', 'late', delay => '1 hour')",
        Conflicts("SELECT queen_push('{q}', '2', 'p', 'late', delay => '1 hour')"),
    ),
    writes(
        "queen_push_batch",
        "admission",
        "queen_push_batch('{q}', '{1,2}', 'p', '{x,twin}')",
        Conflicts(TWIN),
    ),
    writes(
        "queen_push_items",
        "segment",
        r#"queen_push_items('[{"queue": "{q} more", "payload": 1},
            {"queue": "{q}", "payload": 1, "partition": "p", "transactionId": "twin"}]')"#,
        Conflicts(TWIN),
    ),
    writes("queen_pop", "progress", "queen_pop('{q}', 'g', batch => 3)", Rival::None),
    writes(
        "queen_pop of a new group",
        "consumer_group",
        "queen_pop('{q}', 'young', subscription_mode => 'all')",
        Rival::None,
    ),
    writes("queen_pop, auto_ack", "cursor", "queen_pop('{q}', 'g', auto_ack => true)", Rival::None),
    writes(
        "queen_pop_any",
        "progress",
        "queen_pop_any(ARRAY['{q} none', '{q}'], 'g', batch => 3)",
        Rival::None,
    ),
    writes("queen_ack", "progress", "queen_ack('{lease}', '{{message}}')", Conflicts(ACK)),
    writes(
        "queen_ack, failed",
        "dead_letter",
        "queen_ack('{lease}', '{{message}}', 'failed', 'because')",
        Conflicts(ACK),
    ),
    writes(
        "queen_settle",
        "progress",
        r#"queen_settle('{lease}', '[{"messageId": {message}, "status": "completed"},
            {"transactionId": "b", "status": "dead_letter", "error": "bad"}]')"#,
        Conflicts(ACK),
    ),
    writes("queen_extend", "progress", "queen_extend('{lease}', '1 hour')", Conflicts(ACK)),
    writes(
        "queen_subscribe",
        "consumer_group",
        "queen_subscribe('{q}', 'young', 'all')",
        Holds("SELECT queen_subscribe('{q}', 'young', 'all')"),
    ),
    writes("queen_unsubscribe", "consumer_group", "queen_unsubscribe('{q}', 'holder')", Holds(ACK)),
    writes("queen_seek", "cursor", "queen_seek('{q}', 'holder', 'end')", Holds(ACK)),
    writes(
        "queen_configure",
        "queue",
        "queen_configure('{q}', retry_limit => 7)",
        Conflicts("SELECT queen_configure('{q}', retry_limit => 8)"),
    ),
    writes(
        "queen_configure_group",
        "consumer_group",
        "queen_configure_group('{q}', 'holder', retry_limit => 7)",
        Conflicts("SELECT queen_configure_group('{q}', 'holder', retry_limit => 8)"),
    ),
    writes(
        "queen_pause",
        "queue",
        "queen_pause('{q}')",
        Conflicts("SELECT queen_configure('{q}', retry_limit => 8)"),
    ),
    writes(
        "queen_pause of a group",
        "consumer_group",
        "queen_pause('{q}', 'holder')",
        Conflicts("SELECT queen_configure_group('{q}', 'holder', retry_limit => 8)"),
    ),
    writes("queen_resume", "queue", "queen_resume('{q}')", Conflicts("SELECT queen_pause('{q}')")),
    writes("queen_purge", "segment", "queen_purge('{q}')", Holds(ACK)),
    writes("queen_purge of a partition", "segment", "queen_purge('{q}', 'p')", Holds(ACK)),
    writes("queen_delete_queue", "consumer_group", "queen_delete_queue('{q}')", Holds(ACK)),
    writes(
        "queen_schedule",
        "timer",
        "queen_schedule('{q}', 'timer', '1', delay => '1 hour')",
        Conflicts(SCHEDULE),
    ),
    writes(
        "queen_every",
        "timer",
        "queen_every('{q}', 'timer', '@daily', '1', time_zone => 'Asia/Tokyo')",
        Conflicts(SCHEDULE),
    ),
    writes(
        "queen_bind",
        "binding",
        "queen_bind('{q} topic', '{q}')",
        Conflicts("SELECT queen_bind('{q} topic', '{q}')"),
    ),
    writes(
        "queen_unbind",
        "binding",
        "queen_unbind('{q}.#', '{q}')",
        Conflicts("SELECT queen_unbind('{q}.#', '{q}')"),
    ),
    writes(
        "queen_publish",
        "segment",
        "queen_publish('{q}.news', '1', 'p', 'twin')",
        Conflicts(TWIN),
    ),
    writes("queen_cancel", "timer", "queen_cancel('{q}', 'timer')", Conflicts(SCHEDULE)),
    writes(
        "queen_dead_letter_replay",
        "dead_letter",
        "queen_dead_letter_replay({dead})",
        Conflicts(REPLAY),
    ),
    writes(
        "queen_dead_letter_replay_all",
        "dead_letter",
        "queen_dead_letter_replay_all('{q}')",
        Rival::None,
    ),
    writes(
        "queen_dead_letter_purge",
        "dead_letter",
        "queen_dead_letter_purge('{q}')",
        Conflicts(REPLAY),
    ),
    writes(
        "queen_kv_put",
        "marker",
        "queen_kv_put('n', '{q}', '2', ttl => '1 hour')",
        Conflicts(PUT),
    ),
    writes(
        "queen_kv_put_if_absent",
        "marker",
        "queen_kv_put_if_absent('n', '{q} new', '2', ttl => '1 hour')",
        Conflicts("SELECT queen_kv_put('n', '{q} new', '3', forever => true)"),
    ),
    writes("queen_kv_delete", "marker", "queen_kv_delete('n', '{q}')", Conflicts(PUT)),
    writes(
        "queen_kv_incr",
        "marker",
        "queen_kv_incr('n', '{q}', 1, forever => true)",
        Conflicts(PUT),
    ),
    writes("queen_kv_check", "marker", "queen_kv_check('n', '{q}', {version})", Conflicts(PUT)),
    writes(
        "queen_tx_commit, ack",
        "progress",
        r#"queen_tx_commit('[{"type": "ack", "leaseId": "{lease}", "messageId": {message}}]')"#,
        Conflicts(ACK),
    ),
    writes(
        "queen_tx_commit, push",
        "segment",
        r#"queen_tx_commit('[{"type": "push", "queue": "{q}", "payload": 1, "partition": "p",
            "transactionId": "twin"}]')"#,
        Conflicts(TWIN),
    ),
    writes(
        "queen_tx_commit, put",
        "marker",
        r#"queen_tx_commit(kv =>
            '[{"op": "put", "ns": "n", "key": "{q}", "value": 3, "forever": true}]')"#,
        Conflicts(PUT),
    ),
    writes(
        "queen_tx_commit, incr",
        "marker",
        r#"queen_tx_commit(kv => '[{"op": "incr", "ns": "n", "key": "{q}", "forever": true}]')"#,
        Conflicts(PUT),
    ),
    writes(
        "queen_tx_commit, delete",
        "marker",
        r#"queen_tx_commit(kv => '[{"op": "delete", "ns": "n", "key": "{q}"}]')"#,
        Conflicts(PUT),
    ),
    writes(
        "queen_tx_commit, putIfAbsent",
        "marker",
        r#"queen_tx_commit(kv => '[{"op": "putIfAbsent", "ns": "n", "key": "{q} new", "value": 3,
            "ttlSeconds": 60}]')"#,
        Conflicts("SELECT queen_kv_put('n', '{q} new', '3', forever => true)"),
    ),
    writes(
        "queen_tx_commit, schedule",
        "timer",
        r#"queen_tx_commit(timers => '[{"op": "schedule", "queue": "{q}", "timerKey": "timer",
            "payload": 1, "delayMs": 3600000}]')"#,
        Conflicts(SCHEDULE),
    ),
    writes(
        "queen_tx_commit, cancel",
        "timer",
        r#"queen_tx_commit(timers => '[{"op": "cancel", "queue": "{q}", "timerKey": "timer"}]')"#,
        Conflicts(SCHEDULE),
    ),
    writes(
        "queen_tx_commit, everything",
        "dead_letter",
        r#"queen_tx_commit(
            '[{"type": "push", "queue": "{q}", "payload": 1, "partition": "p",
               "transactionId": "new"},
              {"type": "ack", "leaseId": "{lease}", "transactionId": "a"},
              {"type": "ack", "leaseId": "{lease}", "transactionId": "b", "status": "failed"}]',
            '[{"op": "put", "ns": "n", "key": "{q} 2", "value": 3, "forever": true},
              {"op": "check", "ns": "n", "key": "{q} 3", "expect": 0},
              {"op": "get", "ns": "n", "key": "{q}"},
              {"op": "getMany", "ns": "n", "keys": ["{q}", "{q} 2"]}]',
            '[{"op": "schedule", "queue": "{q}", "timerKey": "timer", "payload": 1, "delayMs": 1}]',
            '{{lease}}')"#,
        Conflicts(ACK),
    ),
    writes("queen_sweep", "admission", "queen_sweep(200)", Rival::None),
    writes(
        "queen_wait",
        "consumer_group",
        "CALL queen_wait('{q} quiet', 'young', '20 s')",
        Rival::None,
    ),
    reads("queen_kv_get", "marker", "queen_kv_get('n', '{q}')"),
    reads("queen_kv_get_many", "marker", "queen_kv_get_many('n', '{{q},none}')"),
    reads("queen_kv_list", "marker", "queen_kv_list('n')"),
    reads("queen_message_status", "admission", "queen_message_status('{q}', 'a', 'p')"),
    reads("queen_metrics", "progress", "queen_metrics()"),
    reads("queen_prometheus", "tally", "queen_prometheus()"),
    reads("queen_queues", "queue", "queen_queues"),
    reads("queen_groups", "progress", "queen_groups"),
    reads("queen_leases", "progress", "queen_leases"),
    reads("queen_blocked", "progress", "queen_blocked"),
    reads("queen_messages", "segment", "queen_messages"),
    reads("queen_dead_letters", "dead_letter", "queen_dead_letters"),
    reads("queen_timers", "timer", "queen_timers"),
    reads("queen_schedules", "timer", "queen_schedules"),
    reads("queen_bindings", "binding", "queen_bindings"),
];
