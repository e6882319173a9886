//! Databases of the server, and commands that want one for themselves.

use crate::pg::databases;

#[pgrx::pg_schema]
mod tests {
    use pgrx::prelude::*;

    use super::super::backend::caught;
    use super::super::lab::value;
    use super::super::session::OtherSession;
    use super::*;
    use crate::pg::process;

    #[pg_test]
    fn the_own_database_is_known_by_its_name_and_its_encoding() {
        assert_eq!(databases::own_name(), Some(value("SELECT current_database()")));
        assert_eq!(databases::encoding(), value("SELECT current_setting('server_encoding')"));
        assert_eq!(databases::is_utf8(), databases::encoding() == "UTF8");
    }

    /// By a scan in a transaction of its own, which a session has no room for.
    #[pg_test]
    fn databases_are_listed_outside_of_transactions_alone() {
        let refusal = caught(|| assert!(databases::open_ones().is_empty()));
        assert_eq!(refusal, "a transaction of its own was to begin within another one");
    }

    #[pg_test]
    fn a_command_that_wants_a_database_alone_is_noticed() {
        let mut other = OtherSession::connect();
        other.run("CREATE DATABASE wanted_alone");
        let oid = other.value("SELECT oid FROM pg_database WHERE datname = 'wanted_alone'");
        let oid = pg_sys::Oid::from(oid.parse::<u32>().expect("an OID"));
        assert!(!databases::is_wanted_alone(oid));
        other.run("BEGIN");
        other.run("ALTER DATABASE wanted_alone RENAME TO wanted_by_another_name");
        assert!(databases::is_wanted_alone(oid));
        assert!(!databases::is_wanted_alone(process::database()));
        other.run("ROLLBACK");
        assert!(!databases::is_wanted_alone(oid));
        let kept = format!(
            "SELECT count(*) FROM pg_locks WHERE pid = {} AND objid = {}",
            process::pid(),
            oid.to_u32()
        );
        assert_eq!(other.value(&kept), "0");
    }
}
