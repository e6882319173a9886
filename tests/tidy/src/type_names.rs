//! One name, one type.

use std::collections::{BTreeMap, BTreeSet};

use crate::repository::under;
use crate::rust::TypeName;
use crate::{Findings, Repository};

/// Code that is read together: directories with each of which the files of another stand alone.
struct Readable {
    directories: &'static [&'static str],
    each_of: Option<&'static str>,
}

const READ_TOGETHER: &[Readable] = &[
    Readable { directories: &["src", "crates/engine/src"], each_of: None },
    Readable { directories: &["crates/engine/src"], each_of: Some("crates/engine/tests") },
    Readable { directories: &["tests/concurrency/src"], each_of: Some("tests/concurrency/tests") },
    Readable { directories: &["tests/history/src"], each_of: Some("tests/history/tests") },
    Readable { directories: &["tests/tidy/src"], each_of: Some("tests/tidy/tests") },
    Readable { directories: &["bench/src"], each_of: None },
];

/// Types of one name among what is read together.
pub fn check(repository: &Repository) -> Findings {
    let mut findings = Findings::default();
    let mut seen = BTreeSet::new();
    for Readable { directories, each_of } in READ_TOGETHER {
        let shared: Vec<_> = files_under(repository, directories).collect();
        let alone: Vec<_> = each_of
            .iter()
            .flat_map(|directory| files_under(repository, std::slice::from_ref(directory)))
            .collect();
        seen.extend(shared.iter().chain(&alone).map(|(file, _)| *file));
        compare(&shared, &mut findings);
        for file in alone {
            compare(&[&shared[..], &[file]].concat(), &mut findings);
        }
    }
    seen.iter().for_each(|_| findings.look_at_one());
    findings
}

type File<'a> = (&'a str, &'a [TypeName]);

fn files_under<'a>(
    repository: &'a Repository,
    directories: &'a [&str],
) -> impl Iterator<Item = File<'a>> {
    let inside = |file: &str| directories.iter().any(|directory| under(directory, file));
    let files = repository.rust().filter(move |(file, _)| inside(file));
    files.map(|(file, rust)| (file, &rust.types[..]))
}

fn compare(files: &[File], findings: &mut Findings) {
    let mut by_name: BTreeMap<&str, Vec<(&str, &TypeName)>> = BTreeMap::new();
    for (file, types) in files {
        for found in *types {
            by_name.entry(&found.name).or_default().push((file, found));
        }
    }
    for (name, found) in by_name {
        if found.len() < 2 || alternatives(&found) {
            continue;
        }
        for (position, (file, each)) in found.iter().enumerate() {
            let (next_file, next) = found[(position + 1) % found.len()];
            let what = format!("{} {name}, also in {next_file}:{}", each.kind, next.line);
            findings.add(file, each.line, what);
        }
    }
}

/// Conditional types of one file, of which a build has one.
fn alternatives(found: &[(&str, &TypeName)]) -> bool {
    found.iter().all(|(file, each)| each.conditional && *file == found[0].0)
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::Repository;

    fn lines(files: &[(&str, &str)]) -> Vec<String> {
        check(&Repository::of(files)).lines()
    }

    #[test]
    fn different_names_pass() {
        let text = "struct A; enum B {} trait C { type A; } type D = A; \
            impl C for B { type A = A; } fn f(b: B) {}";
        assert_eq!(lines(&[("src/a.rs", text), ("crates/engine/src/b.rs", "union E {}")]), [""; 0]);
    }

    #[test]
    fn the_same_name_fails_whatever_the_kind() {
        for text in [
            "struct A;",
            "enum A {}",
            "union A { a: u8 }",
            "trait A {}",
            "type A = u8;",
            "fn f() { struct A; }",
            "#[cfg(test)] mod tests { struct A; }",
            "thread_local! { struct A; }",
        ] {
            let found = lines(&[("src/a.rs", "\nstruct A;"), ("crates/engine/src/b.rs", text)]);
            assert_eq!(found.len(), 2, "{text}");
            assert_eq!(found[1], "src/a.rs:2: struct A, also in crates/engine/src/b.rs:1");
        }
    }

    #[test]
    fn each_test_file_stands_alone() {
        let (src, one) = ("tests/concurrency/src/a.rs", "tests/concurrency/tests/b.rs");
        let two = "tests/concurrency/tests/c.rs";
        assert_eq!(lines(&[(one, "struct A;"), (two, "struct A;")]), [""; 0]);
        assert_eq!(lines(&[(src, "struct A;"), (two, "struct A;")]).len(), 2);
        assert_eq!(lines(&[(src, "struct A;"), ("bench/src/a.rs", "struct A;")]), [""; 0]);
    }

    #[test]
    fn a_build_has_one_of_several_conditional_types() {
        let text = "#[cfg(a)]\ntype A = u8;\n#[cfg(not(a))]\ntype A = u16;";
        assert_eq!(lines(&[("src/a.rs", text)]), [""; 0]);
        assert_eq!(lines(&[("src/a.rs", text), ("src/b.rs", "struct A;")]).len(), 3);
    }
}
