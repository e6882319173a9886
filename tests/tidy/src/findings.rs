//! What a rule has found.

use std::collections::BTreeSet;

/// The violations of one rule, in the order of files and lines, and how many files it looked at.
#[derive(Default)]
pub struct Findings {
    looked_at: usize,
    violations: BTreeSet<(String, usize, String)>,
}

impl Findings {
    pub(crate) fn look_at_one(&mut self) {
        self.looked_at += 1;
    }

    pub(crate) fn add(&mut self, file: &str, line: usize, what: impl Into<String>) {
        self.violations.insert((file.to_owned(), line, what.into()));
    }

    /// One `file:line: what` for each violation.
    pub fn lines(&self) -> Vec<String> {
        let line = |(file, line, what): &(String, usize, String)| format!("{file}:{line}: {what}");
        self.violations.iter().map(line).collect()
    }

    /// Panics unless the rule looked at this many files and found nothing in them. A rule that
    /// looked at fewer has lost sight of what it is for.
    pub fn verify(&self, at_least: usize) {
        let Self { looked_at, violations } = self;
        assert!(*looked_at >= at_least, "looked at {looked_at} files instead of {at_least}");
        let lines = self.lines().join("\n");
        assert!(violations.is_empty(), "{} violations:\n{lines}", violations.len());
    }
}

#[cfg(test)]
mod tests {
    use super::Findings;

    fn one() -> Findings {
        let mut findings = Findings::default();
        findings.look_at_one();
        findings
    }

    #[test]
    fn files_without_violations_pass() {
        one().verify(1);
    }

    #[test]
    #[should_panic(expected = "looked at 1 files instead of 2")]
    fn too_few_files_fail() {
        one().verify(2);
    }

    #[test]
    #[should_panic(expected = "2 violations:\na.rs:2: late\na.rs:10: later")]
    fn violations_fail_in_their_order() {
        let mut findings = one();
        findings.add("a.rs", 10, "later");
        findings.add("a.rs", 2, "late");
        findings.verify(1);
    }
}
