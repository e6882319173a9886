//! Which room of `src` may use which: nothing runs up.

use crate::repository::under;
use crate::scope::Scope;
use crate::{Findings, Repository};

/// The directories of `src`, each with those it may not use.
const ROOMS: &[(&str, &[&str])] = &[
    ("api", &[]),
    ("broker", &["api"]),
    ("worker", &["api"]),
    ("store", &["api", "broker", "worker"]),
    ("wait", &["api", "broker", "worker"]),
    ("pg", &["api", "broker", "store", "wait", "worker"]),
];

/// The files beside the directories. All but the root use nothing but each other.
const FILES: &[&str] = &["lib", "error", "settings"];

/// Uses that run up, and what has no place at the top of `src`.
pub fn check(repository: &Repository) -> Findings {
    let mut findings = Findings::default();
    let scope = Scope::of(repository, "src");
    for (module, file) in scope.files() {
        findings.look_at_one();
        if !has_a_place(module) {
            findings.add(
                file,
                1,
                "has no place: src holds lib.rs, error.rs, settings.rs and the \
                directories of ROOMS",
            );
        }
    }
    for (file, _) in repository.files() {
        let top = under("src", file) && file.matches('/').count() == 1;
        if top && !file.ends_with(".rs") {
            findings.add(file, 1, "has no place: src holds Rust alone");
        }
    }
    for arrow in scope.arrows() {
        let Some(room) = arrow.from.first() else { continue };
        let path = [&["crate".to_owned()], &arrow.to[..]].concat().join("::");
        match arrow.to.first() {
            None => findings.add(arrow.file, arrow.line, "uses the whole of the crate's root"),
            Some(to) if !may_use(room, to) => {
                findings.add(arrow.file, arrow.line, format!("src/{room} uses {path}"));
            }
            Some(_) => {}
        }
    }
    findings
}

fn has_a_place(module: &[String]) -> bool {
    let Some(top) = module.first() else { return true };
    ROOMS.iter().any(|(room, _)| room == top) || (module.len() == 1 && FILES.contains(&&top[..]))
}

fn may_use(room: &str, to: &str) -> bool {
    if FILES.contains(&room) {
        return FILES.contains(&to);
    }
    ROOMS.iter().all(|(name, forbidden)| *name != room || !forbidden.contains(&to))
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::Repository;

    fn lines(file: &str, text: &str) -> Vec<String> {
        let root = "mod api; mod broker; mod pg; mod store; mod wait; mod worker; mod error; \
            mod settings;";
        let rooms = ["api", "broker", "pg", "store", "wait", "worker"];
        let rooms = rooms.map(|room| (format!("src/{room}/mod.rs"), ""));
        let mut files: Vec<_> = rooms.iter().map(|(path, text)| (&path[..], *text)).collect();
        files.extend([("src/lib.rs", root), ("src/error.rs", ""), ("src/settings.rs", "")]);
        files.push((file, text));
        check(&Repository::of(&files)).lines()
    }

    #[test]
    fn uses_that_run_down_pass() {
        let text = "use crate::{error::Error, pg::spi, store::clock}; use super::super::settings;";
        assert_eq!(lines("src/broker/a.rs", text), [""; 0]);
        assert_eq!(lines("src/api/a.rs", "use crate::{broker, worker, wait};"), [""; 0]);
        assert_eq!(lines("src/settings.rs", "use crate::error::Error; use pgrx::api;"), [""; 0]);
        assert_eq!(lines("src/store/a.rs", "use std::store::api; use super::api;"), [""; 0]);
    }

    #[test]
    fn uses_that_run_up_fail() {
        for (room, to) in [
            ("pg", "store"),
            ("pg", "broker"),
            ("pg", "api"),
            ("pg", "wait"),
            ("pg", "worker"),
            ("store", "api"),
            ("store", "broker"),
            ("store", "worker"),
            ("wait", "api"),
            ("wait", "broker"),
            ("wait", "worker"),
            ("broker", "api"),
            ("worker", "api"),
        ] {
            for text in [
                format!("\nuse crate::{to}::x;"),
                format!("\nuse crate::{{error, {to}::{{self, x}}}};"),
                format!("\nfn f() {{ super::super::{to}::x(); }}"),
                format!("\nfn f() {{ g!(crate::{to}::x); }}"),
                format!("mod tests {{\nuse super::super::super::{to}; }}"),
                format!("\nuse crate::{to} as y;"),
            ] {
                let found = lines(&format!("src/{room}/a.rs"), &text);
                let expected = format!("src/{room}/a.rs:2: src/{room} uses crate::{to}");
                assert!(found.iter().any(|line| line.starts_with(&expected)), "{text}: {found:?}");
            }
        }
    }

    #[test]
    fn the_root_as_a_whole_is_up() {
        let expected = ["src/pg/a.rs:1: uses the whole of the crate's root"];
        assert_eq!(lines("src/pg/a.rs", "use crate::*;"), expected);
        assert_eq!(lines("src/pg/a.rs", "use super::super as root;"), expected);
    }

    #[test]
    fn errors_and_settings_use_nothing_else() {
        let found = lines("src/error.rs", "use crate::{settings, pg::spi};");
        assert_eq!(found, ["src/error.rs:1: src/error uses crate::pg::spi"]);
    }

    #[test]
    fn other_files_and_directories_have_no_place() {
        assert_eq!(lines("src/batch.rs", "").len(), 1);
        assert_eq!(lines("src/taking/mod.rs", "").len(), 1);
        assert_eq!(lines("src/error/mod.rs", "").len(), 0);
        assert_eq!(lines("src/error/kind.rs", "").len(), 1);
        assert_eq!(lines("src/notes.md", "").len(), 1);
    }
}
