//! The links of the pages lead somewhere.

use std::collections::BTreeSet;

use crate::documents::joined;
use crate::prose::{Prose, without_fences};
use crate::{Findings, Repository};

/// Links of pages to files and headings that do not exist.
pub fn check(repository: &Repository) -> Findings {
    let mut findings = Findings::default();
    for (file, source) in repository.files().filter(|(file, _)| file.ends_with(".md")) {
        findings.look_at_one();
        let page = Prose { line: 1, text: without_code(&source.text) };
        for (at, target) in targets(&page.text) {
            if let Some(fault) = fault(repository, file, target) {
                findings.add(file, page.line_at(at), fault);
            }
        }
    }
    findings
}

/// The page with all code in it blanked.
fn without_code(page: &str) -> String {
    let text = without_fences(page);
    let mut inside = false;
    let blank = |sign: char| {
        if sign == '`' {
            inside = !inside;
        }
        // A quotation that is never closed ends with its paragraph's line at the latest.
        if sign == '\n' {
            inside = false;
        }
        if inside || sign == '`' { ' ' } else { sign }
    };
    text.chars().map(blank).collect()
}

/// What `](…)`, `]: …` and `<a href="…">` lead to.
fn targets(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let starts = [("](", ")"), ("]: ", "\n"), ("href=\"", "\""), ("src=\"", "\"")];
    starts.into_iter().flat_map(move |(start, end)| {
        text.match_indices(start).map(move |(at, _)| {
            let rest = &text[at + start.len()..];
            let target = rest.split(end).next().unwrap_or("");
            // A title may follow.
            (at, target.split_whitespace().next().unwrap_or(""))
        })
    })
}

fn fault(repository: &Repository, file: &str, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let directory = file.rsplit_once('/').map_or("", |(directory, _)| directory);
    let found = if path.is_empty() { Some(file.to_owned()) } else { joined(directory, path) };
    let Some(found) = found.filter(|found| repository.has(found)) else {
        return Some(format!("a link to {target}: there is no such file"));
    };
    let page = repository.text(&found).unwrap_or("");
    let known = anchor.is_empty() || !found.ends_with(".md") || anchors(page).contains(anchor);
    (!known).then(|| format!("a link to {target}: there is no such heading"))
}

/// The anchors that GitHub gives the headings of a page, and those it has of its own.
fn anchors(page: &str) -> BTreeSet<String> {
    let text = without_fences(page);
    let mut anchors = BTreeSet::new();
    for line in text.lines() {
        let title = line.trim_start_matches('#');
        let depth = line.len() - title.len();
        if (1..=6).contains(&depth) && title.starts_with(' ') {
            let slug = slug(title);
            let numbered = (1..).map(|number| format!("{slug}-{number}"));
            let free = std::iter::once(slug.clone()).chain(numbered).find(|s| !anchors.contains(s));
            anchors.extend(free);
        }
        for mark in ["id=\"", "name=\""] {
            let named = line.split(mark).skip(1).filter_map(|rest| rest.split('"').next());
            anchors.extend(named.map(str::to_owned));
        }
    }
    anchors
}

fn slug(title: &str) -> String {
    let text = title.trim().trim_end_matches('#').trim_end().to_lowercase();
    // Of a link in a heading only its text counts.
    let mut plain = String::new();
    let mut rest = &text[..];
    while let Some((before, after)) = rest.split_once("](") {
        plain.push_str(before);
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    plain.push_str(rest);
    let kept = plain.chars().filter(|sign| sign.is_alphanumeric() || " -_".contains(*sign));
    kept.map(|sign| if sign == ' ' { '-' } else { sign }).collect()
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::Repository;

    fn lines(text: &str) -> Vec<String> {
        let other = "# The `queue_mode`, in short\n## Twice\n## Twice\n<a id=\"own\"></a>\n\
            ```sh\n# not a heading\n```\n## [A link](#own) – dash";
        let files = [("docs/a.md", text), ("docs/r/b.md", other), ("docs/c.svg", "")];
        check(&Repository::of(&files)).lines()
    }

    #[test]
    fn links_that_lead_somewhere_pass() {
        for text in [
            "# Here\n[a](#here) [b](r/b.md) [c](r/) [d](../docs/c.svg) ![e](c.svg \"title\")",
            "[a](r/b.md#the-queue_mode-in-short) [b](r/b.md#twice-1) [c](r/b.md#own)",
            "[a](r/b.md#a-link--dash) [b](https://a.b/c.md#d) [c](mailto:a@b.c)",
            "```\n[a](x.md)\n```\n`[b](y.md)`",
            "[a][1]\n\n[1]: r/b.md#twice\n",
        ] {
            assert_eq!(lines(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn links_that_lead_nowhere_fail() {
        for (target, what) in [
            ("b.md", "file"),
            ("r/c.md#twice", "file"),
            ("../../b.md", "file"),
            ("#there", "heading"),
            ("r/b.md#twice-2", "heading"),
            ("r/b.md#not-a-heading", "heading"),
            ("r/b.md#Twice", "heading"),
        ] {
            let expected = format!("docs/a.md:2: a link to {target}: there is no such {what}");
            for text in [
                format!("\n[a]({target})"),
                format!("\n[a]: {target}"),
                format!("\n<a href=\"{target}\">a</a>"),
            ] {
                assert_eq!(lines(&text), [&expected[..]], "{text}");
            }
        }
    }
}
