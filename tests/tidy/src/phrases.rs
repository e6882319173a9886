//! Words that hide who does what.

use crate::prose::{self, Prose};
use crate::repository::under;
use crate::{Findings, Repository};

/// Say who it is: the pushing transaction, the holder of the lease, the worker.
const NOT_NAMED: &[&str] = &[
    "somebody",
    "someone",
    "nobody",
    "anybody",
    "anyone",
    "everybody",
    "everyone",
    "whoever",
    "whomever",
];

/// The strings of this crate are its own examples.
const EXAMPLES: &str = "tests/tidy";

/// Actors without a name, and sentences that lean on their neighbour, in comments, pages and the
/// strings of Rust code.
pub fn check(repository: &Repository) -> Findings {
    let mut findings = Findings::default();
    for (file, source) in repository.files() {
        findings.look_at_one();
        for text in prose::of(file, source) {
            look_at(file, &text, &mut findings);
        }
        if !under(EXAMPLES, file) {
            let strings = source.rust.iter().flat_map(|rust| &rust.strings);
            strings.for_each(|text| look_at(file, text, &mut findings));
        }
    }
    findings
}

fn look_at(file: &str, prose: &Prose, findings: &mut Findings) {
    let words: Vec<_> = words(&prose.text).collect();
    for (position, (at, word)) in words.iter().enumerate() {
        let word = word.to_lowercase();
        if NOT_NAMED.contains(&&word[..]) {
            findings.add(file, prose.line_at(*at), format!("\"{word}\": name who it is"));
        }
        let next = words.get(position + 1).map(|(_, next)| next.to_lowercase());
        if word == "the" && next.as_deref() == Some("same") && begins_sentence(&prose.text, *at) {
            let what = "a sentence begins with \"The same\": say what it is";
            findings.add(file, prose.line_at(*at), what);
        }
    }
}

/// The words, each with its place. A name with underscores is one.
fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let pieces = text.split(|sign: char| !sign.is_alphanumeric() && sign != '_');
    let placed = pieces.map(|word| (word.as_ptr() as usize - text.as_ptr() as usize, word));
    placed.filter(|(_, word)| !word.is_empty())
}

/// Whether what stands at this place is the first word of a sentence, a paragraph, an item of a
/// list or a cell of a table.
fn begins_sentence(text: &str, at: usize) -> bool {
    let marks: &[char] = &['*', '_', '"', '\'', '(', '[', '`', '“', '‘'];
    let before = text[..at].trim_end_matches(marks);
    let blank = |line: &str| line.trim().is_empty();
    let gap = &before[before.trim_end().len()..];
    let before = before.trim_end();
    let line = before.rsplit('\n').next().unwrap_or("").trim();
    let capital = text[at..].starts_with('T');
    let item = !line.is_empty()
        && !gap.contains('\n')
        && line
            .trim_end_matches('.')
            .chars()
            .all(|sign| "-*+#>".contains(sign) || sign.is_numeric());
    let heading = line.starts_with('#') && gap.contains('\n');
    if heading || blank(before) || gap.matches('\n').count() > 1 || item || line.ends_with('|') {
        return true;
    }
    let end = before.trim_end_matches(['*', '_', '"', '\'', ')', ']', '`', '”', '’']);
    let shortened = ["e.g.", "i.e.", "etc.", "cf."].iter().any(|short| end.ends_with(short));
    !gap.is_empty()
        && !shortened
        && (end.ends_with(['.', '!', '?']) || (capital && end.ends_with(':')))
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::Repository;

    fn lines(file: &str, text: &str) -> Vec<String> {
        check(&Repository::of(&[(file, text)])).lines()
    }

    #[test]
    fn actors_without_a_name_fail_in_comments_pages_and_strings() {
        for word in ["somebody", "Nobody", "whoever", "ANYBODY", "everybody", "someone"] {
            for (file, text) in [
                ("a.rs", format!("\n// What {word}'s lease holds.")),
                ("a.rs", format!("\n/// What {word} holds.\nfn f() {{}}")),
                ("a.rs", format!("\nconst A: &str = \"held by {word}\";")),
                ("a.rs", format!("fn f() {{\ng!(\"held by {word}\") }}")),
                ("a.sql", format!("\n-- {word} holds it.")),
                ("sql/a.sql", format!("\nCOMMENT ON TABLE a IS 'What {word} holds.';")),
                ("a.sh", format!("\n# {word} holds it.")),
                ("a.toml", format!("\n# {word} holds it.")),
                ("a.md", format!("Held\nby {word}.")),
            ] {
                let found = lines(file, &text);
                assert_eq!(found.len(), 1, "{text}: {found:?}");
                assert!(found[0].starts_with(&format!("{file}:2: \"")), "{text}: {found:?}");
            }
        }
    }

    #[test]
    fn names_and_fenced_code_pass() {
        assert_eq!(lines("a.md", "`nobody_waits`\n```sql\nSELECT 'nobody';\n```\n"), [""; 0]);
        assert_eq!(lines("a.rs", "// The worker.\nfn nobody() { nobody(); }"), [""; 0]);
        assert_eq!(lines("a.sql", "SELECT 'nobody';"), [""; 0]);
        assert_eq!(lines("tests/tidy/src/a.rs", "const A: &str = \"nobody\";"), [""; 0]);
        assert_eq!(lines("tests/tidy/src/a.rs", "// nobody").len(), 1);
    }

    #[test]
    fn sentences_that_begin_with_the_same_fail() {
        for (file, text) in [
            ("a.rs", "\n// The same for reads."),
            ("a.rs", "\n// the same for reads."),
            ("a.rs", "// It locks. (It\n// waits.) The\n// same for reads."),
            ("a.rs", "\nconst A: &str = \"The same for reads.\";"),
            ("a.md", "# Title\n**The same** for reads."),
            ("a.md", "\n- The same for reads."),
            ("a.md", "\n1. The same for reads."),
            ("a.md", "\n| a | The same |"),
            ("a.md", "Two things:\nThe same for reads."),
            ("a.md", "It says \"no.\"\nThe same for reads."),
        ] {
            let found = lines(file, text);
            assert_eq!(found.len(), 1, "{text}: {found:?}");
            assert!(found[0].starts_with(&format!("{file}:2: a sentence")), "{text}: {found:?}");
        }
    }

    #[test]
    fn the_same_inside_a_sentence_passes() {
        for text in [
            "// Under\n// the same lock.",
            "// It takes (the same) lock.",
            "// One of them, e.g. the same one.",
            "// In this order: the same as before.",
            "// The sameness.",
        ] {
            assert_eq!(lines("a.rs", text), [""; 0], "{text}");
        }
    }
}
