//! What a session remembers of the extension's relations and of their owner, and how it hears of a
//! change.

use crate::pg::table::{Table, table};

table! {
    ITEMS = c"item";
    ID: c"id" INT8OID,
}
static OTHERS: Table = Table { name: c"other", columns: ITEMS.columns };
static TABLES: &[&Table] = &[&ITEMS, &OTHERS];
const DDL: &str = "CREATE TABLE item (id bigint); CREATE TABLE other (id bigint);
    CREATE SEQUENCE number";

#[pgrx::pg_schema]
mod tests {
    use pgrx::pg_sys;
    use pgrx::prelude::*;

    use super::super::backend::{RaisedError, refused, role};
    use super::super::lab::{enter, run, set_up, value};
    use super::super::session::{OtherSession, wait_until};
    use super::*;
    use crate::pg::catalogue::{full_name, is_ours, oid_of, owner};
    use crate::pg::changes;
    use crate::pg::columns::arg;
    use crate::pg::sequence::draw;
    use crate::pg::subtransaction::undone;

    fn oid(name: &str) -> pg_sys::Oid {
        Spi::get_one(&format!("SELECT '{name}'::regclass::oid"))
            .expect("a look-up")
            .expect("an oid")
    }

    fn role_oid(name: &str) -> pg_sys::Oid {
        Spi::get_one(&format!("SELECT '{name}'::regrole::oid")).expect("a look-up").expect("an oid")
    }

    /// The owner, asked for in a subtransaction, which gives the lock on the table back.
    fn owner_at_this_moment() -> pg_sys::Oid {
        undone(|| Ok::<_, ()>(owner())).expect("an owner")
    }

    #[pg_test]
    fn a_relation_is_found_by_its_name_in_the_schema_of_the_extension() {
        set_up("catalogue_find", TABLES, DDL);
        for name in [c"item", c"other", c"number"] {
            assert_eq!(oid_of(name), oid(name.to_str().expect("a name")));
            assert!(is_ours(oid_of(name)));
        }
        assert_eq!(full_name(c"item"), "catalogue_find.item");
        run("CREATE TEMPORARY TABLE item ()");
        assert!(!is_ours(oid("pg_temp.item")));
        assert!(!is_ours(oid("pg_catalog.pg_class")));
        assert!(!is_ours(pg_sys::InvalidOid));
        assert_eq!(oid_of(c"item"), oid("catalogue_find.item"));
    }

    #[pg_test]
    fn a_relation_that_was_made_anew_or_renamed_is_found_again() {
        let mut other = set_up("catalogue_anew", TABLES, DDL);
        let first = oid_of(c"item");
        other.run("DROP TABLE item; CREATE TABLE item (id bigint)");
        changes::hear_all();
        let second = oid_of(c"item");
        assert_ne!(first, second);
        assert_eq!(second, oid("item"));
        other.run(
            "BEGIN; ALTER TABLE item RENAME TO former; ALTER TABLE other RENAME TO item; COMMIT",
        );
        changes::hear_all();
        assert_eq!(oid_of(c"item"), oid("item"));
        assert_eq!(oid("former"), second);
        run("DROP TABLE former; ALTER TABLE item SET SCHEMA public; CREATE TABLE item (id bigint)");
        assert_eq!(oid_of(c"item"), oid("catalogue_anew.item"));
        run("DROP TABLE public.item");
    }

    #[pg_test]
    fn a_relation_that_is_missing_is_an_error_and_so_is_an_extension_that_was_dropped() {
        let mut other = set_up("catalogue_missing", TABLES, DDL);
        oid_of(c"item");
        let refuses = |name, code, expected: &str| {
            changes::hear_all();
            let RaisedError { code: found, message, detail, .. } =
                refused(|| assert!(oid_of(name) == pg_sys::InvalidOid)).expect("an error");
            assert_eq!((found, format!("{message}. {detail}")), (code, expected.to_owned()));
        };
        other.run("DROP TABLE other");
        refuses(
            c"other",
            PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
            "relation catalogue_missing.other is not as queen_mq has made it. There is no such \
             relation.",
        );
        for gone in ["DROP TABLE item", "DROP SCHEMA catalogue_missing CASCADE"] {
            other.run(gone);
            refuses(
                c"item",
                PgSqlErrorCode::ERRCODE_UNDEFINED_OBJECT,
                "the extension queen_mq has been dropped. Its tables went away while the call was \
                 running.",
            );
        }
        other.run(
            "CREATE SCHEMA catalogue_missing; CREATE TABLE catalogue_missing.item (id bigint)",
        );
        changes::hear_all();
        assert_eq!(oid_of(c"item"), oid("catalogue_missing.item"));
    }

    #[pg_test]
    fn a_change_of_the_owner_is_heard_of() {
        let mut other = set_up("catalogue_owner", TABLES, DDL);
        other.run("CREATE ROLE catalogue_owner");
        assert_eq!(owner_at_this_moment(), role_oid(&value("SELECT current_user")));
        other.run(
            "ALTER TABLE item OWNER TO catalogue_owner; ALTER TABLE other OWNER TO catalogue_owner",
        );
        assert_eq!(owner_at_this_moment(), role_oid("catalogue_owner"));
        let inner = role("catalogue_inner");
        run(
            "ALTER TABLE item OWNER TO catalogue_inner; ALTER TABLE other OWNER TO catalogue_inner",
        );
        assert_eq!(owner(), inner);
    }

    #[pg_test]
    fn a_change_of_the_owner_waits_for_the_transactions_that_go_by_it() {
        let mut other = set_up("catalogue_owner_waits", TABLES, DDL);
        other.run("CREATE ROLE catalogue_waits");
        let before = owner();
        other.send("ALTER TABLE item OWNER TO catalogue_waits");
        other.wait_until_blocked();
        assert_eq!(owner(), before);
    }

    #[pg_test]
    fn the_owner_waits_for_a_change_of_it() {
        let mut other = set_up("catalogue_owner_waited", TABLES, DDL);
        other.run("CREATE ROLE catalogue_waited");
        owner_at_this_moment();
        other.run("BEGIN; ALTER TABLE item OWNER TO catalogue_waited");
        other.run("ALTER TABLE other OWNER TO catalogue_waited");
        other.send_when_this_one_waits("COMMIT");
        let after = owner();
        other.answer().expect("it has seen this session wait");
        assert_eq!(after, role_oid("catalogue_waited"));
    }

    #[pg_test]
    fn a_first_table_that_is_made_anew_during_the_wait_is_the_one_whose_owner_counts() {
        let mut other = set_up("catalogue_owner_anew", TABLES, DDL);
        other.run("CREATE ROLE catalogue_anew");
        other.run("BEGIN; DROP TABLE item; CREATE TABLE item (id bigint)");
        other.run("ALTER TABLE item OWNER TO catalogue_anew");
        other.run("ALTER TABLE other OWNER TO catalogue_anew");
        other.send_when_this_one_waits("COMMIT");
        let after = owner();
        other.answer().expect("it has seen this session wait");
        assert_eq!(after, role_oid("catalogue_anew"));
    }

    #[pg_test]
    fn tables_of_different_owners_are_refused() {
        let mut other = set_up("catalogue_owners", TABLES, DDL);
        owner_at_this_moment();
        other.run("CREATE ROLE catalogue_owners; ALTER TABLE other OWNER TO catalogue_owners");
        let refusal = refused(|| assert!(owner() == pg_sys::InvalidOid)).expect("an error");
        assert_eq!(refusal.code, PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE);
        let expected = "the owner of table catalogue_owners.other is not as queen_mq has made it";
        assert_eq!(refusal.message, expected);
        other.run("DROP TABLE other");
        assert_eq!(owner(), role_oid(&value("SELECT current_user")));
    }

    #[pg_test]
    fn what_a_subtransaction_made_is_not_remembered_when_it_is_undone() {
        set_up("catalogue_undone", TABLES, DDL);
        let before = oid_of(c"item");
        let inside = undone(|| {
            run("DROP TABLE item; CREATE TABLE item (id bigint)");
            Ok::<_, ()>(oid_of(c"item"))
        });
        assert_ne!(inside, Ok(before));
        assert_eq!(oid_of(c"item"), before);
        ITEMS.insert(&[(ID, arg(1i64))]);
        assert_eq!(value("SELECT id FROM item"), "1");
    }

    #[pg_test]
    fn a_sequence_gives_each_number_once() {
        let mut other = set_up("catalogue_sequence", TABLES, DDL);
        assert_eq!(draw(c"number"), 1);
        assert_eq!(other.value("SELECT nextval('number')"), "2");
        assert_eq!(undone(|| Ok::<_, ()>(draw(c"number"))), Ok(3));
        assert_eq!(draw(c"number"), 4);
    }

    #[pg_extern]
    fn announce_a_change() {
        enter("catalogue_announce", TABLES);
        crate::pg::catalogue::announce();
    }

    #[pg_test]
    fn an_announced_change_is_heard_of_when_it_is_committed_and_not_before() {
        let mut other = OtherSession::connect();
        set_up("catalogue_announce", TABLES, DDL);
        let heard = || {
            changes::hear_all();
            let before = changes::count();
            changes::hear_all();
            changes::count() != before
        };
        // What other tests change is heard of at any time.
        other.run("BEGIN; SELECT tests.announce_a_change()");
        wait_until("a moment without changes", || !heard());
        let before = changes::count();
        other.run("COMMIT");
        changes::hear_all();
        assert_ne!(changes::count(), before);
        let before = changes::count();
        announce_a_change();
        assert_ne!(changes::count(), before);
    }
}
