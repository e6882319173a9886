//! Schedules, time zones and keys of messages that recur, and topics, with what is expected of
//! each.

use super::calls::{BAD, Expected, Fine};

/// Calls with these values in place of their `@`, separated by ` | `.
pub const SCHEDULES: &[(Expected, &str, &str)] = &[
    (Fine, "queen_every('c', 'k', @, '1')", "'*/7 1-5,9 * feb-APR 0,7' | '@weekly' | ' @Daily '"),
    (Fine, "queen_every('c', 'k', @, '1')", "'1 second' | 'P1M' | '100 years' | '1:00' | '1.5 h'"),
    (
        BAD,
        "queen_every('c', 'k', @, '1')",
        "NULL | '' | '0' | '-1 s' | '999 ms' | '178000000 years'",
    ),
    (BAD, "queen_every('c', 'k', @, '1')", "'infinity' | 'often' | '@' | '@never' | '* * * *'"),
    (
        BAD,
        "queen_every('c', 'k', @, '1')",
        "'60 * * * *' | '* * * * * *' | '0 0 30 2 *' | '1, * * * *'",
    ),
    (
        BAD,
        "queen_every('c', 'k', @, '1')",
        "'* * L * *' | '*/0 * * * *' | '2-1 * * * *' | 'é * * * *'",
    ),
    (
        BAD,
        "queen_every('c', 'k', @, '1')",
        "repeat('1,', 600) || '1 * * * *' | E'\\x01' | repeat('*', 5)",
    ),
    (
        Fine,
        "queen_every('c', 'k', '1 day', '1', time_zone => @)",
        "NULL | 'europe/paris' | 'EST5EDT'",
    ),
    (
        Fine,
        "queen_every('c', 'k', '1 day', '1', time_zone => @)",
        "'<x>167' | '<+01>-1<+02>-167,M3.1.0,M3.2.0'",
    ),
    (
        BAD,
        "queen_every('c', 'k', '1 day', '1', time_zone => @)",
        "'' | 'CEST' | 'x' | '../UTC' | '-7'",
    ),
    (BAD, "queen_every('c', @, '1 day', '1')", "NULL | '' | repeat('x', 991) | E'\\x01'"),
    (Fine, "queen_every('c', @, '1 day', '1')", "repeat('x', 990)"),
    (BAD, "queen_every('json', 'k', '1 day', @)", "NULL | to_jsonb(repeat('x', 17 << 20))"),
    (Fine, "queen_bind(@, 's')", "'.' | '..#' | '#.*.#.*.#' | repeat('#.', 127) || '#'"),
    (Fine, "queen_publish(@, '1')", "'.' | '#' | '*' | repeat('.', 255) | repeat('a.', 127)"),
    (BAD, "queen_publish('for s', @)", "NULL | to_jsonb(repeat('x', 17 << 20))"),
];
