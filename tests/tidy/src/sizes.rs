//! A file, a function and a line that fit a reader.

use crate::{Findings, Repository};

const FILE_LINES: usize = 400;
const FUNCTION_LINES: usize = 70;
const LINE_CHARACTERS: usize = 100;

/// Rust files, functions and lines that are too long.
pub fn check(repository: &Repository) -> Findings {
    let mut findings = Findings::default();
    for (file, rust) in repository.rust() {
        findings.look_at_one();
        let text = repository.text(file).unwrap_or_default();
        let length = text.lines().count();
        if length > FILE_LINES {
            findings.add(file, 1, format!("a file of {length} lines"));
        }
        for (number, line) in text.lines().enumerate() {
            let length = line.chars().count();
            if length > LINE_CHARACTERS {
                findings.add(file, number + 1, format!("a line of {length} characters"));
            }
        }
        for function in &rust.functions {
            let length = function.last_line - function.line + 1;
            if length > FUNCTION_LINES {
                let what = format!("fn {} of {length} lines", function.name);
                findings.add(file, function.line, what);
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::Repository;

    fn lines(text: &str) -> Vec<String> {
        check(&Repository::of(&[("bench/src/a.rs", text)])).lines()
    }

    /// A function of this many lines, inside something.
    fn function(lines: usize, before: &str, after: &str) -> String {
        format!("{before}\nfn f() {{\n{}}}\n{after}", "    g();\n".repeat(lines - 2))
    }

    #[test]
    fn files_of_400_lines_pass_and_longer_ones_fail() {
        assert_eq!(lines(&"//\n".repeat(400)), [""; 0]);
        assert_eq!(lines(&"//\n".repeat(401)), ["bench/src/a.rs:1: a file of 401 lines"]);
    }

    #[test]
    fn lines_of_100_characters_pass_and_longer_ones_fail() {
        assert_eq!(lines(&format!("// {}", "ä".repeat(97))), [""; 0]);
        let found = lines(&format!("\n// {}", "ä".repeat(98)));
        assert_eq!(found, ["bench/src/a.rs:2: a line of 101 characters"]);
    }

    #[test]
    fn functions_of_70_lines_pass_and_longer_ones_fail() {
        for (before, after) in [
            ("", ""),
            ("impl A {", "}"),
            ("trait A {", "}"),
            ("#[cfg(test)] mod tests {", "}"),
            ("fn outer() { g!({", "}) }"),
            ("macro_rules! m { () => {", "} }"),
        ] {
            assert_eq!(lines(&function(68, before, after)), [""; 0], "{before}");
            let found = lines(&function(71, before, after));
            let expected = "bench/src/a.rs:2: fn f of 71 lines";
            assert!(found.iter().any(|line| line == expected), "{before}: {found:?}");
        }
        assert_eq!(lines(&function(70, "", "")), [""; 0]);
    }
}
