//! The page on the guarantees names the tests that hold each promise, and each of them is there.

use crate::{Findings, Repository};

const PAGE: &str = "docs/guarantees.md";

/// Rows of the page's tables that name a test that is not in the file named before it.
pub fn check(repository: &Repository) -> Findings {
    let mut findings = Findings::default();
    let page = repository.text(PAGE).unwrap_or_default();
    for (number, line) in page.lines().enumerate().filter(|(_, line)| line.starts_with('|')) {
        let mut file = None;
        for code in line.split('`').skip(1).step_by(2) {
            if code.ends_with(".rs") && code.contains('/') {
                file = Some(code);
            } else if let Some(file) = file.filter(|_| is_test(code)) {
                findings.look_at_one();
                let text = repository.text(file).unwrap_or_default();
                if !text.contains(&format!("fn {code}(")) {
                    findings.add(PAGE, number + 1, format!("{file} has no test {code}"));
                }
            }
        }
    }
    findings
}

/// Whether this is the name of a test: many words.
fn is_test(code: &str) -> bool {
    let is_of_name = |sign: char| sign.is_ascii_lowercase() || "_0123456789".contains(sign);
    code.chars().all(is_of_name) && code.matches('_').count() >= 2
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::Repository;

    fn lines(page: &str) -> Vec<String> {
        let test = ("tests/a.rs", "#[test]\nfn nothing_is_ever_lost() {}");
        check(&Repository::of(&[("docs/guarantees.md", page), test])).lines()
    }

    #[test]
    fn tests_that_are_there_pass() {
        let row = "| loss | `tests/a.rs`: `nothing_is_ever_lost`; `retry_limit` |";
        assert_eq!(lines(row), [""; 0]);
        assert_eq!(lines("| `a_name_without_file` |"), [""; 0]);
        assert_eq!(lines("In `tests/a.rs`: `no_row_of_a_table`."), [""; 0]);
    }

    #[test]
    fn tests_that_are_not_there_fail() {
        let found = lines("\n| loss | `tests/a.rs`: `nothing_is_ever_found` |");
        let expected = "docs/guarantees.md:2: tests/a.rs has no test nothing_is_ever_found";
        assert_eq!(found, [expected]);
        assert_eq!(lines("| `tests/b.rs`: `nothing_is_ever_lost` |").len(), 1);
    }
}
