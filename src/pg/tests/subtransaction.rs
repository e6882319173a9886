//! Subtransactions, and what they put back, however deep they are nested.

use std::ffi::c_int;

use crate::pg::guard::{Guard, pin_search_path};
use crate::pg::statement_timeout::StatementTimeout;
use crate::pg::subtransaction::{all_or_nothing, kept_if, undone};

#[pgrx::pg_schema]
mod tests {
    use pgrx::pg_sys;
    use pgrx::pg_sys::ffi::pg_guard_ffi_boundary;
    use pgrx::prelude::*;

    use super::super::backend::{Backend, caught, fail_in_postgres, role, setting};
    use super::super::lab::{run, value};
    use super::super::session::OtherSession;
    use super::*;

    #[pg_test]
    fn what_is_not_worth_it_is_rolled_back_and_returned() {
        run("CREATE TEMPORARY TABLE worth (number int)");
        for number in 1..=4 {
            let kept = kept_if(
                |number| number % 2 == 0,
                || {
                    run(&format!("INSERT INTO worth VALUES ({number})"));
                    Ok::<_, ()>(number)
                },
            );
            assert_eq!(kept, Ok(number));
        }
        let failed: Result<i32, &str> = kept_if(
            |_| true,
            || {
                run("INSERT INTO worth VALUES (6)");
                Err("failed")
            },
        );
        assert_eq!(failed, Err("failed"));
        assert_eq!(value("SELECT array_agg(number) FROM worth"), "{2,4}");
    }

    #[pg_test]
    fn what_is_undone_returns_its_value_and_gives_its_locks_back() {
        let mut other = OtherSession::connect();
        other.run("CREATE TABLE public.undone_item (id int)");
        run("SET LOCAL lock_timeout = '10s'");
        let count = undone(|| {
            run("INSERT INTO public.undone_item VALUES (1)");
            Ok::<_, ()>(value("SELECT count(*) FROM public.undone_item"))
        });
        assert_eq!(count.as_deref(), Ok("1"));
        other.run("SET lock_timeout = '1s'; DROP TABLE public.undone_item");
        let failed = undone(|| Err::<(), _>("failed"));
        assert_eq!(failed, Err("failed"));
    }

    /// Guards and levels of settings in three subtransactions, one in the other. `at` is the depth
    /// at which PostgreSQL raises an error.
    fn nested(roles: &[pg_sys::Oid], at: usize) {
        let Some((role, inner)) = roles.split_first() else { return };
        let result: Result<(), ()> = all_or_nothing(|| {
            let _guard = Guard::act_as(*role);
            pin_search_path();
            let before = Backend::now();
            let caught = caught(|| nested(inner, at));
            assert_eq!(Backend::now(), before);
            assert_eq!(setting(c"search_path"), "pg_catalog, pg_temp");
            // The error has been caught one level further in, and goes no further.
            assert_eq!(caught.is_empty(), inner.len() != at || inner.is_empty());
            if inner.len() + 1 == at {
                fail_in_postgres();
            }
            Ok(())
        });
        assert_eq!(result, Ok(()));
    }

    #[pg_test]
    fn an_error_inside_nested_subtransactions_puts_everything_back() {
        let roles = ["nested_a", "nested_b", "nested_c"].map(role);
        run("SET LOCAL search_path = public; SET LOCAL jit = off");
        let before = Backend::now();
        for at in 0..=3 {
            let said = caught(|| nested(&roles, at));
            assert_eq!(said, if at == 3 { "division by zero" } else { "" }, "{at}");
            assert_eq!(Backend::now(), before);
        }
    }

    /// As PL/pgSQL code of the user does it: the block that catches goes on in the caller's state.
    #[pg_extern]
    fn fails_under_a_guard(role: pg_sys::Oid) {
        let _guard = Guard::act_as(role);
        pin_search_path();
        let _: Result<(), ()> = all_or_nothing(|| {
            fail_in_postgres();
            Ok(())
        });
    }

    #[pg_test]
    fn a_block_of_plpgsql_that_catches_goes_on_in_the_state_of_its_own() {
        let role = role("caught_by_a_block");
        run("SET LOCAL search_path = public, pg_temp");
        run(&format!(
            "CREATE FUNCTION pg_temp.caught() RETURNS text LANGUAGE plpgsql AS $$ BEGIN
                 PERFORM tests.fails_under_a_guard({});
                 RETURN 'not reached';
             EXCEPTION WHEN division_by_zero THEN
                 RETURN current_user || ' in ' || current_setting('search_path');
             END $$",
            role.to_u32()
        ));
        let before = Backend::now();
        let expected = format!("{} in public, pg_temp", value("SELECT current_user"));
        assert_eq!(value("SELECT pg_temp.caught()"), expected);
        assert_eq!(Backend::now(), before);
    }

    unsafe extern "C-unwind" {
        fn disable_timeout(id: c_int, keep_indicator: bool);
        fn get_timeout_active(id: c_int) -> bool;
    }
    /// PostgreSQL's number of the statement's timeout.
    const STATEMENT_TIMEOUT: c_int = 3;

    /// Forgets the timeout of the statement, as a check for interrupts does that finds the lock's
    /// as well, if `loses`; and then goes on for longer than any test.
    #[pg_extern]
    fn goes_on_after_a_lock_timeout(loses: bool) {
        let timeout = StatementTimeout::now();
        if loses {
            // SAFETY: a timeout that PostgreSQL has registered.
            unsafe { pg_guard_ffi_boundary(|| disable_timeout(STATEMENT_TIMEOUT, false)) };
        }
        timeout.renew_if_passed();
        run("SELECT pg_catalog.pg_sleep(300)");
    }

    #[pg_test]
    fn a_statement_timeout_that_was_lost_passes_again() {
        for loses in [true, false] {
            let mut other = OtherSession::connect();
            other.run("SET statement_timeout = '2s'");
            let sleep = format!("SELECT tests.goes_on_after_a_lock_timeout({loses})");
            let error = other.try_run(&sleep).expect_err("a timeout");
            assert_eq!(error.code, "57014");
            assert_eq!(error.message, "canceling statement due to statement timeout");
        }
    }

    #[pg_test]
    fn a_statement_without_a_timeout_gets_none() {
        let timeout = StatementTimeout::now();
        timeout.renew_if_passed();
        // SAFETY: reads the backend's memory.
        assert!(!unsafe { get_timeout_active(STATEMENT_TIMEOUT) });
    }
}
