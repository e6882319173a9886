//! The calls of this test, and what may become of each.

/// What may happen to a call.
#[derive(Clone, Copy, Debug)]
pub enum Expected {
    Fine,
    /// Refused with this SQLSTATE. There are two where it depends on the version of PostgreSQL.
    Refused(&'static [&'static str]),
    /// The contract leaves it open: the call succeeds, or is refused with one of [`CONTRACT`].
    Open,
}
pub use Expected::{Fine, Open, Refused};

pub const BAD: Expected = Refused(&["22023"]);
const UNDEFINED: Expected = Refused(&["42704"]);
const NO_LEASE: Expected = Refused(&["QN003"]);
const FOREIGN: Expected = Refused(&["QN004"]);
const UNMET: Expected = Refused(&["QN010"]);
const UNREADABLE: Expected = Refused(&["22P02"]);
const TOO_BIG: Expected = Refused(&["22003"]);
/// PostgreSQL 17 introduced infinite intervals; before that the text is no interval.
const INFINITE: Expected = Refused(&["22007", "22023"]);

/// The SQLSTATEs that the extension itself may raise.
pub const CONTRACT: &[&str] =
    &["22023", "42704", "55000", "QN001", "QN002", "QN003", "QN004", "QN005", "QN010", "QN020"];

/// SQLSTATEs that PostgreSQL raises while it reads an argument: text that is no value of the type
/// (22P02), \u0000 in jsonb (22P05), no date or interval (22007), one out of range (22008, 22015),
/// a number out of range (22003), character zero (54000), JSON deeper than the stack (54001).
pub const INPUT: &[&str] =
    &["22P02", "22P05", "22007", "22008", "22015", "22003", "54000", "54001"];

/// Odd names that are legal. The two é are different names.
pub const ODD: &[&str] = &[
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
pub const CONTROLS: &[&str] = &["a\u{1}b", "\u{1f}", "\u{7f}", "line\nfeed", "end\r", "\ttab"];

/// Calls with a name: `@` stands for it as an SQL literal, `#` as a JSON string. Then what happens
/// with a legal name that no object has, and with NULL.
pub const NAMES: &[(&str, Expected, Expected)] = &[
    ("queen_purge(@)", UNDEFINED, BAD),
    ("queen_purge('s', @)", Fine, Fine),
    ("queen_resume(@)", UNDEFINED, BAD),
    ("queen_resume('held', @)", UNDEFINED, Fine),
    ("queen_configure_group(@, 'holder')", UNDEFINED, BAD),
    ("queen_configure_group('held', @)", UNDEFINED, UNDEFINED),
    ("queen_dead_letter_replay_all(@)", UNDEFINED, BAD),
    ("queen_dead_letter_replay_all('held', @)", UNDEFINED, Fine),
    ("queen_delete_queue(@)", UNDEFINED, BAD),
    ("queen_seek(@, 'holder', 'end')", UNDEFINED, BAD),
    ("queen_seek('held', @, 'end')", UNDEFINED, UNDEFINED),
    ("queen_seek('s', 'g', 'end', partition => @)", Open, Fine),
    ("queen_unsubscribe(@, 'g')", Fine, BAD),
    ("queen_unsubscribe('s', @)", Fine, Fine),
    ("queen_cancel(@, 'key')", Fine, BAD),
    ("queen_dead_letter_purge(@)", Open, BAD),
    ("queen_dead_letter_purge('s', @)", Open, Fine),
    ("queen_pop(@)", Fine, BAD),
    ("queen_pop('s', @)", Fine, Fine),
    ("queen_pop('s', 'g', partition => @)", Fine, Fine),
    ("queen_subscribe(@, 'g')", Fine, BAD),
    ("queen_subscribe('s', @)", Fine, BAD),
    ("queen_ack('LEASE', partition => @, message_ids => '{1}')", FOREIGN, FOREIGN),
    (r#"queen_settle('LEASE', '[{"messageId":1,"status":"retry","partition":#}]')"#, FOREIGN, Open),
    (
        r#"queen_tx_commit('[{"type":"ack","leaseId":"LEASE","messageId":1,"partition":#}]')"#,
        Fine,
        Open,
    ),
    ("queen_configure(@)", Fine, BAD),
    ("queen_push(@, '1')", Fine, BAD),
    ("queen_push('s', '1', partition => @)", Fine, Fine),
    ("queen_push_batch(@, '{1,2}')", Fine, BAD),
    ("queen_push_batch('s', '{1,2}', @)", Fine, Fine),
    (r#"queen_push_items('[{"queue":#,"payload":1}]')"#, Fine, BAD),
    (r#"queen_push_items('[{"queue":"s","partition":#,"payload":1}]')"#, Fine, Open),
    (r#"queen_tx_commit('[{"type":"push","queue":#,"payload":1}]')"#, Fine, BAD),
    (r#"queen_tx_commit('[{"type":"push","queue":"s","partition":#,"payload":1}]')"#, Fine, Open),
    ("queen_schedule(@, 'key', '1', '1 hour')", Fine, BAD),
    ("queen_schedule('s', 'key', '1', '1 hour', partition => @)", Fine, Fine),
    ("queen_every(@, 'key', '1 day', '1')", Fine, BAD),
    ("queen_bind('topic', @)", Fine, BAD),
    ("queen_bind(@, 's')", Fine, BAD),
    ("queen_unbind(@, 's')", Fine, BAD),
    ("queen_unbind('topic', @)", Fine, BAD),
    ("queen_publish(@, '1')", Fine, BAD),
    ("queen_publish('for s', '1', @)", Fine, Fine),
    ("queen_every('s', 'key', '1 day', '1', @)", Fine, Fine),
    (
        r#"queen_tx_commit(timers => '[{"op":"schedule","queue":#,"timerKey":"key","payload":1,
           "delayMs":9e6}]')"#,
        Fine,
        BAD,
    ),
    (r#"queen_tx_commit(timers => '[{"op":"cancel","queue":#,"timerKey":"key"}]')"#, Fine, BAD),
    ("queen_delete_queue(@)", Fine, BAD),
];

/// Calls with a transaction_id or a timer key, written like [`NAMES`].
pub const IDS: &[(&str, Expected, Expected)] = &[
    ("queen_push('ids', '1', transaction_id => @)", Fine, Fine),
    ("queen_push('ids', '1', transaction_id => @, delay => '1 hour')", Fine, Fine),
    ("queen_push_batch('ids', '{1}', transaction_ids => ARRAY[@])", Fine, Fine),
    (r#"queen_push_items('[{"queue":"ids","payload":1,"transactionId":#}]')"#, Fine, Open),
    (
        r#"queen_tx_commit('[{"type":"push","queue":"ids","payload":1,"transactionId":#}]')"#,
        Fine,
        Open,
    ),
    ("queen_publish('for s', '1', transaction_id => @)", Fine, Fine),
    ("queen_schedule('ids', @, '1', '1 hour')", Fine, BAD),
    ("queen_schedule('ids', 'key', '1', '1 hour', transaction_id => @)", Fine, Fine),
    (
        r#"queen_tx_commit(timers => '[{"op":"schedule","queue":"ids","timerKey":#,
           "payload":1,"delayMs":9e6}]')"#,
        Fine,
        BAD,
    ),
    ("queen_cancel('ids', @)", Fine, BAD),
    ("queen_ack('LEASE', transaction_ids => ARRAY[@])", FOREIGN, BAD),
    (r#"queen_settle('LEASE', '[{"transactionId":#,"status":"completed"}]')"#, FOREIGN, BAD),
    (
        r#"queen_tx_commit('[{"type":"ack","leaseId":"LEASE","partition":"nowhere",
           "transactionId":#}]')"#,
        Fine,
        Open,
    ),
];

/// Calls with a namespace.
pub const NAMESPACES: &[&str] = &[
    "queen_kv_get(@, 'key')",
    "queen_kv_get_many(@, '{key}')",
    "queen_kv_list(@)",
    "queen_kv_put(@, 'key', '1', forever => true)",
    "queen_kv_put_if_absent(@, 'key', '1', '1 hour')",
    "queen_kv_check(@, 'key', 0)",
    "queen_kv_delete(@, 'key')",
    "queen_kv_incr(@, 'n', forever => true)",
    r#"queen_tx_commit(kv => '[{"op":"put","ns":#,"key":"k","value":1,"forever":true}]')"#,
    r#"queen_tx_commit(kv => '[{"op":"getMany","ns":#,"keys":["k"]}]')"#,
];

/// Calls with a marker's key.
pub const KEYS: &[&str] = &[
    "queen_kv_get('ns', @)",
    "queen_kv_get_many('ns', ARRAY[@])",
    "queen_kv_put('ns', @, '1', '1 hour')",
    "queen_kv_put_if_absent('ns', @, '1', '1 hour')",
    "queen_kv_incr('ns', @, ttl => '1 hour')",
    "queen_kv_check('ns', @, 0)",
    "queen_kv_delete('ns', @)",
    r#"queen_tx_commit(kv => '[{"op":"delete","ns":"ns","key":#}]')"#,
    r#"queen_tx_commit(kv => '[{"op":"getMany","ns":"ns","keys":[#]}]')"#,
];

/// 16 MiB less 64 bytes that don't compress.
const ALMOST_16_MIB: &str =
    "(SELECT to_jsonb(string_agg(md5(i::text), '')) FROM generate_series(1, 524286) i)";

/// The limits of a timestamptz.
const TIMES: &str = "'infinity' | '-infinity' | '4714-11-24 UTC BC' | '294276-12-31 UTC'";

/// All other calls, with SQL for their `@`, separated by ` | `.
pub const VALUES: &[(Expected, &str, &str)] = &[
    // Intervals.
    (
        BAD,
        "queen_configure('c', lease_time => @)",
        "'0' | '-1 s' | '12:00:00.000001' | '178000000 years' | '-178000000 years'",
    ),
    (Fine, "queen_configure('c', lease_time => @)", "NULL | '1 us' | '12 hours'"),
    (INFINITE, "queen_configure('c', lease_time => @)", "'infinity' | '-infinity'"),
    (Refused(&["22007"]), "queen_push('c', '1', delay => @)", "'' | 'soon' | 'NaN' | '1e30 s'"),
    (
        Refused(&["22008", "22015"]),
        "queen_pop('c', wait => @)",
        "'999999999999 years' | '2147483648 days'",
    ),
    (BAD, "queen_configure('c', retry_delay => @)", "'-1 us' | '-1 month'"),
    (BAD, "queen_configure('c', retry_delay_max => @)", "'-1 us' | '-1 day'"),
    (BAD, "queen_configure('c', dedup_window => @)", "'-1 us' | '-1 year'"),
    (BAD, "queen_configure('c', delay => @)", "'-1 us' | '1 us -1 day'"),
    (BAD, "queen_configure('c', retention => @)", "'0' | '-1 us'"),
    (BAD, "queen_configure('c', completed_retention => @)", "'0' | '-1 us'"),
    (
        Open,
        "queen_configure('c', retention => @, dedup_window => @)",
        "'1 us' | '178000000 years' | '1 month -1 us'",
    ),
    (BAD, "queen_push('c', '1', delay => @)", "'-1 us' | '2 years' | '9000000 days'"),
    (Fine, "queen_push('c', '1', delay => @)", "'0' | '1 us' | '360 days' | NULL"),
    (BAD, "queen_pop('c', wait => @)", "'-1 us' | '60.000001 s' | '9000000 days'"),
    (Fine, "queen_pop('s', 'all', wait => @, subscription_mode => 'all')", "'60 s'"),
    (BAD, "queen_pop('c', lease_time => @)", "'0' | '-1 us' | '13 hours' | '1 year'"),
    (BAD, "queen_extend('LEASE', @)", "'0' | '-1 us' | '12:00:01' | '9000000 days'"),
    (Fine, "queen_extend('LEASE', @)", "NULL | '1 us' | '12 hours'"),
    (BAD, "queen_dead_letter_purge('c', older_than => @)", "'0' | '-1 us'"),
    (Open, "queen_dead_letter_purge('c', older_than => @)", "'178000000 years'"),
    (BAD, "queen_schedule('c', 'k', '1', @)", "NULL | '-1 us' | '2 years'"),
    (BAD, "queen_kv_put('ns', 'k', '1', @)", "NULL | '0' | '-1 us' | '-1 month'"),
    (BAD, "queen_kv_put('ns', 'k', '1', @, true)", "'1 s' | '0' | '9000000 days'"),
    (BAD, "queen_kv_put_if_absent('ns', 'k', '1', @)", "NULL | '0' | '-1 us'"),
    (BAD, "queen_kv_incr('ns', 'i', ttl => @)", "NULL | '0' | '-178000000 years'"),
    (Open, "queen_kv_put('ns', 'k', '1', @)", "'178000000 years' | '2147483647 days'"),
    (Open, "queen_kv_incr('ns', 'i', ttl => @)", "'178000000 years' | '1 month -1 us'"),
    // Times.
    (BAD, "queen_schedule('c', 'k', '1', deliver_at => @)", "'infinity' | '2999-1-1'"),
    (Fine, "queen_schedule('c', 'k', '1', deliver_at => @)", "'epoch' | '-infinity'"),
    (Fine, "queen_schedule('c', 'k', '1', deliver_at => @)", "'4714-11-24 UTC BC'"),
    (BAD, "queen_schedule('c', 'k', '1', '1 s', @)", "now() | 'infinity'"),
    (Open, "queen_seek('held', 'reader', to_time => @)", TIMES),
    (BAD, "queen_seek('held', 'reader', @)", "NULL | 'start', now()"),
    (Open, "queen_subscribe('c', 'from ' || md5(@), 'new', @)", TIMES),
    (Open, "queen_pop('held', 'from ' || md5(@), subscription_from => @)", TIMES),
    (BAD, "queen_subscribe('c', 'g1', 'all', @)", "now() | '-infinity'"),
    (BAD, "queen_pop('c', 'g1', subscription_mode => 'all', subscription_from => @)", "now()"),
    (Refused(&["22007", "22008"]), "queen_subscribe('c', 'g1', 'new', @)", "'' | '24:61'"),
    // Words.
    (BAD, "queen_seek('held', 'reader', @)", "'' | 'START' | 'middle' | 'end '"),
    (BAD, "queen_subscribe('c', 'g1', @)", "'' | 'NEW' | 'old' | 'from'"),
    (BAD, "queen_subscribe('c', 'g1', ordering => @)", "'' | 'PARTITION' | 'fifo'"),
    (BAD, "queen_pop('c', 'g1', subscription_mode => @)", "'' | 'All' | 'start'"),
    (BAD, "queen_configure('c', on_exhausted => @)", "'' | 'DROP' | 'dead_letter '"),
    (BAD, "queen_configure('c', ordering => @)", "'' | 'NONE' | 'partition;'"),
    (BAD, "queen_ack('LEASE', status => @)", "'' | 'COMPLETED' | 'done' | 'failed '"),
    (NO_LEASE, "queen_ack(gen_random_uuid(), status => @)", "NULL | 'failed', error => ''"),
    (NO_LEASE, "queen_ack(gen_random_uuid(), error => @)", "E'\\x01' | repeat('x', 1 << 20)"),
    // Numbers.
    (BAD, "queen_configure('c', retry_limit => @)", "-1 | '-2147483648'"),
    (Fine, "queen_configure('c', retry_limit => @)", "0 | 2147483647"),
    (TOO_BIG, "queen_configure('c', retry_limit => @)", "'2147483648'"),
    (
        BAD,
        "queen_configure('c', retry_backoff => @)",
        "'NaN' | 'Infinity' | '-Infinity' | 0 | 0.99 | 100.01 | -1 | 1e308 | 5e-324",
    ),
    (Fine, "queen_configure('c', retry_backoff => @)", "1 | 100 | 1.0000001"),
    (TOO_BIG, "queen_configure('c', retry_backoff => @)", "'1e400'"),
    (BAD, "queen_configure('c', max_deliveries => @)", "0 | -1 | '-2147483648'"),
    (BAD, "queen_configure('c', max_depth => @)", "0 | -1 | '-9223372036854775808'"),
    (Fine, "queen_configure('c', max_depth => @)", "9223372036854775807"),
    (TOO_BIG, "queen_configure('c', max_depth => @)", "'9223372036854775808'"),
    (BAD, "queen_pop('c', batch => @)", "0 | -1 | 10001 | 2147483647 | '-2147483648'"),
    (BAD, "queen_pop('c', partitions => @)", "0 | -1 | 1001 | 2147483647"),
    (Fine, "queen_pop('c', 'most', batch => @)", "1 | 10000 | NULL | 10000, partitions => 1000"),
    (BAD, "queen_sweep(@)", "0 | -1 | 60001 | 2147483647 | '-2147483648'"),
    (Fine, "queen_sweep(@)", "1 | NULL | 60000"),
    (UNDEFINED, "queen_dead_letter_replay(@)", "0 | 9223372036854775807 | '-9223372036854775808'"),
    (BAD, "queen_dead_letter_replay(@)", "NULL"),
    (TOO_BIG, "queen_dead_letter_replay(@)", "'9223372036854775808'"),
    (UNREADABLE, "queen_dead_letter_replay(@)", "'' | '1.5' | '0x10g' | 'NaN'"),
    (BAD, "queen_configure_group('held', 'reader', retry_limit => @)", "-1 | '-2147483648'"),
    (
        BAD,
        "queen_configure_group('held', 'reader', unset => @)",
        "'{retention}' | '{x}' | '{NULL}'",
    ),
    (Fine, "queen_configure_group('held', 'reader', unset => @)", "NULL | '{}' | '{retry_limit}'"),
    (BAD, "queen_dead_letter_replay_all('held', max_messages => @)", "0 | -1 | 100001"),
    (Fine, "queen_dead_letter_replay_all('held', max_messages => @)", "1 | 100000 | NULL"),
    (Fine, "queen_dead_letter_replay_all('held', error_like => @)", "NULL | '' | '%' | '_\\'"),
    (BAD, "queen_kv_list('ns', max_rows => @)", "0 | -1 | 1001 | '-2147483648'"),
    (Fine, "queen_kv_list('ns', max_rows => @)", "1 | 1000 | NULL"),
    (
        Open,
        "queen_kv_put('ns', 'k', '1', '1 s', expect => @)",
        "0 | -1 | '-9223372036854775808' | 9223372036854775807",
    ),
    (Open, "queen_kv_delete('ns', 'none', @)", "NULL | 0 | -1 | 9223372036854775807"),
    (BAD, "queen_kv_check('ns', 'k', @)", "NULL"),
    (Open, "queen_kv_check('ns', 'none', @)", "-1 | '-9223372036854775808'"),
    (UNMET, "queen_kv_check('ns', 'none', @, true)", "1 | 9223372036854775807"),
    (UNMET, "queen_kv_put('ns', 'none', '1', '1 s', expect => @, required => true)", "7"),
    (UNMET, "queen_kv_delete('ns', 'none', required => @)", "true"),
    (UNMET, "queen_kv_incr('ns', 'none', 2, '1 s', max => @, required => true)", "1 | -1"),
    (BAD, "queen_kv_incr('ns', 'i', @, '1 hour')", "'NaN' | 'Infinity' | '-Infinity'"),
    (BAD, "queen_kv_incr('ns', 'i', 1, '1 s', min => @)", "'NaN'"),
    (Open, "queen_kv_incr('ns', 'i', 1, '1 s', max => @)", "'NaN' | '-Infinity'"),
    (
        Open,
        "queen_kv_incr('ns', 'i', @, '1 hour')",
        "NULL | -0.0 | '9e131071' | '9e131070' | '9e131070' | 1 | '1e-16383'",
    ),
    // Uuids.
    (BAD, "queen_ack(@)", "NULL | NULL, '{1}'"),
    (BAD, "queen_settle(@)", "NULL, '[]' | 'LEASE', NULL | NULL, NULL | 'LEASE', '[]'"),
    (BAD, "queen_extend(@)", "NULL | NULL, '1 s'"),
    (
        NO_LEASE,
        "queen_ack(@)",
        "'00000000-0000-0000-0000-000000000000' | 'ffffffff-ffff-ffff-ffff-ffffffffffff' \
         | 'c232ab00-9414-11ec-b3c8-9f6bdeced846' | '{6BA7B8109DAD11D180B400C04FD430C8}'",
    ),
    (NO_LEASE, "queen_extend(@)", "gen_random_uuid() | gen_random_uuid(), '1 s'"),
    (
        NO_LEASE,
        r#"queen_settle(gen_random_uuid(), '[{"messageId":1,"status":@}]')"#,
        r#""completed" | "failed" | "retry" | "dead_letter""#,
    ),
    (UNREADABLE, "queen_ack(@)", "'' | '1' | 'LEASE0' | 'g0000000-0000-0000-0000-000000000000'"),
    (BAD, "queen_tx_commit(required_leases => @)", "NULL | '{}' | '{LEASE}'"),
    (
        BAD,
        r#"queen_tx_commit('[{"type":"push","queue":"c","payload":1}]', required_leases => @)"#,
        "'{NULL}' | '{{LEASE},{LEASE}}' | ARRAY[NULL, gen_random_uuid()]",
    ),
    (
        Fine,
        r#"queen_tx_commit('[{"type":"push","queue":"c","payload":1}]', required_leases => @)"#,
        "NULL | '{}' | '{LEASE}' | '{LEASE,LEASE}' | ARRAY[gen_random_uuid()]",
    ),
    // Arrays.
    (FOREIGN, "queen_ack('LEASE', @)", "'{0}' | '{-1}' | '{9223372036854775807}'"),
    (FOREIGN, "queen_ack('LEASE', @)", "'{-9223372036854775808}' | '[5:5]={1}'"),
    (BAD, "queen_ack('LEASE', @)", "'{}' | '{NULL}' | '{1,NULL}' | '{{1},{2}}'"),
    (TOO_BIG, "queen_ack('LEASE', @)", "'{9223372036854775808}'"),
    (UNREADABLE, "queen_ack('LEASE', @)", "'{' | '1' | '{x}' | '{1.0}' | '{{1},{2,3}}'"),
    (
        BAD,
        "queen_ack('LEASE', transaction_ids => @)",
        "'{}' | '{NULL}' | '{{a}}' | '{a}', message_ids => '{1}' | '{a,NULL}'",
    ),
    (BAD, "queen_push_batch('c', @)", "'{NULL}' | '{1,NULL}' | '{{1},{2}}'"),
    (Fine, "queen_push_batch('c', @)", r#"NULL | '{}' | '[-1:0]={1,2}' | '{"null"}'"#),
    (
        BAD,
        "queen_push_batch('c', '{1,2}', transaction_ids => @)",
        r#"'{}' | '{a}' | '{a,b,c}' | '{{a,b}}' | '{"",a}'"#,
    ),
    (BAD, "queen_push_batch('c', '{1,2}', headers => @)", "'{}' | '{1}' | '{{1,2}}'"),
    (Fine, "queen_push_batch('c', '{1,2}', transaction_ids => @)", "'{a,a}' | '{NULL,NULL}'"),
    (BAD, "queen_kv_get_many('ns', @)", r#"NULL | '{NULL}' | '{{a},{b}}' | '{a,""}'"#),
    (Fine, "queen_kv_get_many('ns', @)", "'{}' | '{a,a}' | '[7:8]={a,b}'"),
    (
        BAD,
        "queen_configure('c', unset => @)",
        r#"'{bogus}' | '{queue}' | '{NULL}' | '{""}' | '{{delay,delay}}' | '{Delay}'"#,
    ),
    (Fine, "queen_configure('c', unset => @)", "'{}' | NULL | '{delay,max_depth}'"),
    (Open, "queen_configure('c', unset => @)", "'{delay,delay}' | '{delay}', delay => '1 s'"),
    // Texts.
    (Refused(&["54000"]), "queen_push(@, '1')", "chr(0) | 'a' || chr(0)"),
    (Fine, "queen_kv_list('ns', @)", "'%' | '_' | E'\\\\' | NULL | U&'\\+10FFFF'"),
    (Fine, "queen_kv_list('ns', after => @)", "'%' | E'\\x7f' | U&'\\+10FFFF' | NULL"),
    (Open, "queen_kv_list('ns', @)", "repeat('x', 513) | 'a', '' | 'b', 'a' | 'a', 'b'"),
    // A full queue stays full.
    (Refused(&["QN020"]), "queen_push('full', @)", "'1' | 'null', transaction_id => 'x'"),
    (Refused(&["QN020"]), "queen_push_batch('full', @)", "'{1}'"),
    (Refused(&["QN020"]), "queen_push_items(@)", r#"'[{"queue":"full","payload":1}]'"#),
    // JSON.
    (
        BAD,
        "queen_push('json', @)",
        "NULL | to_jsonb(repeat('x', 16 << 20)) | to_jsonb(repeat('x', 17 << 20))",
    ),
    (BAD, "queen_push_batch('json', ARRAY[@])", "to_jsonb(repeat('x', 17 << 20))"),
    (BAD, "queen_schedule('json', 'k', @, '1 s')", "NULL | to_jsonb(repeat('x', 17 << 20))"),
    (Fine, "queen_push('big', @)", "to_jsonb(repeat('x', 15 << 20))"),
    (Fine, "queen_push('big', @)", ALMOST_16_MIB),
    (BAD, "queen_kv_put('ns', 'k', @, '1 s')", "NULL | to_jsonb(repeat('x', 1 << 16))"),
    (BAD, "queen_kv_put_if_absent('ns', 'k', @, '1 s')", "NULL | to_jsonb(repeat('x', 1 << 16))"),
    (Fine, "queen_kv_put('ns', 'k', @, '1 s')", "to_jsonb(repeat('x', 65000))"),
    (Fine, "queen_push_items(@)", "'[]'"),
    (Refused(&["22P05"]), "queen_push('json', @)", r#"'"\u0000"' | '{"\u0000":1}'"#),
    (Refused(&["22P05"]), "queen_push('json', '1', headers => @)", r#"'["\u0000"]'"#),
    (Refused(&["22P05"]), "queen_push_items(@)", r#"'[{"queue":"j","payload":"\u0000"}]'"#),
    (Refused(&["22P05"]), "queen_settle('LEASE', @)", r#"'[{"transactionId":"\u0000"}]'"#),
    (Refused(&["22P05"]), "queen_tx_commit(@)", r#"'[{"type":"\u0000"}]'"#),
    (Refused(&["22P05"]), "queen_schedule('json', 'k', @, '1 s')", r#"'"\u0000"'"#),
    (Refused(&["22P05"]), "queen_kv_put('ns', 'k', @, '1 s')", r#"'"\u0000"'"#),
    (
        UNREADABLE,
        "queen_push('json', @)",
        r#"'' | '{' | 'NaN' | '[1,]' | '{1:2}' | '"\ud800"' | '1 2' | E'\x01'"#,
    ),
    (Refused(&["54001"]), "queen_push('json', @)", "repeat('[', 1000000)::jsonb"),
    (
        Refused(&["54001"]),
        "queen_kv_put('ns', 'k', @)",
        r#"repeat('{"a":', 1000000)::jsonb, '1 s'"#,
    ),
    (Fine, "@()", "queen_metrics | queen_prometheus"),
];
