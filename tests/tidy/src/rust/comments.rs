//! The comments and the strings of a Rust file.

use std::ops::Range;

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::Lit;

use crate::prose::{Prose, without_fences};

/// The comments, those of neighbouring lines as one. Fenced code in them is left out.
pub(super) fn comments(text: &str, tokens: TokenStream) -> Vec<Prose> {
    let mut ranges = Vec::new();
    collect_ranges(tokens, &mut ranges);
    ranges.push(text.len()..text.len());

    let mut collected = Collected { text, blocks: Vec::new() };
    let mut end = 0;
    for range in ranges {
        if range.start >= end {
            collected.between_tokens(end..range.start);
            if text[range.clone()].starts_with("//") || text[range.clone()].starts_with("/*") {
                collected.add(range.clone());
            }
        }
        end = end.max(range.end);
    }
    let whole = |block: Block| Prose { line: block.first, text: without_fences(&block.text) };
    collected.blocks.into_iter().map(whole).collect()
}

/// Where each token stands. A comment of documentation is several tokens of one place.
fn collect_ranges(tokens: TokenStream, ranges: &mut Vec<Range<usize>>) {
    for tree in tokens {
        match tree {
            TokenTree::Group(group) => {
                ranges.push(group.span_open().byte_range());
                collect_ranges(group.stream(), ranges);
                ranges.push(group.span_close().byte_range());
            }
            other => ranges.push(other.span().byte_range()),
        }
    }
}

/// Comment lines under each other, without their marks.
struct Block {
    first: usize,
    last: usize,
    marker: &'static str,
    /// It begins its line, so that it may go on in the next one.
    alone: bool,
    text: String,
}

struct Collected<'a> {
    text: &'a str,
    blocks: Vec<Block>,
}

impl Collected<'_> {
    fn between_tokens(&mut self, range: Range<usize>) {
        let mut at = range.start;
        while let Some(found) = self.text[at..range.end].find('/') {
            let start = at + found;
            let end = comment_end(&self.text[start..range.end]) + start;
            self.add(start..end);
            at = end;
        }
    }

    fn add(&mut self, range: Range<usize>) {
        let comment = &self.text[range.clone()];
        let before = &self.text[..range.start];
        let line = before.matches('\n').count() + 1;
        let alone = before.lines().last().is_none_or(|code| code.trim().is_empty())
            || before.ends_with('\n');
        let (marker, text) = stripped(comment);
        if let Some(block) = self.blocks.last_mut()
            && (block.alone && alone && block.marker == marker && block.last + 1 == line)
        {
            block.text.push('\n');
            block.text.push_str(&text);
            block.last = line + text.matches('\n').count();
            return;
        }
        let last = line + text.matches('\n').count();
        self.blocks.push(Block { first: line, last, marker, alone, text });
    }
}

/// Where the comment ends with which a text begins.
fn comment_end(text: &str) -> usize {
    if text.starts_with("//") {
        return text.find('\n').unwrap_or(text.len());
    }
    let mut depth = 0;
    let bytes = text.as_bytes();
    let mut at = 0;
    while at + 1 < bytes.len() {
        match &bytes[at..at + 2] {
            b"/*" => depth += 1,
            b"*/" => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

/// The mark of a comment, and its text, line by line.
fn stripped(comment: &str) -> (&'static str, String) {
    for marker in ["///", "//!", "//"] {
        if let Some(text) = comment.strip_prefix(marker) {
            return (marker, text.trim_end().to_owned());
        }
    }
    let text = comment.trim_start_matches(['/', '*', '!']).trim_end_matches(['/', '*']);
    let star = |line: &str| {
        let line = line.trim();
        line.strip_prefix('*').unwrap_or(line).to_owned()
    };
    ("/*", text.split('\n').map(star).collect::<Vec<_>>().join("\n"))
}

/// The values of all strings but those of documentation.
pub(super) fn strings(tokens: TokenStream) -> Vec<Prose> {
    let mut strings = Vec::new();
    collect_strings(tokens, &mut strings);
    strings
}

fn collect_strings(tokens: TokenStream, strings: &mut Vec<Prose>) {
    for tree in tokens {
        match tree {
            TokenTree::Group(group) if is_documentation(&group) => {}
            TokenTree::Group(group) => collect_strings(group.stream(), strings),
            TokenTree::Literal(literal) => {
                let line = literal.span().start().line;
                let text = match Lit::new(literal) {
                    Lit::Str(text) => text.value(),
                    Lit::ByteStr(text) => String::from_utf8_lossy(&text.value()).into_owned(),
                    Lit::CStr(text) => text.value().to_string_lossy().into_owned(),
                    _ => continue,
                };
                strings.push(Prose { line, text });
            }
            _ => {}
        }
    }
}

/// `[doc = "…"]`, as which the parser sees a comment of documentation.
fn is_documentation(group: &proc_macro2::Group) -> bool {
    let mut inside = group.stream().into_iter();
    group.delimiter() == Delimiter::Bracket
        && matches!(inside.next(), Some(TokenTree::Ident(name)) if name == "doc")
        && matches!(inside.next(), Some(TokenTree::Punct(sign)) if sign.as_char() == '=')
}

#[cfg(test)]
mod tests {
    use crate::rust::Rust;

    fn comments(text: &str) -> Vec<(usize, String)> {
        let rust = Rust::read(text).expect("Rust that can be read");
        rust.comments.into_iter().map(|prose| (prose.line, prose.text)).collect()
    }

    #[test]
    fn comments_of_each_kind_are_found_at_their_lines() {
        let text = "//! Of the file.\n\n/// Of the item.\nfn f() {\n\
            // Of\n// two lines.\ng(); // At the end.\n// Apart.\n\
            /* A\n * block. */\n}\n// Last.";
        let expected = [
            (1, " Of the file."),
            (3, " Of the item."),
            (5, " Of\n two lines."),
            (7, " At the end."),
            (8, " Apart."),
            (9, "A\n block."),
            (12, " Last."),
        ];
        assert_eq!(comments(text), expected.map(|(line, text)| (line, text.to_owned())));
    }

    #[test]
    fn what_only_looks_like_a_comment_is_none() {
        let text = "const A: &str = \"// no\";\nconst B: &str = r#\"/* \" no */\"#;\n\
            const C: char = '/'; const D: u8 = b'/'; fn f<'a>(x: &'a u8) -> u8 { x / 2 / 3 }";
        assert_eq!(comments(text), []);
    }

    #[test]
    fn text_outside_ascii_moves_nothing() {
        let text = "const A: &str = \"äöü …\"; // Ends – here.\n// Next.";
        let expected = [(1, " Ends – here.".to_owned()), (2, " Next.".to_owned())];
        assert_eq!(comments(text), expected);
    }

    #[test]
    fn strings_are_found_in_macros_and_documentation_is_none() {
        let text = "/// A \"comment\".\nfn f() {\n\
            g!(\"one\", [r\"two\"]);\nh(b\"three\");\n}";
        let rust = Rust::read(text).expect("Rust that can be read");
        let found = rust.strings.iter().map(|text| (text.line, &text.text[..]));
        let strings: Vec<_> = found.collect();
        assert_eq!(strings, [(3, "one"), (3, "two"), (4, "three")]);
    }
}
