//! What a listener is told of transactions and subtransactions, in a session that ends some.

use std::cell::RefCell;

use crate::pg::subtransaction::number;
use crate::pg::transaction_listener::{TransactionEnd, TransactionListener};

thread_local! {
    static HEARD: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

static LISTENER: TransactionListener = TransactionListener::new(at_end, at_undo, after_locks);

fn at_end(end: TransactionEnd) {
    HEARD.with_borrow_mut(|heard| heard.push(format!("{end:?}")));
}

fn at_undo(undone: pgrx::pg_sys::SubTransactionId) {
    HEARD.with_borrow_mut(|heard| heard.push(format!("undone {undone}")));
}

fn after_locks() {
    HEARD.with_borrow_mut(|heard| heard.push("released".to_owned()));
}

#[pgrx::pg_schema]
mod tests {
    use pgrx::prelude::{pg_extern, pg_test};

    use super::super::session::OtherSession;
    use super::*;

    #[pg_extern]
    fn number_of_subtransaction() -> i64 {
        i64::from(number())
    }

    /// What the listener has been told since the last call. It listens from the first call on.
    #[pg_extern]
    fn heard_of_transactions() -> String {
        LISTENER.listen();
        HEARD.take().join(", ")
    }

    #[pg_test]
    fn a_listener_is_told_once_of_each_end() {
        let mut session = OtherSession::connect();
        let heard = "SELECT tests.heard_of_transactions()";
        assert_eq!(session.value(heard), "");
        assert_eq!(session.value(heard), "Committed, released");

        session.run("BEGIN");
        assert_eq!(session.value(heard), "Committed, released");
        session.run("SAVEPOINT outermost; SAVEPOINT middle; SAVEPOINT innermost");
        assert_eq!(session.value("SELECT tests.number_of_subtransaction()"), "4");
        session.run("RELEASE innermost");
        assert_eq!(session.value("SELECT tests.number_of_subtransaction()"), "3");
        assert_eq!(session.value(heard), "");
        session.run("ROLLBACK TO outermost");
        assert_eq!(session.value(heard), "undone 3, undone 2");
        assert_eq!(session.value("SELECT tests.number_of_subtransaction()"), "5");
        session.run("ROLLBACK");
        assert_eq!(session.value(heard), "undone 5, RolledBack, released");
    }
}
