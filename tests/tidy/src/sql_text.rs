//! The SQL of the project stands in two directories.

use crate::repository::under;
use crate::{Findings, Repository};

/// Where SQL belongs. The install script's `sql/` is no Rust.
const HOMES: &[&str] = &["src/store", "src/pg"];
const SEARCHED: &[&str] = &["src", "crates/engine/src"];

/// Words with which a statement begins, as statements are written here.
const STATEMENTS: &[&str] = &[
    "ALTER",
    "ANALYZE",
    "BEGIN",
    "CLOSE",
    "CLUSTER",
    "COMMENT ON",
    "COMMIT",
    "COPY",
    "CREATE",
    "DEALLOCATE",
    "DECLARE",
    "DELETE",
    "DISCARD",
    "DO",
    "DROP",
    "EXECUTE",
    "EXPLAIN",
    "FETCH",
    "GRANT",
    "INSERT",
    "LISTEN",
    "LOCK",
    "MERGE",
    "MOVE",
    "NOTIFY",
    "PREPARE",
    "REFRESH",
    "REINDEX",
    "RELEASE",
    "RESET",
    "REVOKE",
    "ROLLBACK",
    "SAVEPOINT",
    "SELECT",
    "SET",
    "SHOW",
    "START TRANSACTION",
    "TABLE",
    "TRUNCATE",
    "UNLISTEN",
    "UPDATE",
    "VACUUM",
    "VALUES",
    "WITH",
];

/// Beginnings that no sentence has, so that small letters hide no statement.
const IN_SMALL_LETTERS: &[&str] = &[
    "alter table",
    "create table",
    "delete from",
    "drop table",
    "insert into",
    "lock table",
    "merge into",
    "select",
];

/// Strings outside of those directories that begin like a statement.
pub fn check(repository: &Repository) -> Findings {
    let mut findings = Findings::default();
    for (file, rust) in repository.rust() {
        let inside = |directories: &[&str]| directories.iter().any(|each| under(each, file));
        if !inside(SEARCHED) || inside(HOMES) {
            continue;
        }
        findings.look_at_one();
        for text in &rust.strings {
            if let Some(words) = statement(&text.text) {
                findings.add(file, text.line, format!("SQL: {words} …"));
            }
        }
    }
    findings
}

/// The words with which a text begins like a statement.
fn statement(text: &str) -> Option<&'static str> {
    let begin: Vec<_> = text.split_whitespace().take(2).collect();
    let begin = begin.join(" ");
    let begins = |words: &&&str| {
        begin.strip_prefix(**words).is_some_and(|rest| {
            !rest.starts_with(|sign: char| sign.is_alphanumeric() || sign == '_')
        })
    };
    STATEMENTS.iter().chain(IN_SMALL_LETTERS).find(begins).copied()
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::Repository;

    fn lines(file: &str, text: &str) -> Vec<String> {
        check(&Repository::of(&[(file, text)])).lines()
    }

    #[test]
    fn statements_fail_outside_their_homes() {
        for (text, words) in [
            ("SELECT 1", "SELECT"),
            ("\n  WITH a AS (", "WITH"),
            ("LOCK TABLE a", "LOCK"),
            ("COMMIT", "COMMIT"),
            ("SET LOCAL a = b", "SET"),
            ("insert into a", "insert into"),
            ("select 1", "select"),
        ] {
            for code in [
                format!("\nconst A: &str = r#\"{text}\"#;"),
                format!("\nconst A: &CStr = c\"{text}\";"),
                format!("fn f() {{\ng!([\"{text}\"]) }}"),
                format!("\n#[g(\"{text}\")] fn f() {{}}"),
            ] {
                for file in [
                    "src/api/a.rs",
                    "src/broker/a.rs",
                    "src/wait/a.rs",
                    "src/worker/a.rs",
                    "src/lib.rs",
                    "crates/engine/src/a.rs",
                ] {
                    assert_eq!(lines(file, &code), [format!("{file}:2: SQL: {words} …")], "{code}");
                }
                assert_eq!(lines("src/store/a.rs", &code), [""; 0]);
                assert_eq!(lines("src/pg/a.rs", &code), [""; 0]);
            }
        }
    }

    #[test]
    fn other_strings_pass() {
        for text in
            ["with", "delete the queue", "SELECTED", "SETTING a", "a SELECT", "NULL", "DO_IT"]
        {
            let code = format!("/// SELECT 1\nconst A: &str = \"{text}\"; // SELECT 1");
            assert_eq!(lines("src/api/a.rs", &code), [""; 0], "{text}");
        }
    }
}
