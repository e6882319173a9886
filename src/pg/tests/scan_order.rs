//! Which rows a scan visits, and in which order: compared with what Rust makes of the rows.

use std::ops::ControlFlow;

use crate::pg::clock::{At, Moment};
use crate::pg::columns::{Columns, arg};
use crate::pg::key::{Key, Value};
use crate::pg::scan::{ScanEnd, Tuple};
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::table::{Column, Index, Table, table};

table! {
    PLACES = c"place";
    PREFIX: c"prefix" INT8OID,
    MOMENT: c"moment" TIMESTAMPTZOID,
    NAME: c"name" TEXTOID,
    CODE: c"code" UUIDOID,
}
static BY_ALL: Index =
    Index { table: &PLACES, name: c"place_by_all", columns: &[PREFIX, MOMENT, NAME, CODE] };
static BY_PREFIX: Index = Index { table: &PLACES, name: c"place_by_prefix", columns: &[PREFIX] };
static BY_MOMENT: Index = Index { table: &PLACES, name: c"place_by_moment", columns: &[MOMENT] };
static BY_NAME: Index = Index { table: &PLACES, name: c"place_by_name", columns: &[NAME] };
static BY_CODE: Index = Index { table: &PLACES, name: c"place_by_code", columns: &[CODE] };
static TABLES: &[&Table] = &[&PLACES];
const DDL: &str = "CREATE TABLE place
        (prefix bigint, moment timestamptz, name text COLLATE \"C\", code uuid);
    CREATE INDEX place_by_all ON place (prefix, moment, name, code);
    CREATE INDEX place_by_prefix ON place (prefix);
    CREATE INDEX place_by_moment ON place (moment);
    CREATE INDEX place_by_name ON place (name);
    CREATE INDEX place_by_code ON place (code)";

type Place = (i64, Moment, &'static str, [u8; 16]);

/// A linguistic collation puts these names into another order.
const NAMES: [&str; 5] = ["", "B", "a", "b", "ä"];
const CODES: [[u8; 16]; 3] = [[0; 16], [127; 16], [128; 16]];

/// Two values of each column for each one between them that no row has, and with gaps.
fn places() -> Vec<Place> {
    let mut all = Vec::new();
    for prefix in [-1, 0, i64::MAX] {
        for moment in [-10, 10, 20] {
            for name in [NAMES[1], NAMES[2], NAMES[4]] {
                all.extend(CODES[1..].iter().map(|code| (prefix, moment, name, *code)));
            }
        }
    }
    // What is left out differs from prefix to prefix.
    let mut number = 0;
    all.retain(|_| {
        number += 1;
        number % 5 != 0
    });
    all.sort();
    all
}

/// Inserts the places, out of order.
fn fill() {
    let places = places();
    let inserting = PLACES.inserting();
    for step in [1, 0] {
        for (prefix, moment, name, code) in places.iter().skip(step).step_by(2) {
            inserting.row(&[
                (PREFIX, arg(*prefix)),
                (MOMENT, arg(At(*moment))),
                (NAME, arg(*name)),
                (CODE, arg(pgrx::Uuid::from_bytes(*code))),
            ]);
        }
    }
    inserting.end();
}

fn read(row: &Tuple) -> Place {
    let name: String = row.need(NAME);
    let name = NAMES.into_iter().find(|known| *known == name).expect("one of the names");
    let code = *row.need::<pgrx::Uuid>(CODE).as_bytes();
    (row.need(PREFIX), row.need::<At>(MOMENT).0, name, code)
}

/// All rows that a scan visits.
fn scanned(index: &Index, keys: &[(Column, Key<'_>)], from: ScanEnd) -> Vec<Place> {
    let rows = ActiveSnapshot::new_snapshot(|under| {
        let mut rows = Vec::new();
        let broken_off = index.scan::<()>(keys, from, under, |row| {
            rows.push(read(row));
            ControlFlow::Continue(())
        });
        assert!(broken_off.is_none());
        Ok(rows)
    });
    rows.expect("rows")
}

/// The rows from one end up to one of this name, for which `scan` breaks off; and what it returns.
fn up_to(name: &str, from: ScanEnd, under: &ActiveSnapshot) -> (Vec<Place>, Option<Place>) {
    let mut rows = Vec::new();
    let stopped = BY_ALL.scan(&[], from, under, |row| {
        rows.push(read(row));
        match read(row).2 == name {
            true => ControlFlow::Break(read(row)),
            false => ControlFlow::Continue(()),
        }
    });
    (rows, stopped)
}

#[pgrx::pg_schema]
mod tests {
    use pgrx::prelude::*;

    use super::super::backend::refused;
    use super::super::lab::set_up;
    use super::*;

    #[pg_test]
    fn a_scan_goes_in_order_from_either_end() {
        set_up("order_ends", TABLES, DDL);
        fill();
        let mut expected = places();
        assert_eq!(expected.len(), 44);
        assert_eq!(scanned(&BY_ALL, &[], ScanEnd::Start), expected);
        let (first, last) = (expected[0], expected[43]);
        expected.reverse();
        assert_eq!(scanned(&BY_ALL, &[], ScanEnd::End), expected);
        let ends = ActiveSnapshot::new_snapshot(|under| {
            let end = |from| BY_ALL.end(&[], from, under, read);
            Ok((end(ScanEnd::Start), end(ScanEnd::End)))
        });
        assert_eq!(ends.ok(), Some((Some(first), Some(last))));
    }

    #[pg_test]
    fn a_scan_ends_where_the_visitor_breaks_off() {
        set_up("order_break", TABLES, DDL);
        fill();
        let visits = ActiveSnapshot::new_snapshot(|under| {
            for from in [ScanEnd::Start, ScanEnd::End] {
                let mut expected = places();
                if from == ScanEnd::End {
                    expected.reverse();
                }
                for name in ["B", "a", "ä"] {
                    let length =
                        expected.iter().position(|place| place.2 == name).expect("one") + 1;
                    let (rows, stopped) = up_to(name, from, under);
                    assert_eq!(rows, expected[..length]);
                    assert_eq!(stopped, Some(expected[length - 1]));
                }
                assert_eq!(up_to("none", from, under), (expected, None));
            }
            Ok(())
        });
        assert!(visits.is_ok());
    }

    #[pg_test]
    fn each_kind_of_key_compares_as_the_type_does() {
        set_up("order_keys", TABLES, DDL);
        fill();
        let holds = |index: &Index, column, key: Key<'_>, test: &dyn Fn(&Place) -> bool| {
            let mut expected: Vec<Place> =
                places().into_iter().filter(|place| test(place)).collect();
            let mut found = scanned(index, &[(column, key)], ScanEnd::Start);
            expected.sort();
            found.sort();
            assert_eq!(found, expected);
        };
        for number in [i64::MIN, -2, -1, 0, 1, i64::MAX] {
            let value = Value::Int(number);
            holds(&BY_PREFIX, PREFIX, Key::Is(value), &|place| place.0 == number);
            holds(&BY_PREFIX, PREFIX, Key::Above(value), &|place| place.0 > number);
            holds(&BY_PREFIX, PREFIX, Key::UpTo(value), &|place| place.0 <= number);
        }
        for moment in [-11, -10, 0, 10, 20, 21] {
            let value = Value::Time(moment);
            holds(&BY_MOMENT, MOMENT, Key::Is(value), &|place| place.1 == moment);
            holds(&BY_MOMENT, MOMENT, Key::Above(value), &|place| place.1 > moment);
            holds(&BY_MOMENT, MOMENT, Key::UpTo(value), &|place| place.1 <= moment);
        }
        for name in NAMES {
            let value = Value::Text(name);
            holds(&BY_NAME, NAME, Key::Is(value), &|place| place.2 == name);
            holds(&BY_NAME, NAME, Key::Above(value), &|place| place.2 > name);
            holds(&BY_NAME, NAME, Key::UpTo(value), &|place| place.2 <= name);
        }
        for code in CODES {
            let value = Value::Uuid(&code);
            holds(&BY_CODE, CODE, Key::Is(value), &|place| place.3 == code);
            holds(&BY_CODE, CODE, Key::Above(value), &|place| place.3 > code);
            holds(&BY_CODE, CODE, Key::UpTo(value), &|place| place.3 <= code);
        }
    }

    #[pg_test]
    fn the_ends_of_a_prefix_are_its_first_and_last_row() {
        set_up("order_prefix", TABLES, DDL);
        fill();
        let checked = ActiveSnapshot::new_snapshot(|under| {
            for prefix in [-1, 0, 5] {
                for moment in [-10, 0, 20] {
                    let key = [Value::Int(prefix), Value::Time(moment)];
                    let has = |place: &&Place| (place.0, place.1) == (prefix, moment);
                    let places = places();
                    let expected =
                        (places.iter().find(has).copied(), places.iter().rev().find(has).copied());
                    let end = |from| BY_ALL.end(&key, from, under, read);
                    assert_eq!((end(ScanEnd::Start), end(ScanEnd::End)), expected);
                }
            }
            Ok(())
        });
        assert!(checked.is_ok());
    }

    /// After each position of three columns, whether there is a row at it or not.
    #[pg_test]
    fn rows_after_a_position_come_in_order_up_to_the_limit_and_the_bound() {
        set_up("order_after", TABLES, DDL);
        fill();
        let places = places();
        let checked = ActiveSnapshot::new_snapshot(|under| {
            for moment in [-20, -10, 0, 10, 20, 30] {
                for name in NAMES {
                    for code in CODES {
                        for bound in [None, Some(-10), Some(5), Some(10), Some(30)] {
                            let is_wanted = |place: &&Place| {
                                place.0 == 0
                                    && (place.1, place.2, place.3) > (moment, name, code)
                                    && bound.is_none_or(|bound| place.1 <= bound)
                            };
                            let wanted: Vec<_> = places.iter().filter(is_wanted).copied().collect();
                            let after =
                                [Value::Time(moment), Value::Text(name), Value::Uuid(&code)];
                            let bound = bound.map(Value::Time);
                            for limit in [0, 1, 2, 7, 100] {
                                let prefix = [Value::Int(0)];
                                let found =
                                    BY_ALL.after(&prefix, &after, bound, limit, under, read);
                                assert_eq!(found, wanted[..limit.min(wanted.len())]);
                            }
                        }
                    }
                }
            }
            Ok(())
        });
        assert!(checked.is_ok());
    }

    #[pg_test]
    fn rows_after_a_position_need_no_prefix() {
        set_up("order_no_prefix", TABLES, DDL);
        fill();
        let checked = ActiveSnapshot::new_snapshot(|under| {
            for (prefix, moment, ..) in places() {
                let after = [Value::Int(prefix), Value::Time(moment)];
                let found = BY_ALL.after(&[], &after, None, 1000, under, read);
                let mut expected = places();
                expected.retain(|place| (place.0, place.1) > (prefix, moment));
                assert_eq!(found, expected);
            }
            Ok(())
        });
        assert!(checked.is_ok());
    }

    #[pg_test]
    fn a_key_on_a_column_that_the_index_lacks_is_refused() {
        set_up("order_lacks", TABLES, DDL);
        let scan =
            || drop(scanned(&BY_NAME, &[(CODE, Key::Is(Value::Uuid(&[0; 16])))], ScanEnd::End));
        let refusal = refused(scan).expect("an error");
        assert_eq!(refusal.code, PgSqlErrorCode::ERRCODE_INTERNAL_ERROR);
        assert!(refusal.message.starts_with("index \"place_by_name\" is not of"), "{refusal:?}");
    }
}
