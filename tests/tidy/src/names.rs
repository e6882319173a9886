//! One word for one thing, in the names of modules and functions.

use crate::repository::under;
use crate::{Findings, Repository};

/// How a part of a name may not begin, and the word to use.
const WORDS: &[(&str, &str)] =
    &[("sift", "pop, or scan for the search through messages"), ("taking", "pop")];

/// Modules and functions of `src` that are called by another word.
pub fn check(repository: &Repository) -> Findings {
    let mut findings = Findings::default();
    for (file, rust) in repository.rust().filter(|(file, _)| under("src", file)) {
        findings.look_at_one();
        let path = file.strip_suffix(".rs").unwrap_or(file);
        for part in path.split('/').skip(1) {
            look_at(file, 1, "module", part, &mut findings);
        }
        for module in &rust.modules {
            look_at(file, module.line, "module", &module.name, &mut findings);
        }
        for function in &rust.functions {
            look_at(file, function.line, "fn", &function.name, &mut findings);
        }
    }
    findings
}

fn look_at(file: &str, line: usize, kind: &str, name: &str, findings: &mut Findings) {
    for (begin, better) in WORDS {
        if name.split('_').any(|part| part.starts_with(begin)) {
            findings.add(file, line, format!("{kind} {name}: not \"{begin}\" but {better}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::Repository;

    fn lines(file: &str, text: &str) -> Vec<String> {
        check(&Repository::of(&[(file, text)])).lines()
    }

    #[test]
    fn forbidden_words_fail_in_modules_and_functions() {
        assert_eq!(lines("src/taking/mod.rs", "").len(), 1);
        assert_eq!(lines("src/a/sifting.rs", "").len(), 1);
        for text in [
            "mod sifting;",
            "mod sift {}",
            "fn start_taking() {}",
            "impl A { fn sift(&self) {} }",
            "trait A { fn sifted(&self) {} }",
            "g! { fn sift_all() {} }",
        ] {
            let found = lines("src/a.rs", &format!("\n{text}"));
            assert_eq!(found.len(), 1, "{text}");
            assert!(found[0].starts_with("src/a.rs:2: "), "{found:?}");
        }
    }

    #[test]
    fn other_names_and_other_directories_pass() {
        let text = "mod pop; fn staking() { taking.take(); } struct Sifting;";
        assert_eq!(lines("src/pop/mod.rs", text), [""; 0]);
        assert_eq!(lines("bench/src/sift.rs", "fn taking() {}"), [""; 0]);
    }
}
