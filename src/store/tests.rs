//! The tables as the code knows them are those that the extension makes.

use std::collections::BTreeSet;

use super::locks::{self, CLASSES, Lock};
use super::schema::TABLES;
use super::{
    admission, claim, cursor, discovery, group, identity, marker, progress, queue, receipt, replay,
    segment, tally, timer, waterline,
};
use crate::pg::table::Index;

/// All indexes that the code reads by name.
static INDEXES: [&Index; 23] = [
    &admission::REMEMBERED,
    &claim::BY_ID,
    &claim::BY_MESSAGE,
    &claim::DUE,
    &cursor::BY_ID,
    &cursor::BY_PARTITION,
    &discovery::STATES,
    &group::BY_ID,
    &group::BY_NAME,
    &identity::OWN_NUMBER,
    &marker::EXPIRY,
    &progress::ANNOUNCED,
    &progress::DUE,
    &progress::REVISIONS,
    &queue::BY_NAME,
    &receipt::BLOCKS,
    &replay::BY_SEGMENT,
    &segment::IN_ORDER,
    &segment::NEWS,
    &tally::NEWEST,
    &timer::BY_MOMENT,
    &timer::BY_TRANSACTION,
    &waterline::BY_XID,
];

/// Indexes that only statements use: the planner chooses them.
const OF_STATEMENTS: [&str; 13] = [
    "binding_once",
    "dead_letter_of_group",
    "dead_letter_of_message",
    "dead_letter_pkey",
    "grants_once",
    "lease_set_pkey",
    "marker_pkey",
    "queue_pkey",
    "receipt_of_group",
    "replay_of_message",
    "sweep_pkey",
    "timer_once",
    "timer_pkey",
];

/// A lock of each class.
fn one_of_each() -> [Lock; 6] {
    [
        locks::registration("queue", "group"),
        locks::tally(1),
        locks::first_reads(1),
        locks::first_reads_of(1),
        locks::discovery(1),
        locks::claims(1, "partition"),
    ]
}

fn text(name: &std::ffi::CStr) -> String {
    name.to_string_lossy().into_owned()
}

#[pgrx::pg_schema]
mod tests {
    use pgrx::prelude::*;

    use super::*;

    /// The rows of a statement with one column of text.
    fn rows(sql: &str) -> Vec<String> {
        Spi::connect(|client| {
            let rows = client.select(sql, None, &[]).expect("a statement");
            rows.map(|row| row.get::<String>(1).expect("text").expect("no NULL")).collect()
        })
    }

    fn type_name(oid: pg_sys::Oid) -> String {
        rows(&format!("SELECT format_type({}, NULL)", oid.to_u32())).remove(0)
    }

    #[pg_test]
    fn the_code_knows_each_column_of_each_table_by_its_name_and_type() {
        let catalogue: BTreeSet<String> = rows(
            "SELECT format('%s.%s %s', c.relname, a.attname, format_type(a.atttypid, NULL))
             FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
             WHERE c.relnamespace = 'queen_mq'::regnamespace AND c.relkind IN ('r', 'p')
               AND a.attnum > 0 AND NOT a.attisdropped",
        )
        .into_iter()
        .collect();
        let known: BTreeSet<String> = TABLES
            .iter()
            .flat_map(|table| table.columns.iter().map(move |column| (table, column)))
            .map(|(table, (name, oid))| {
                format!("{}.{} {}", text(table.name), text(name), type_name(*oid))
            })
            .collect();
        assert_eq!(known.difference(&catalogue).collect::<Vec<_>>(), [""; 0], "not there");
        assert_eq!(catalogue.difference(&known).collect::<Vec<_>>(), [""; 0], "not known");
        assert!(known.len() > 90, "{}", known.len());
        // A name is known once.
        let columns: usize = TABLES.iter().map(|table| table.columns.len()).sum();
        assert_eq!(known.len(), columns);
    }

    #[pg_test]
    fn the_code_knows_each_index_by_its_columns_in_their_order() {
        let catalogue: BTreeSet<String> = rows(
            "SELECT format('%s ON %s (%s)', i.relname, t.relname, string_agg(
                        coalesce(a.attname, '?')
                        || CASE WHEN x.indoption[key.place - 1] = 0 THEN '' ELSE ' DESC' END,
                        ', ' ORDER BY key.place))
             FROM pg_index x
             JOIN pg_class i ON i.oid = x.indexrelid
             JOIN pg_class t ON t.oid = x.indrelid
             CROSS JOIN unnest(x.indkey::int2[]) WITH ORDINALITY AS key (number, place)
             LEFT JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum = key.number
             WHERE t.relnamespace = 'queen_mq'::regnamespace AND key.place <= x.indnkeyatts
             GROUP BY i.oid, i.relname, t.relname",
        )
        .into_iter()
        .collect();
        let described = |index: &&Index| {
            let columns: Vec<_> = index.columns.iter().map(|column| text(column.name())).collect();
            let (name, table) = (text(index.name), text(index.table.name));
            format!("{name} ON {table} ({})", columns.join(", "))
        };
        let known: BTreeSet<String> = INDEXES.iter().map(described).collect();
        assert_eq!(known.difference(&catalogue).collect::<Vec<_>>(), [""; 0], "not there");
        // An index that the code reads and that is not in the list above is found out here.
        let rest: Vec<_> =
            catalogue.difference(&known).filter_map(|index| index.split(' ').next()).collect();
        assert_eq!(rest, OF_STATEMENTS);
    }

    #[pg_test]
    fn each_column_of_an_index_is_one_of_its_table() {
        for index in INDEXES {
            for column in index.columns {
                let of_table = index.table.columns.get(column.place()).map(|(name, _)| *name);
                assert_eq!(of_table, Some(column.name()), "{:?}", index.name);
            }
        }
    }

    #[pg_test]
    fn the_class_of_each_lock_is_a_table() {
        let tables: BTreeSet<_> = TABLES.iter().map(|table| table.name).collect();
        for class in CLASSES {
            assert!(tables.contains(class), "{class:?}");
        }
        let held = "SELECT classid::regclass::text FROM pg_locks
            WHERE pid = pg_backend_pid() AND locktype = 'object' AND mode = 'ExclusiveLock'
            ORDER BY 1";
        let mut expected: Vec<String> =
            CLASSES.iter().map(|class| format!("queen_mq.{}", text(class))).collect();
        expected.sort();
        assert_eq!(rows(held), [""; 0]);
        for lock in one_of_each() {
            assert!(lock.try_whole());
        }
        assert_eq!(rows(held), expected);
    }
}
