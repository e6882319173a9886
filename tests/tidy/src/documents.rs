//! What a comment or a page refers to stands in the repository.

use crate::prose::{self, Prose};
use crate::{Findings, Repository};

/// Documents of which no part is in the repository, by the words that refer to them.
const ELSEWHERE: &[&str] = &["DESIGN", "HOUSE", "fine print"];

/// The kinds of files that are named without a directory as well.
const KINDS: &[&str] = &["md", "rs", "sql", "sh", "toml", "spec", "awk", "svg"];

/// Files that comments and pages name, and that do not exist.
pub fn check(repository: &Repository) -> Findings {
    let mut findings = Findings::default();
    for (file, source) in repository.files() {
        findings.look_at_one();
        for text in prose::of(file, source) {
            look_at(repository, file, &text, &mut findings);
        }
    }
    findings
}

fn look_at(repository: &Repository, file: &str, prose: &Prose, findings: &mut Findings) {
    for (at, name) in file_names(&prose.text) {
        let name = name.trim_start_matches("./").trim_end_matches('/');
        if names_a_file(repository, name) && !exists(repository, file, name) {
            findings.add(file, prose.line_at(at), format!("there is no {name}"));
        }
    }
    for words in ELSEWHERE {
        for at in occurrences(&prose.text, words) {
            findings.add(file, prose.line_at(at), format!("\"{words}\" is not in the repository"));
        }
    }
}

/// Whatever could be the name of a file, with its place.
fn file_names(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let place = |word: &str| word.as_ptr() as usize - text.as_ptr() as usize;
    let whole_words = text.split_whitespace().filter(|word| !word.contains("://"));
    let pieces =
        whole_words.flat_map(|word| word.split(|sign| "()[]<>{},;:\"'`|=#".contains(sign)));
    let trimmed = pieces.map(|piece| piece.trim_end_matches(['.', '!', '?', '*', '’', '”']));
    trimmed.map(move |piece| (place(piece), piece))
}

/// Whether it is the name of a file here: of a kind that is in use here, or below a directory of
/// the repository's root. Names with placeholders are not.
fn names_a_file(repository: &Repository, name: &str) -> bool {
    let plain = |sign: char| sign.is_ascii_alphanumeric() || "_-./".contains(sign);
    if name.starts_with(['/', '-']) || !name.chars().all(plain) {
        return false;
    }
    let (directory, last) = name.rsplit_once('/').unwrap_or(("", name));
    let of_a_kind = last.rsplit_once('.').is_some_and(|(stem, kind)| {
        let placeholder = stem.chars().all(|sign| sign.is_ascii_uppercase()) && kind != "md";
        !stem.is_empty() && !placeholder && KINDS.contains(&kind)
    });
    let root = directory.split('/').next().unwrap_or("");
    let below_root = !root.is_empty() && root != ".." && repository.has(root);
    let built = root == "target";
    !built && (of_a_kind || below_root)
}

/// Whether it is there: seen from the file that names it, from the root, or as the end of a path.
fn exists(repository: &Repository, file: &str, name: &str) -> bool {
    let directory = file.rsplit_once('/').map_or("", |(directory, _)| directory);
    let near = joined(directory, name).is_some_and(|path| repository.has(&path));
    near || repository.has_end(name)
}

/// A relative path from a directory, if it does not leave the repository.
pub(crate) fn joined(directory: &str, relative: &str) -> Option<String> {
    let mut path: Vec<_> = directory.split('/').filter(|part| !part.is_empty()).collect();
    for part in relative.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                path.pop()?;
            }
            other => path.push(other),
        }
    }
    Some(path.join("/"))
}

/// Where the words stand, whatever white space is between them. Capitals count.
fn occurrences<'a>(text: &'a str, words: &'a str) -> impl Iterator<Item = usize> + 'a {
    let wanted: Vec<_> = words.split(' ').collect();
    let place = |word: &str| word.as_ptr() as usize - text.as_ptr() as usize;
    let found: Vec<_> = text
        .split(|sign: char| !sign.is_alphanumeric() && sign != '_')
        .filter(|word| !word.is_empty())
        .map(|word| (place(word), word))
        .collect();
    let windows = found.windows(wanted.len());
    let matching = windows.filter(|window| {
        let words = window.iter().map(|(_, word)| *word);
        words.eq(wanted.iter().copied())
    });
    matching.map(|window| window[0].0).collect::<Vec<_>>().into_iter()
}

#[cfg(test)]
mod tests {
    use super::{check, joined};
    use crate::Repository;

    fn lines(file: &str, text: &str) -> Vec<String> {
        let others = ["docs/a/pop.md", "src/api/pop.rs", "scripts/setup.sh", "Cargo.toml"];
        let mut files: Vec<_> = others.iter().map(|path| (*path, "")).collect();
        files.push((file, text));
        check(&Repository::of(&files)).lines()
    }

    #[test]
    fn what_exists_passes_however_it_is_named() {
        for text in [
            "// See docs/a/pop.md, `pop.md` and (api/pop.rs).",
            "// In src/api/: pop.rs; in `src/api`.",
            "// See [the page](docs/a/pop.md#begin), or Cargo.toml.",
            "// Of another project: src/backend.c? https://a.b/c.md, /etc/a.md, ~/a.md, a/b.",
            "// A placeholder: sql/NAME.sql, sql/a--*.sql; built: target/a.sql. File::md.",
        ] {
            let text = text.replace("src/backend.c", "include/backend.c");
            assert_eq!(lines("src/lib.rs", &text), [""; 0], "{text}");
        }
        assert_eq!(lines("docs/b.md", "[a](a/pop.md) ../scripts/setup.sh"), [""; 0]);
    }

    #[test]
    fn what_does_not_exist_fails() {
        for name in ["API.md", "docs/API.md", "push.rs", "src/api/push", "src/push/", "a/push.sql"]
        {
            let expected = format!("there is no {}", name.trim_end_matches('/'));
            for (file, text) in [
                ("src/lib.rs", format!("\n/// See `{name}`.\nfn f() {{}}")),
                ("src/lib.rs", format!("\n// See {name}.")),
                ("docs/a.md", format!("\n(See {name}.)")),
                ("scripts/a.sh", format!("\n# See {name}.")),
                ("sql/a.sql", format!("\n-- See {name}.")),
            ] {
                assert_eq!(lines(file, &text), [format!("{file}:2: {expected}")], "{text}");
            }
        }
    }

    #[test]
    fn documents_from_elsewhere_fail() {
        let found = lines("src/lib.rs", "// As DESIGN says.\n\n// In the fine\n// print.");
        let expected = [
            "src/lib.rs:1: \"DESIGN\" is not in the repository",
            "src/lib.rs:3: \"fine print\" is not in the repository",
        ];
        assert_eq!(found, expected);
        assert_eq!(lines("src/lib.rs", "// A design. Fine, print it."), [""; 0]);
    }

    #[test]
    fn relative_paths_stay_inside() {
        assert_eq!(joined("docs/a", "../b.md"), Some("docs/b.md".to_owned()));
        assert_eq!(joined("docs", "../../b.md"), None);
    }
}
