//! Hostile arguments: every public function, called with what no application should send. A call
//! succeeds or is refused with a SQLSTATE of the contract; nothing crashes, nothing that is accepted
//! is changed on its way, and the queues work on afterwards.

use std::fmt::Debug;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use queen_tests::{
    Ack, Fails, Message, Pop, Push, Session, TestDb, complete, eventually, marker, n,
    put_if_absent, settle,
};
use serde_json::{Value, json};
use tokio_postgres::Error;

/// What may become of a call.
#[derive(Clone, Copy, Debug)]
enum Expected {
    Fine,
    /// Refused with this SQLSTATE. (Two: where it depends on the version of PostgreSQL.)
    Refused(&'static [&'static str]),
    /// The contract leaves it open: fine, or refused with one of [`CONTRACT`].
    Open,
}
use Expected::{Fine, Open, Refused};

const BAD: Expected = Refused(&["22023"]);
const UNDEFINED: Expected = Refused(&["42704"]);
const NO_LEASE: Expected = Refused(&["QN003"]);
const NOT_IN_LEASE: Expected = Refused(&["QN004"]);
const UNMET: Expected = Refused(&["QN010"]);
const NOT_A_TEXT: Expected = Refused(&["22P02"]);
const TOO_BIG: Expected = Refused(&["22003"]);
/// An infinite interval: since PostgreSQL 17 there is one, before that it is no interval.
const INFINITE: Expected = Refused(&["22007", "22023"]);

/// What the extension itself may raise.
const CONTRACT: &[&str] = &[
    "22023", "42704", "55000", "QN001", "QN002", "QN003", "QN004", "QN005", "QN010", "QN020",
];

/// What PostgreSQL raises while it reads an argument, so that the function is never entered: text
/// that is no value of the type (22P02), \u0000 in jsonb (22P05), no date or interval (22007), one
/// out of its type's range (22008, 22015), a number out of its type's range (22003), character zero
/// (54000), JSON nested deeper than the stack (54001).
const INPUT: &[&str] =
    &["22P02", "22P05", "22007", "22008", "22015", "22003", "54000", "54001"];

/// Names that are legal, however odd. The two é are different names.
const ODD: &[&str] = &[
    "it's \"quoted\"; DROP TABLE queen_mq.queue; --",
    "back\\slash \\u0041 \\' \\",
    "%s %n %% _",
    "$1 :name {x} ${HOME} `id`",
    "naïve 名前 🐘 \u{10ffff}",
    "é",
    "e\u{301}",
    "\u{202e}rtl\u{200b}\u{feff}",
    "c1 \u{85}\u{9f}",
    " ",
    "NULL",
    "../../etc/passwd",
    "{\"a\":[1]}",
];

/// Refused in names, transaction_ids and timer keys; a marker's key may contain them.
const CONTROLS: &[&str] = &["a\u{1}b", "\u{1f}", "\u{7f}", "line\nfeed", "end\r", "\ttab"];

/// Where a name goes: `@` as an SQL literal, `#` as a JSON string. What comes of a legal name that
/// nothing has, and of NULL.
const NAMES: &[(&str, Expected, Expected)] = &[
    ("SELECT queen_purge(@)", UNDEFINED, BAD),
    ("SELECT queen_delete_queue(@)", UNDEFINED, BAD),
    ("SELECT queen_seek(@, 'holder', 'end')", UNDEFINED, BAD),
    ("SELECT queen_seek('held', @, 'end')", UNDEFINED, UNDEFINED),
    ("SELECT queen_seek('stock', 'g', 'end', partition => @)", Open, Fine),
    ("SELECT queen_unsubscribe(@, 'g')", Fine, BAD),
    ("SELECT queen_unsubscribe('stock', @)", Fine, Fine),
    ("SELECT queen_cancel(@, 'key')", Fine, BAD),
    ("SELECT queen_dead_letter_purge(@)", Open, BAD),
    ("SELECT queen_dead_letter_purge('stock', @)", Open, Fine),
    ("SELECT queen_pop(@)", Fine, BAD),
    ("SELECT queen_pop('stock', @)", Fine, Fine),
    ("SELECT queen_pop('stock', 'g', partition => @)", Fine, Fine),
    ("SELECT queen_subscribe(@, 'g')", Fine, BAD),
    ("SELECT queen_subscribe('stock', @)", Open, BAD),
    ("SELECT queen_ack('LEASE', partition => @, message_ids => '{1}')", NOT_IN_LEASE, NOT_IN_LEASE),
    (
        r#"SELECT queen_settle('LEASE', '[{"messageId":1,"status":"retry","partition":#}]')"#,
        NOT_IN_LEASE,
        Open,
    ),
    (
        r#"SELECT queen_tx_commit('[{"type":"ack","leaseId":"LEASE","messageId":1,"partition":#}]')"#,
        Fine,
        Open,
    ),
    ("SELECT queen_configure(@)", Fine, BAD),
    ("SELECT queen_push(@, '1')", Fine, BAD),
    ("SELECT queen_push('stock', '1', partition => @)", Fine, Fine),
    ("SELECT queen_push_batch(@, '{1,2}')", Fine, BAD),
    ("SELECT queen_push_batch('stock', '{1,2}', @)", Fine, Fine),
    (r#"SELECT queen_push_items('[{"queue":#,"payload":1}]')"#, Fine, BAD),
    (r#"SELECT queen_push_items('[{"queue":"stock","partition":#,"payload":1}]')"#, Fine, Open),
    (r#"SELECT queen_tx_commit('[{"type":"push","queue":#,"payload":1}]')"#, Fine, BAD),
    (
        r#"SELECT queen_tx_commit('[{"type":"push","queue":"stock","partition":#,"payload":1}]')"#,
        Fine,
        Open,
    ),
    ("SELECT queen_schedule(@, 'key', '1', '1 hour')", Fine, BAD),
    ("SELECT queen_schedule('stock', 'key', '1', '1 hour', partition => @)", Fine, Fine),
    (
        r#"SELECT queen_tx_commit(timers => '[{"op":"schedule","queue":#,"timerKey":"key","payload":1,
           "delayMs":9e6}]')"#,
        Fine,
        BAD,
    ),
    (
        r#"SELECT queen_tx_commit(timers => '[{"op":"cancel","queue":#,"timerKey":"key"}]')"#,
        Fine,
        BAD,
    ),
    ("SELECT queen_delete_queue(@)", Fine, BAD),
];

/// The same for transaction_ids and timer keys.
const IDS: &[(&str, Expected, Expected)] = &[
    ("SELECT queen_push('ids', '1', transaction_id => @)", Fine, Fine),
    ("SELECT queen_push('ids', '1', transaction_id => @, delay => '1 hour')", Fine, Fine),
    ("SELECT queen_push_batch('ids', '{1}', transaction_ids => ARRAY[@])", Fine, Fine),
    (r#"SELECT queen_push_items('[{"queue":"ids","payload":1,"transactionId":#}]')"#, Fine, Open),
    (
        r#"SELECT queen_tx_commit('[{"type":"push","queue":"ids","payload":1,"transactionId":#}]')"#,
        Fine,
        Open,
    ),
    ("SELECT queen_schedule('ids', @, '1', '1 hour')", Fine, BAD),
    ("SELECT queen_schedule('ids', 'key', '1', '1 hour', transaction_id => @)", Fine, Fine),
    (
        r#"SELECT queen_tx_commit(timers => '[{"op":"schedule","queue":"ids","timerKey":#,
           "payload":1,"delayMs":9e6}]')"#,
        Fine,
        BAD,
    ),
    ("SELECT queen_cancel('ids', @)", Fine, BAD),
    ("SELECT queen_ack('LEASE', transaction_ids => ARRAY[@])", NOT_IN_LEASE, BAD),
    (
        r#"SELECT queen_settle('LEASE', '[{"transactionId":#,"status":"completed"}]')"#,
        NOT_IN_LEASE,
        BAD,
    ),
    (
        r#"SELECT queen_tx_commit('[{"type":"ack","leaseId":"LEASE","transactionId":#,
           "messageId":1}]')"#,
        BAD,
        Open,
    ),
];

/// Where a namespace goes.
const NAMESPACES: &[&str] = &[
    "SELECT queen_kv_get(@, 'key')",
    "SELECT queen_kv_get_many(@, '{key}')",
    "SELECT queen_kv_list(@)",
    "SELECT queen_kv_put(@, 'key', '1', forever => true)",
    "SELECT queen_kv_put_if_absent(@, 'key', '1', '1 hour')",
    "SELECT queen_kv_check(@, 'key', 0)",
    "SELECT queen_kv_delete(@, 'key')",
    "SELECT queen_kv_incr(@, 'n', forever => true)",
    r#"SELECT queen_tx_commit(kv => '[{"op":"put","ns":#,"key":"k","value":1,"forever":true}]')"#,
    r#"SELECT queen_tx_commit(kv => '[{"op":"getMany","ns":#,"keys":["k"]}]')"#,
];

/// Where a marker's key goes.
const KEYS: &[&str] = &[
    "SELECT queen_kv_get('ns', @)",
    "SELECT queen_kv_get_many('ns', ARRAY[@])",
    "SELECT queen_kv_put('ns', @, '1', '1 hour')",
    "SELECT queen_kv_put_if_absent('ns', @, '1', '1 hour')",
    "SELECT queen_kv_incr('ns', @, ttl => '1 hour')",
    "SELECT queen_kv_check('ns', @, 0)",
    "SELECT queen_kv_delete('ns', @)",
    r#"SELECT queen_tx_commit(kv => '[{"op":"delete","ns":"ns","key":#}]')"#,
    r#"SELECT queen_tx_commit(kv => '[{"op":"getMany","ns":"ns","keys":[#]}]')"#,
];

/// JSON that is no array of objects, or of objects that say nothing.
const SHAPES: &[&str] = &[
    "null", "1", "\"x\"", "true", "{}", "[null]", "[1]", "[\"x\"]", "[[]]", "[{}]", "[{\"x\":1}]",
    "[[{}],{}]", "{\"0\":{}}", "[{\"$serde_json::private::RawValue\":\"1\"}]",
];

/// Where such an array goes.
const ARRAYS: &[&str] = &[
    "SELECT queen_push_items(@)",
    "SELECT queen_settle('LEASE', @)",
    "SELECT queen_tx_commit(@)",
    "SELECT queen_tx_commit(kv => @)",
    "SELECT queen_tx_commit(timers => @)",
];

/// Where any jsonb goes: accepted as it is.
const JSON: &[&str] = &[
    "SELECT queen_push('json', @)",
    "SELECT queen_push('json', '1', headers => @)",
    "SELECT queen_push('json', @, delay => '1 hour')",
    "SELECT queen_push_batch('json', ARRAY[@]::jsonb[])",
    "SELECT queen_push_items(jsonb_build_array(jsonb_build_object('queue', 'j', 'payload', @)))",
    "SELECT queen_schedule('json', 'key', @, '1 hour')",
    "SELECT queen_schedule('json', 'key', '1', '1 hour', headers => @)",
    "SELECT queen_tx_commit(jsonb_build_array(jsonb_build_object('type', 'push', 'queue', 'j', \
     'payload', @)))",
    "SELECT queen_kv_put('json', 'key', @, '1 hour')",
    "SELECT queen_kv_put_if_absent('json', 'key', @, '1 hour')",
];

/// 16 MiB less 64 bytes that don't compress.
const ALMOST_16_MIB: &str =
    "(SELECT to_jsonb(string_agg(md5(i::text), '')) FROM generate_series(1, 524286) i)";

