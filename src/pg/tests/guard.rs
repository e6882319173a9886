//! The guards by themselves, in a running server: what they change is put back on every way out.

#[pgrx::pg_schema]
mod tests {
    use std::backtrace::{Backtrace, BacktraceStatus};

    use pgrx::pg_sys;
    use pgrx::prelude::*;

    use super::super::backend::{Backend, caught, fail_in_postgres, role, setting};
    use crate::pg::guard::{Guard, acts_as_caller, caller, pin_search_path};
    use crate::pg::lock_timeout::LockTimeout;
    use crate::pg::subtransaction::all_or_nothing;

    #[pg_test]
    fn a_guard_acts_as_the_role_in_a_restricted_context() {
        let (before, role) = (Backend::now(), role("guarded"));
        {
            let _guard = Guard::act_as(role);
            let now = Backend::now();
            assert_eq!(now.user, role);
            let restricted = pg_sys::SECURITY_RESTRICTED_OPERATION as i32;
            assert_eq!(now.security & restricted, restricted);
            assert_eq!(now.search_path, before.search_path);
            pin_search_path();
            assert_eq!(setting(c"search_path"), "pg_catalog, pg_temp");
        }
        assert_eq!(Backend::now(), before);
    }

    #[pg_test]
    fn the_innermost_guard_tells_who_has_called() {
        let (user, first, second) = (Backend::now().user, role("first_role"), role("second_role"));
        assert_eq!((caller(), acts_as_caller()), (pg_sys::InvalidOid, false));
        {
            let _outer = Guard::act_as(first);
            assert_eq!((caller(), acts_as_caller()), (user, false));
            {
                let _inner = Guard::act_as(second);
                assert_eq!((caller(), acts_as_caller()), (first, false));
                let _own = Guard::act_as(second);
                assert_eq!((caller(), acts_as_caller()), (second, true));
            }
            assert_eq!((caller(), acts_as_caller()), (user, false));
            let _own = Guard::act_as(first);
            caught(|| {
                let _inner = Guard::act_as(second);
                fail_in_postgres();
            });
            assert_eq!((caller(), acts_as_caller()), (first, true));
        }
        assert_eq!((caller(), acts_as_caller()), (pg_sys::InvalidOid, false));
    }

    #[pg_test]
    fn what_runs_under_a_guard_makes_no_temporary_table_and_becomes_no_other_role() {
        let role = role("guarded");
        for (statement, refusal) in [
            (
                "CREATE TEMPORARY TABLE planted ()",
                "cannot create temporary table within security-restricted operation",
            ),
            (
                "SET ROLE postgres",
                "cannot set parameter \"role\" within security-restricted operation",
            ),
        ] {
            let said = caught(|| {
                let _guard = Guard::act_as(role);
                Spi::run(statement).expect("not reached");
            });
            assert!(said.starts_with(refusal) || said.starts_with("cannot"), "{statement}: {said}");
        }
    }

    #[pg_test]
    fn an_error_puts_everything_back() {
        let role = role("guarded");
        let before = Backend::now();
        let said = caught(|| {
            let _guard = Guard::act_as(role);
            pin_search_path();
            fail_in_postgres();
        });
        assert_eq!(said, "division by zero");
        assert_eq!(Backend::now(), before);
    }

    #[pg_test]
    fn a_panic_of_rust_puts_everything_back() {
        let role = role("guarded");
        let before = Backend::now();
        caught(|| {
            let _guard = Guard::act_as(role);
            pin_search_path();
            panic!("a panic");
        });
        assert_eq!(Backend::now(), before);
    }

    #[pg_test]
    fn guards_nest() {
        let (outer, inner) = (role("outer_role"), role("inner_role"));
        let _guard = Guard::act_as(outer);
        pin_search_path();
        let before = Backend::now();
        caught(|| {
            let _inner = Guard::act_as(inner);
            assert_eq!(Backend::now().user, inner);
            pin_search_path();
            fail_in_postgres();
        });
        assert_eq!(Backend::now(), before);
        assert_eq!(before.search_path, "pg_catalog, pg_temp");
    }

    #[pg_test]
    fn a_lock_timeout_is_lowered_for_a_while_and_never_raised() {
        let in_force = || setting(c"lock_timeout");
        for (own, lowered) in [("0", "20"), ("60000", "20"), ("20", "20"), ("5", "5")] {
            Spi::run(&format!("SET LOCAL lock_timeout = {own}")).expect("a setting");
            let said = caught(|| {
                let timeout = LockTimeout::lower_to(20);
                assert_eq!((&in_force()[..], timeout.is_lowered()), (lowered, own != lowered));
                // What a trigger sets meanwhile is undone as well.
                Spi::run("SET lock_timeout = 7000").expect("a setting");
                fail_in_postgres();
            });
            assert_eq!((&said[..], &in_force()[..]), ("division by zero", own));
            drop(LockTimeout::lower_to(20));
            assert_eq!(in_force(), own);
        }
    }

    /// What is pinned first in a subtransaction stays pinned when that is over.
    #[pg_test]
    fn a_search_path_outlives_the_subtransactions_of_its_guard() {
        let _guard = Guard::act_as(role("guarded"));
        for result in [Ok(()), Err(())] {
            let _: Result<(), ()> = all_or_nothing(|| {
                pin_search_path();
                result
            });
            pin_search_path();
            assert_eq!(setting(c"search_path"), "pg_catalog, pg_temp");
        }
    }

    #[pg_test]
    fn all_or_nothing_keeps_what_returns_ok_and_undoes_the_rest() {
        Spi::run("CREATE TABLE kept (a int)").expect("a table");
        let insert = |number: i32| {
            Spi::run(&format!("INSERT INTO kept VALUES ({number})")).expect("a row");
        };
        let before = Backend::now();
        let ok: Result<i32, ()> = all_or_nothing(|| {
            insert(1);
            Ok(7)
        });
        assert_eq!((ok, Backend::now()), (Ok(7), Backend { ..before }));
        let before = Backend::now();
        let refused: Result<(), i32> = all_or_nothing(|| {
            insert(2);
            Err(8)
        });
        assert_eq!(refused, Err(8));
        assert_eq!(Backend::now(), before);
        let said = caught(|| {
            let _: Result<(), ()> = all_or_nothing(|| {
                insert(3);
                fail_in_postgres();
                Ok(())
            });
        });
        assert_eq!(said, "division by zero");
        assert_eq!(Backend::now(), before);
        let sum = Spi::get_one::<i64>("SELECT sum(a) FROM kept").expect("a sum");
        assert_eq!(sum, Some(1));
    }

    /// The tests' server has RUST_BACKTRACE=1 in its environment.
    #[pg_test]
    fn nothing_captures_a_backtrace() {
        assert_eq!(std::env::var("RUST_BACKTRACE").as_deref(), Ok("1"));
        assert_eq!(Backtrace::capture().status(), BacktraceStatus::Disabled);
    }
}
