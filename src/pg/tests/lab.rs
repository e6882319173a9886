//! Tables to experiment on. Each test has them in a schema of its own, which it registers as that
//! of the extension, in place of queen_mq, for its session alone. They are committed, so that
//! other sessions see them; the cluster that the tests run in is removed with them.

use std::ffi::CString;

use pgrx::Spi;

use super::session::OtherSession;
use crate::pg::catalogue::{self, Extension};
use crate::pg::changes;
use crate::pg::table::Table;

/// Creates the schema `name` with what `ddl` creates in it, and registers it. Names are then
/// looked up there, in this session and in the one that is returned.
pub fn set_up(name: &str, tables: &'static [&'static Table], ddl: &str) -> OtherSession {
    let mut other = OtherSession::connect();
    other.run(&format!("CREATE SCHEMA {name}; SET search_path = {name}; {ddl}"));
    enter(name, tables);
    other
}

/// Registers a schema that another session has set up.
pub fn enter(name: &str, tables: &'static [&'static Table]) {
    let schema = Box::leak(CString::new(name).expect("a name").into_boxed_c_str());
    let extension = Extension { schema, tables, announces: tables[0] };
    catalogue::register(Box::leak(Box::new(extension)));
    changes::hear_all();
    changes::count_one();
    run(&format!("SET search_path = {name}"));
}

/// Runs SQL in the test's own session.
pub fn run(sql: &str) {
    Spi::run(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
}

/// The only value that SQL returns, as text.
pub fn value(sql: &str) -> String {
    let value = Spi::get_one::<String>(&format!("SELECT ({sql})::text"));
    value.unwrap_or_else(|error| panic!("{sql}: {error}")).expect("no NULL")
}
