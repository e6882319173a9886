//! The prose of a file: what stands in its comments, or the whole of a page.

use crate::repository::Source;

/// Text for a reader, with its line breaks.
#[derive(Debug)]
pub(crate) struct Prose {
    pub line: usize,
    pub text: String,
}

impl Prose {
    pub(crate) fn line_at(&self, offset: usize) -> usize {
        self.line + self.text[..offset].matches('\n').count()
    }
}

/// The comments of code, of any language in use here, and the whole of a page but its fenced code.
pub(crate) fn of(path: &str, source: &Source) -> Vec<Prose> {
    if let Some(rust) = &source.rust {
        let copied = |prose: &Prose| Prose { line: prose.line, text: prose.text.clone() };
        return rust.comments.iter().map(copied).collect();
    }
    let name = path.rsplit('/').next().unwrap_or(path);
    match name.rsplit_once('.').map_or("", |(_, extension)| extension) {
        "md" => vec![Prose { line: 1, text: without_fences(&source.text) }],
        "sql" => sql_prose(&source.text, path.starts_with("sql/")),
        "sh" | "toml" | "spec" | "awk" | "control" => hash_comments(&source.text),
        _ if name == "Makefile" || source.text.starts_with("#!") => hash_comments(&source.text),
        _ => Vec::new(),
    }
}

/// The text with its fenced code emptied, line by line.
pub(crate) fn without_fences(text: &str) -> String {
    let mut fence: Option<&str> = None;
    let mut lines = Vec::new();
    for line in text.split('\n') {
        let trimmed = line.trim_start();
        let opening = ["```", "~~~"].into_iter().find(|mark| trimmed.starts_with(mark));
        match (fence, opening) {
            (None, None) => lines.push(line),
            (None, Some(mark)) => {
                fence = Some(mark);
                lines.push("");
            }
            (Some(open), mark) => {
                if mark == Some(open) {
                    fence = None;
                }
                lines.push("");
            }
        }
    }
    lines.join("\n")
}

/// Adds a comment line, to the comment before it if that is the whole of the line above.
fn add_line(blocks: &mut Vec<(Prose, bool)>, line: usize, alone: bool, text: &str) {
    if let Some((last, true)) = blocks.last_mut()
        && alone
        && last.line_at(last.text.len()) + 1 == line
    {
        last.text.push('\n');
        last.text.push_str(text);
    } else {
        blocks.push((Prose { line, text: text.to_owned() }, alone));
    }
}

/// Comments from a `#` that no open quotation mark precedes on its line.
fn hash_comments(text: &str) -> Vec<Prose> {
    let mut blocks = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let start = line.char_indices().find(|(at, sign)| {
            let before = &line[..*at];
            *sign == '#'
                && (before.is_empty() || before.ends_with([' ', '\t']))
                && !line[*at..].starts_with("#!")
                && ['"', '\''].iter().all(|mark| before.matches(*mark).count().is_multiple_of(2))
        });
        if let Some((at, _)) = start {
            let alone = line[..at].trim().is_empty();
            add_line(&mut blocks, number + 1, alone, line[at..].trim_start_matches('#'));
        }
    }
    blocks.into_iter().map(|(prose, _)| prose).collect()
}

/// Comments, also those in the bodies of functions, and the strings if they are asked for: in the
/// install script they are what users read as descriptions.
fn sql_prose(text: &str, with_strings: bool) -> Vec<Prose> {
    let mut blocks = Vec::new();
    let mut at = 0;
    while let Some(found) = text[at..].find(['-', '/', '\'', '"']) {
        let start = at + found;
        let rest = &text[start..];
        let line = text[..start].matches('\n').count() + 1;
        let before = text[..start].rsplit('\n').next().unwrap_or("");
        let until = |end: &str, from: usize| rest[from..].find(end).map(|found| from + found);
        if let Some(comment) = rest.strip_prefix("--") {
            let comment = comment.lines().next().unwrap_or("");
            add_line(&mut blocks, line, before.trim().is_empty(), comment);
            at = start + 2 + comment.len();
        } else if rest.starts_with("/*") {
            let end = until("*/", 2).unwrap_or(rest.len());
            add_line(&mut blocks, line, false, &rest[2..end]);
            at = (start + end + 2).min(text.len());
        } else if rest.starts_with('\'') {
            let end = until("'", 1).unwrap_or(rest.len());
            if with_strings {
                add_line(&mut blocks, line, false, &rest[1..end]);
            }
            at = (start + end + 1).min(text.len());
        } else if rest.starts_with('"') {
            at = (start + until("\"", 1).unwrap_or(rest.len()) + 1).min(text.len());
        } else {
            at = start + 1;
        }
    }
    blocks.into_iter().map(|(prose, _)| prose).collect()
}

#[cfg(test)]
mod tests {
    use super::of;
    use crate::Repository;

    fn prose(path: &str, text: &str) -> Vec<(usize, String)> {
        let repository = Repository::of(&[(path, text)]);
        let found = repository.files().flat_map(|(path, source)| of(path, source));
        found.map(|prose| (prose.line, prose.text)).collect()
    }

    #[test]
    fn a_page_is_prose_but_for_its_fences() {
        let text = "One.\n\n```sql\nSELECT 1;\n```\nTwo.";
        assert_eq!(prose("docs/a.md", text), [(1, "One.\n\n\n\n\nTwo.".to_owned())]);
    }

    #[test]
    fn scripts_have_their_comments() {
        let text = "#!/bin/sh\n# One\n# and two.\necho '# no' \"${#list[@]}\" # End.\n";
        let expected = [(2, " One\n and two.".to_owned()), (4, " End.".to_owned())];
        assert_eq!(prose("scripts/a.sh", text), expected);
        assert_eq!(prose(".ci/run", text), expected);
        assert_eq!(prose("a.txt", "# no"), []);
    }

    #[test]
    fn sql_has_its_comments_and_the_install_script_its_strings() {
        let text =
            "-- One\n-- two.\nSELECT '-- no', \"--\", $$ 1 - 2 -- in\n$$; /* Last */ SELECT 1;";
        let comments = [(1, " One\n two."), (3, " in"), (4, " Last ")];
        let comments = comments.map(|(line, text)| (line, text.to_owned()));
        assert_eq!(prose("tests/sql/a.sql", text), comments);
        let strings = prose("sql/a.sql", text);
        assert!(strings.contains(&(3, "-- no".to_owned())), "{strings:?}");
        assert_eq!(strings.len(), 4);
    }
}
