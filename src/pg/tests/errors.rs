//! Errors on their way out: each reaches the client with its own SQLSTATE, and memory that runs
//! short is one of them.

use std::ffi::c_void;
use std::ptr;

use pgrx::pg_sys;

use crate::error::{Code, Error};
use crate::pg::ballast::{Ballast, drop_ballast, is_gone};
use crate::pg::binary_upgrade;
use crate::pg::error_context;
use crate::pg::raise::OrRaise;
use crate::pg::{allocator, sqlstate};

static mut CALLBACK: pg_sys::ErrorContextCallback = pg_sys::ErrorContextCallback {
    previous: ptr::null_mut(),
    callback: Some(do_nothing),
    arg: ptr::null_mut(),
};

unsafe extern "C-unwind" fn do_nothing(_: *mut c_void) {}

#[pgrx::pg_schema]
mod tests {
    use pgrx::prelude::*;

    use super::super::backend::refused;
    use super::super::lab::{run, value};
    use super::super::session::OtherSession;
    use super::*;

    #[pg_extern]
    fn raises_its_own(forgets: bool) {
        let error = Error::new(Code::QueueFull, "full").detail("to the brim");
        if forgets {
            // As code does that catches the error of a call and answers another way.
            sqlstate::leave_with(error.code.packed());
            sqlstate::forget();
            Error::new(Code::LeaseUnknown, "other").raise();
        }
        Err(error).or_raise()
    }

    /// Runs SQL below a call of ours, which may fail.
    #[pg_extern]
    fn keeps_the_code_of(sql: &str) {
        sqlstate::keep(|| run(sql));
    }

    fn client_error(sql: &str) -> (String, String) {
        let error = OtherSession::connect().try_run(sql).expect_err("an error");
        (error.code, error.message)
    }

    #[pg_test]
    fn an_error_of_ours_reaches_the_client_with_its_sqlstate() {
        let error = |code: &str, message: &str| (code.to_owned(), message.to_owned());
        assert_eq!(client_error("SELECT tests.raises_its_own(false)"), error("QN020", "full"));
        assert_eq!(client_error("SELECT tests.raises_its_own(true)"), error("QN003", "other"));
        let mut other = OtherSession::connect();
        let caught = "DO $$ BEGIN PERFORM tests.raises_its_own(false);
            EXCEPTION WHEN SQLSTATE 'QN020' THEN
                RAISE '% %', SQLERRM, SQLSTATE USING ERRCODE = 'AB123';
            END $$";
        let found = other.try_run(caught).expect_err("an error");
        assert_eq!((found.code, found.message), error("AB123", "full QN020"));
        // What comes after has a code of its own.
        assert_eq!(other.try_run("SELECT 1 / 0").expect_err("an error").code, "22012");
    }

    #[pg_test]
    fn an_error_below_a_call_of_ours_keeps_its_sqlstate() {
        for code in ["ZZ999", "QN001", "22012", "P0001", "40001", "XX000"] {
            let raise = format!("DO $a$ BEGIN RAISE ''below'' USING ERRCODE = ''{code}''; END $a$");
            let sql = format!("SELECT tests.keeps_the_code_of('{raise}')");
            assert_eq!(client_error(&sql), (code.to_owned(), "below".to_owned()));
        }
    }

    #[pg_test]
    fn an_error_that_was_caught_below_does_not_lend_its_sqlstate() {
        let caught = "DO $a$ BEGIN RAISE ''first'' USING ERRCODE = ''ZZ999'';
            EXCEPTION WHEN SQLSTATE ''ZZ999'' THEN
                RAISE WARNING ''in passing''; RAISE ''second'' USING ERRCODE = ''ZZ111'';
            END $a$";
        let sql = format!("SELECT tests.keeps_the_code_of('{caught}')");
        assert_eq!(client_error(&sql), ("ZZ111".to_owned(), "second".to_owned()));
    }

    #[pg_test]
    fn a_callback_is_on_the_stack_of_error_contexts_once() {
        let callback = &raw mut CALLBACK;
        // SAFETY: the callback lives for ever, and the stack is taken back at the end.
        unsafe {
            let before = pg_sys::error_context_stack;
            assert!(error_context::push(callback));
            assert!(pg_sys::error_context_stack == callback);
            assert!(!error_context::push(callback));
            assert_eq!((*callback).previous, before);
            error_context::pop(callback);
            assert!(pg_sys::error_context_stack == before);
            // One that is not on top stays.
            error_context::pop(callback);
            assert!(pg_sys::error_context_stack == before);
            let pushed = error_context::restored(|| error_context::push(callback));
            assert!(pushed);
            assert!(pg_sys::error_context_stack == before);
        }
        sqlstate::keep(|| {});
        // SAFETY: reads a plain global.
        assert!(unsafe { pg_sys::error_context_stack } != callback);
    }

    #[pg_test]
    fn memory_that_the_system_has_not_is_an_error() {
        assert!(allocator::ensure(1 << 30).is_ok());
        for bytes in [usize::MAX, 1 << 62] {
            let error = allocator::ensure(bytes).expect_err("too much");
            assert_eq!(error.code, Code::OutOfMemory);
        }
        assert_eq!(allocator::room::<u64>(1000).map(|room| room.capacity()).ok(), Some(1000));
        let error = allocator::room::<u64>(1 << 60).map(|_| ()).expect_err("too much");
        assert_eq!(error.code, Code::OutOfMemory);
        let three = allocator::list(3, [1, 2, 3].into_iter().map(Ok)).expect("a list");
        assert_eq!(three, [1, 2, 3]);
        let refused = allocator::list(2, [Ok(1), Err(Error::corrupt("refused"))].into_iter());
        assert_eq!(refused.map_err(|error| error.message), Err("refused".to_owned()));
    }

    #[pg_test]
    fn the_ballast_is_dropped_by_an_error_of_memory_alone() {
        let _ballast = Ballast::hold().expect("memory");
        let division = refused(|| run("SELECT 1 / 0"));
        assert!(division.is_some() && !is_gone());
        // PostgreSQL refuses a string of this size with another code.
        let refusal = refused(|| Error::out_of_memory().raise()).expect("an error");
        assert_eq!(refusal.code, PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY);
        assert!(is_gone() && !drop_ballast());
        let again = Ballast::hold().expect("memory");
        assert!(!is_gone());
        drop(again);
        assert!(!is_gone() && drop_ballast() && is_gone());
    }

    #[pg_test]
    fn an_error_of_memory_that_postgres_raises_drops_the_ballast_as_well() {
        let _ballast = Ballast::hold().expect("memory");
        let refusal = refused(|| {
            run("DO $$ BEGIN RAISE 'none left' USING ERRCODE = 'out_of_memory'; END $$");
        });
        let code = refusal.map(|refusal| refusal.code);
        assert_eq!(code, Some(PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY));
        assert!(is_gone());
    }

    #[pg_test]
    fn a_server_that_pg_upgrade_has_started_refuses_calls() {
        assert!(!binary_upgrade::is_under_way());
        assert!(binary_upgrade::refuse_under_binary_upgrade().is_ok());
        // SAFETY: a plain global of this process, which is put back.
        let refused = unsafe {
            pg_sys::IsBinaryUpgrade = true;
            let refused = binary_upgrade::refuse_under_binary_upgrade();
            pg_sys::IsBinaryUpgrade = false;
            refused
        };
        let code = refused.map_err(|error| error.code);
        assert_eq!(code, Err(Code::ObjectNotInPrerequisiteState));
        assert_eq!(value("SELECT 1"), "1");
    }
}
