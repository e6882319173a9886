//! Functions as the catalogue declares them.

use std::cell::Cell;

use crate::pg::declared::{DeclaredFunction, on_change};

thread_local! {
    static CHANGES: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    CHANGES.set(CHANGES.get() + 1);
}

#[pgrx::pg_schema]
mod tests {
    use pgrx::prelude::*;

    use super::super::lab::run;
    use super::super::session::OtherSession;
    use super::*;
    use crate::pg::changes;

    #[pg_extern]
    fn as_pgrx_declares_it(text: &str, number: i32) -> bool {
        text.len() == number as usize
    }

    fn read(name: &str) -> DeclaredFunction {
        let oid = format!("SELECT '{name}'::regproc::oid");
        let oid = Spi::get_one(&oid).expect("a look-up").expect("an oid");
        DeclaredFunction::read(oid).expect("a function")
    }

    #[pg_test]
    fn a_function_is_read_with_its_symbol_its_arguments_and_its_columns() {
        assert!(as_pgrx_declares_it("a", 1));
        let own = DeclaredFunction {
            symbol: "as_pgrx_declares_it".to_owned(),
            arguments: vec![pg_sys::TEXTOID, pg_sys::INT4OID],
            result: vec![pg_sys::BOOLOID],
        };
        assert_eq!(read("tests.as_pgrx_declares_it"), own);
        run("CREATE FUNCTION columns_out(a jsonb, OUT b bigint, INOUT c uuid, OUT d text[])
             LANGUAGE sql AS 'SELECT 1::bigint, c, NULL::text[]'");
        let with_columns = DeclaredFunction {
            symbol: "SELECT 1::bigint, c, NULL::text[]".to_owned(),
            arguments: vec![pg_sys::JSONBOID, pg_sys::UUIDOID],
            result: vec![pg_sys::INT8OID, pg_sys::UUIDOID, pg_sys::TEXTARRAYOID],
        };
        assert_eq!(read("columns_out"), with_columns);
        assert_eq!(DeclaredFunction::read(pg_sys::InvalidOid), None);
    }

    #[pg_test]
    fn a_change_of_a_function_is_heard_of() {
        let make = "CREATE OR REPLACE FUNCTION public.declared_anew() RETURNS int LANGUAGE sql AS";
        let mut other = OtherSession::connect();
        other.run(&format!("{make} 'SELECT 1'"));
        assert_eq!(read("public.declared_anew").symbol, "SELECT 1");
        on_change(count);
        let before = CHANGES.get();
        other.run(&format!("{make} 'SELECT 2'"));
        changes::hear_all();
        assert!(CHANGES.get() > before);
        assert_eq!(read("public.declared_anew").symbol, "SELECT 2");
        let before = CHANGES.get();
        run(&format!("{make} 'SELECT 3'"));
        assert!(CHANGES.get() > before);
        assert_eq!(read("public.declared_anew").symbol, "SELECT 3");
    }
}
