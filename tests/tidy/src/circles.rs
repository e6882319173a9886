//! Modules that use each other in a circle cannot be understood one by one.
//!
//! A module that only shows what one of its parts has, with `pub use`, does not use it.

use std::collections::{BTreeMap, BTreeSet};

use crate::scope::{Arrow, ModulePath, Scope};
use crate::{Findings, Repository};

type Graph<'a> = BTreeMap<ModulePath, BTreeMap<ModulePath, Arrow<'a>>>;

/// Every use within `src` that is part of a circle.
pub fn check(repository: &Repository) -> Findings {
    let mut findings = Findings::default();
    let scope = Scope::of(repository, "src");
    let mut graph = Graph::new();
    for (module, _) in scope.files() {
        findings.look_at_one();
        graph.insert(module.clone(), BTreeMap::new());
    }
    for arrow in scope.arrows() {
        let to = scope.home(&arrow.to);
        let is_part = to.len() > arrow.from.len() && to.starts_with(&arrow.from);
        if to != arrow.from && !(arrow.is_shown && is_part) {
            graph.entry(arrow.from.clone()).or_default().entry(to).or_insert(arrow);
        }
    }
    let reached: BTreeMap<_, _> =
        graph.keys().map(|module| (module, reachable(&graph, module))).collect();
    for (from, arrows) in &graph {
        for (to, arrow) in arrows {
            if reached[to].contains(from) {
                let what = format!("{} uses {}, which leads back", name(from), name(to));
                findings.add(arrow.file, arrow.line, what);
            }
        }
    }
    findings
}

fn name(module: &ModulePath) -> String {
    if module.is_empty() { "the root".to_owned() } else { module.join("::") }
}

fn reachable(graph: &Graph, start: &ModulePath) -> BTreeSet<ModulePath> {
    let mut found = BTreeSet::new();
    let mut open = vec![start];
    while let Some(module) = open.pop() {
        for to in graph.get(module).into_iter().flat_map(BTreeMap::keys) {
            if found.insert(to.clone()) {
                open.push(to);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::Repository;

    fn lines(a: &str, b: &str, c: &str) -> Vec<String> {
        let root = ("src/lib.rs", "mod a; mod b; mod c; fn f() { a::g(); }");
        let files = [root, ("src/a.rs", a), ("src/b.rs", b), ("src/c.rs", c)];
        check(&Repository::of(&files)).lines()
    }

    #[test]
    fn uses_in_one_direction_pass() {
        assert_eq!(lines("use crate::{b, c};", "use crate::c::X;", "use std::b;"), [""; 0]);
    }

    #[test]
    fn a_circle_of_three_fails_with_its_three_uses() {
        let found = lines("use crate::b;", "fn f() { crate::c::g(); }", "\nuse super::a::X;");
        let expected = [
            "src/a.rs:1: a uses b, which leads back",
            "src/b.rs:1: b uses c, which leads back",
            "src/c.rs:2: c uses a, which leads back",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_module_may_show_what_its_parts_have() {
        let found = |module: &str| {
            let files = [
                ("src/lib.rs", "mod a;"),
                ("src/a/mod.rs", module),
                ("src/a/part.rs", "use super::TABLE; pub struct Part;"),
            ];
            check(&Repository::of(&files)).lines()
        };
        assert_eq!(found("mod part; pub use self::part::Part; static TABLE: u8 = 0;"), [""; 0]);
        assert_eq!(found("mod part; use self::part::Part; static TABLE: u8 = 0;").len(), 2);
    }

    #[test]
    fn a_circle_through_the_root_fails() {
        assert_eq!(lines("use crate::f;", "", "").len(), 2);
    }
}
