//! The map in the page on the architecture has one line for each file of the code.

use std::collections::BTreeMap;

use crate::repository::under;
use crate::{Findings, Repository};

const PAGE: &str = "docs/architecture.md";

/// The code that the map covers.
const COVERED: &[&str] = &["src", "crates/engine/src"];

/// What stands beside the directory in the first line of each table of the map.
const HEAD: &str = "what it answers";

/// Files without a line, lines without a file, second lines of one file, and lines that say nothing
/// of their own.
pub fn check(repository: &Repository) -> Findings {
    let mut findings = Findings::default();
    let lines = lines(repository.text(PAGE).unwrap_or_default());
    let (mut by_file, mut by_answer) = (BTreeMap::new(), BTreeMap::new());
    for line in &lines {
        if !repository.has_file(&line.file) {
            findings.add(PAGE, line.number, format!("there is no {}", line.file));
        }
        if let Some(first) = by_file.insert(&line.file, line.number) {
            let what = format!("a second line for {}, beside line {first}", line.file);
            findings.add(PAGE, line.number, what);
        }
        if line.answer.is_empty() {
            findings.add(PAGE, line.number, format!("nothing is said of {}", line.file));
        } else if let Some(other) = by_answer.insert(line.answer, &line.file) {
            let what = format!("{} answers what {other} answers", line.file);
            findings.add(PAGE, line.number, what);
        }
    }
    for (file, _) in repository.rust() {
        if COVERED.iter().any(|directory| under(directory, file)) {
            findings.look_at_one();
            if !by_file.contains_key(&file.to_owned()) {
                findings.add(file, 1, format!("{PAGE} has no line for this file"));
            }
        }
    }
    findings
}

/// A line of the map.
struct MapLine<'a> {
    number: usize,
    file: String,
    answer: &'a str,
}

/// The lines of all tables whose first line names a directory and has [`HEAD`] beside it.
fn lines(page: &str) -> Vec<MapLine<'_>> {
    let mut lines = Vec::new();
    let mut directory = None;
    for (number, line) in page.lines().enumerate() {
        let Some((name, answer)) = cells(line) else {
            // A table ends with the first line that is none of it.
            directory = directory.filter(|_| line.starts_with('|'));
            continue;
        };
        if answer == HEAD {
            directory = Some(name);
        } else if let Some(directory) = directory {
            let file = format!("{}/{name}", directory.trim_end_matches('/'));
            lines.push(MapLine { number: number + 1, file, answer });
        }
    }
    lines
}

/// The name and the rest of a line "| `name` | rest |".
fn cells(line: &str) -> Option<(&str, &str)> {
    let inner = line.strip_prefix("| `")?.strip_suffix('|')?;
    let (name, answer) = inner.split_once("` |")?;
    Some((name, answer.trim()))
}

#[cfg(test)]
mod tests {
    use super::{PAGE, check};
    use crate::Repository;

    /// A page with these tables, in a repository of these files and one more outside of the map.
    fn found(page: &str, files: &[&str]) -> Vec<String> {
        let mut all: Vec<_> = files.iter().map(|file| (*file, "")).collect();
        all.extend([(PAGE, page), ("bench/src/main.rs", "")]);
        check(&Repository::of(&all)).lines()
    }

    const HEADS: [&str; 2] = [
        "| `src/` | what it answers |\n|---|---|",
        "| `crates/engine/src/` | what it answers |\n|---|---|",
    ];

    #[test]
    fn one_line_for_each_file_passes() {
        let [src, engine] = HEADS;
        let page = format!(
            "{src}\n| `lib.rs` | a? |\n| `api/pop.rs` | b, c |\n\n| question | open |\n|---|---|\n\
             | `x.rs` | not in the map |\n\n{engine}\n| `lib.rs` | d |\n"
        );
        let files = ["src/lib.rs", "src/api/pop.rs", "crates/engine/src/lib.rs"];
        assert_eq!(found(&page, &files), [""; 0]);
    }

    #[test]
    fn files_without_a_line_fail() {
        let page = format!("{}\n| `lib.rs` | a |\n", HEADS[0]);
        let files = ["src/lib.rs", "src/api/lib.rs", "crates/engine/src/pop.rs"];
        let expected = [
            "crates/engine/src/pop.rs:1: docs/architecture.md has no line for this file",
            "src/api/lib.rs:1: docs/architecture.md has no line for this file",
        ];
        assert_eq!(found(&page, &files), expected);
        assert_eq!(found("", &files[..1]).len(), 1);
    }

    #[test]
    fn lines_without_a_file_of_their_own_fail() {
        let map = |lines: &str| format!("{}\n| `lib.rs` | a |\n{lines}\n", HEADS[0]);
        for (line, what) in [
            ("| `api/pop.rs` | b |", "there is no src/api/pop.rs"),
            ("| `api` | b |", "there is no src/api"),
            ("| `lib.rs` | b |", "a second line for src/lib.rs, beside line 3"),
            ("| `api/push.rs` |  |", "nothing is said of src/api/push.rs"),
            ("| `api/push.rs` | a |", "src/api/push.rs answers what src/lib.rs answers"),
        ] {
            let found = found(&map(line), &["src/lib.rs", "src/api/push.rs"]);
            let expected = format!("docs/architecture.md:4: {what}");
            assert!(found.contains(&expected), "{line}: {found:?}");
        }
    }
}
