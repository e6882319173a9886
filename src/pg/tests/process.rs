//! The process itself: what it is, its latch, its settings, and what only a background process may
//! do.

use std::time::{Duration, Instant};

use crate::pg::latch::{self, LatchAddress};
use crate::pg::shared::{Shared, plain};
use crate::pg::{background, guc, own_transaction, process, recovery, transaction};

/// A value that was never set up.
#[derive(Debug)]
struct Pair {
    first: u64,
    second: Option<bool>,
}

plain!(Pair { first, second });

static NOT_THERE: Shared<Pair> = Shared::new(c"not there", || Pair { first: 1, second: None });

#[pgrx::pg_schema]
mod tests {
    use pgrx::prelude::*;

    use super::super::backend::{caught, setting};
    use super::super::lab::{run, value};
    use super::super::session::{DEADLINE, OtherSession, wait_until};
    use super::*;

    #[pg_test]
    fn a_session_knows_its_process_and_its_database() {
        assert_eq!(value("SELECT pg_backend_pid()"), process::pid().to_string());
        let database = "SELECT oid FROM pg_database WHERE datname = current_database()";
        assert_eq!(value(database), process::database().to_u32().to_string());
        assert!(!process::is_preloading() && !recovery::is_under_way());
    }

    #[pg_test]
    fn a_latch_that_was_set_ends_the_next_sleep_alone() {
        LatchAddress::NONE.set();
        assert!(!LatchAddress::NONE.is_some() && LatchAddress::own().is_some());
        let begun = Instant::now();
        LatchAddress::own().set();
        latch::sleep(2 * DEADLINE.as_millis() as i64);
        assert!(begun.elapsed() < DEADLINE);
        LatchAddress::own().set();
        latch::reset_own();
        let begun = Instant::now();
        latch::sleep(30);
        assert!(begun.elapsed() >= Duration::from_millis(29), "{:?}", begun.elapsed());
    }

    #[pg_test]
    fn a_process_is_terminated_and_no_group_of_processes() {
        let mut other = OtherSession::connect();
        let mut third = OtherSession::connect();
        let look = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {}", third.pid);
        process::terminate(0);
        process::terminate(-(third.pid as i32));
        assert_eq!(third.value("SELECT 1"), "1");
        process::terminate(third.pid as i32);
        wait_until("the session to end", || other.value(&look) == "0");
    }

    #[pg_test]
    fn a_transaction_gets_an_id_when_it_writes() {
        assert!(!transaction::has_id() && !transaction::is_read_only());
        run("CREATE TEMPORARY TABLE written ()");
        assert!(transaction::has_id());
        run("SET LOCAL transaction_read_only = on");
        assert!(transaction::is_read_only());
    }

    #[pg_test]
    fn a_setting_is_overridden_in_this_process() {
        guc::override_with(c"lock_timeout", c"123ms");
        assert_eq!(setting(c"lock_timeout"), "123");
        assert_ne!(caught(|| guc::override_with(c"no_such_setting", c"1")), "");
        assert_ne!(caught(|| guc::override_with(c"lock_timeout", c"soon")), "");
    }

    #[pg_test]
    fn others_see_what_a_process_is_doing() {
        let mut other = OtherSession::connect();
        let look = format!(
            "SELECT state || ': ' || query FROM pg_stat_activity WHERE pid = {}",
            process::pid()
        );
        background::show_activity("the third task");
        assert_eq!(other.value(&look), "active: the third task");
        background::show_activity("");
        assert_eq!(other.value(&look), "idle: ");
    }

    #[pg_test]
    fn a_session_is_no_background_process() {
        let refusal = "only a background process connects by itself, and only once";
        assert_eq!(caught(background::connect_to_no_database), refusal);
        assert_eq!(caught(|| background::connect_to(process::database())), refusal);
        let begin = || {
            assert!(own_transaction::run(|| Ok(()), |_| ()).is_none());
        };
        assert_eq!(caught(begin), "a transaction of its own was to begin within another one");
        assert_eq!(value("SELECT 1"), "1");
    }

    #[pg_test]
    fn what_was_not_set_up_in_the_preload_is_not_shared() {
        NOT_THERE.set_up();
        assert!(!NOT_THERE.is_there());
        assert_ne!(caught(|| assert!(NOT_THERE.share().first > 0)), "");
        assert_ne!(caught(|| NOT_THERE.exclusive().second = Some(true)), "");
    }
}
