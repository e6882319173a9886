//! Lists of queues, and transaction_ids whose status is asked for, with what is expected of each.

use super::calls::{BAD, Expected, Fine};

/// Calls with these values in place of their `@`, separated by ` | `.
pub const SEVERAL_QUEUES: &[(Expected, &str, &str)] = &[
    (Fine, "queen_pop_any(@, 'any')", "'{s}' | '{nowhere,s}' | ARRAY['s', 'NULL']"),
    (Fine, "queen_pop_any(@, 'any')", "ARRAY['{s,t}', 's,t'] | ARRAY['s', '%']"),
    (Fine, "queen_pop_any(@, 'any')", "ARRAY(SELECT 'q' || generate_series(1, 32))"),
    (BAD, "queen_pop_any(@, 'any')", "NULL | '{}' | '{NULL}' | '{s,NULL}' | '{s,s}'"),
    (BAD, "queen_pop_any(@, 'any')", "'{{s},{t}}' | ARRAY['s', ''] | ARRAY[E's\\x01']"),
    (BAD, "queen_pop_any(@, 'any')", "ARRAY['s', repeat('x', 256)]"),
    (BAD, "queen_pop_any(@, 'any')", "ARRAY(SELECT 'q' || generate_series(1, 33))"),
    (BAD, "queen_pop_any(@, 'any')", "array_fill('s'::text, ARRAY[100000])"),
    (BAD, "queen_pop_any('{s}', 'any', batch => @)", "0 | -1 | 10001"),
    (BAD, "queen_pop_any('{s}', 'any', partitions => @)", "0 | 1001"),
    (BAD, "queen_pop_any('{s}', 'any', wait => @)", "'-1 us' | '61 s'"),
    (BAD, "queen_pop_any('{s}', 'any', lease_time => @)", "'0' | '13 hours'"),
    (BAD, "queen_pop_any('{s}', @)", "'' | E'\\x01' | repeat('x', 256)"),
    (Fine, "queen_message_status('s', @)", "'msg-28' | 'msg-' | 'msg-18446744073709551615'"),
    (Fine, "queen_message_status('s', @)", "'msg--1' | repeat('9', 1024) | '%'"),
    (BAD, "queen_message_status('s', @)", "NULL | '' | repeat('x', 1025) | E'\\x01'"),
    (BAD, "queen_message_status(@, 'x')", "NULL | '' | repeat('x', 256)"),
    (Fine, "queen_message_status('s', 'x', @)", "NULL | 'nowhere'"),
    (BAD, "queen_message_status('s', 'x', @)", "'' | repeat('x', 256) | E'\\x01'"),
];
