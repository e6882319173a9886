//! `unsafe` stands where PostgreSQL is called, behind functions that are safe.

use crate::repository::under;
use crate::{Findings, Repository};

/// Where it may stand. What needs it elsewhere calls a function, or a macro, of `src/pg`.
const HOMES: &[&str] = &["src/pg", "src/store"];
const SEARCHED: &[&str] = &["src", "crates"];

/// Attributes that are unsafe and may stand anywhere: by `no_mangle`, PostgreSQL finds the main
/// function of a background process by its name.
const ATTRIBUTES: &[&str] = &["no_mangle"];

/// `unsafe` outside of those directories: blocks, functions, traits, implementations, attributes.
pub fn check(repository: &Repository) -> Findings {
    let mut findings = Findings::default();
    for (file, rust) in repository.rust() {
        let inside = |directories: &[&str]| directories.iter().any(|each| under(each, file));
        if !inside(SEARCHED) || inside(HOMES) {
            continue;
        }
        findings.look_at_one();
        for found in &rust.unsafe_words {
            match &found.attribute {
                None => findings.add(file, found.line, "unsafe outside of src/pg and src/store"),
                Some(name) if !ATTRIBUTES.contains(&&name[..]) => {
                    let what = format!("unsafe({name}) outside of src/pg and src/store");
                    findings.add(file, found.line, what);
                }
                Some(_) => {}
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::Repository;

    fn lines(file: &str, text: &str) -> Vec<String> {
        check(&Repository::of(&[(file, text)])).lines()
    }

    #[test]
    fn unsafe_code_fails_outside_of_its_homes() {
        for code in [
            "\nfn f() { unsafe { g() } }",
            "\nunsafe fn f() {}",
            "\nimpl A { pub unsafe extern \"C-unwind\" fn f() {} }",
            "\nunsafe impl A for B {}",
            "\nunsafe trait A {}",
            "fn f() {\ng!(unsafe { h() }) }",
            "macro_rules! m { () => {\nunsafe { g() } } }",
            "\ntype A = unsafe fn();",
            "\n#[g(unsafe)] fn f() {}",
        ] {
            for file in [
                "src/api/a.rs",
                "src/broker/a.rs",
                "src/wait/a.rs",
                "src/worker/a.rs",
                "src/settings.rs",
                "src/pgx.rs",
                "crates/engine/src/a.rs",
            ] {
                let expected = format!("{file}:2: unsafe outside of src/pg and src/store");
                assert_eq!(lines(file, code), [expected], "{code}");
            }
            for home in ["src/pg/a.rs", "src/pg/tests/a.rs", "src/store/a.rs", "bench/src/a.rs"] {
                assert_eq!(lines(home, code), [""; 0], "{code}");
            }
        }
    }

    #[test]
    fn each_line_with_unsafe_code_is_found() {
        let code = "unsafe fn f() {\n    unsafe { g() }\n}";
        assert_eq!(lines("src/api/a.rs", code).len(), 2);
    }

    #[test]
    fn a_name_for_postgresql_passes_and_other_attributes_fail() {
        let named = "#[unsafe(no_mangle)]\npub extern \"C-unwind\" fn f() {}";
        assert_eq!(lines("src/worker/a.rs", named), [""; 0]);
        let placed = "#[unsafe(link_section = \"a\")]\nstatic A: u8 = 1;";
        let expected = ["src/worker/a.rs:1: unsafe(link_section) outside of src/pg and src/store"];
        assert_eq!(lines("src/worker/a.rs", placed), expected);
        let both = "#[unsafe(no_mangle)]\npub unsafe extern \"C-unwind\" fn f() {}";
        assert_eq!(lines("src/worker/a.rs", both).len(), 1);
    }

    #[test]
    fn the_word_alone_passes() {
        let text = "//! unsafe\n/// unsafe { }\nconst A: &str = \"unsafe { }\"; // unsafe\n\
            #[deny(unsafe_op_in_unsafe_fn)]\nfn unsafe_code() {}";
        assert_eq!(lines("src/api/a.rs", text), [""; 0]);
    }
}
