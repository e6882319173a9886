//! Which module of a crate a path leads to.

use std::collections::{BTreeMap, BTreeSet};

use crate::Repository;
use crate::rust::{PathUse, Rust};

/// The names of modules from the crate's root down; none for the root itself.
pub(crate) type ModulePath = Vec<String>;

/// The modules of a crate and what each of them imports.
pub(crate) struct Scope<'a> {
    files: BTreeMap<ModulePath, (&'a str, &'a Rust)>,
    modules: BTreeSet<ModulePath>,
    imports: BTreeMap<ModulePath, Vec<&'a PathUse>>,
}

/// One file's use of what is in the crate.
#[derive(Clone)]
pub(crate) struct Arrow<'a> {
    pub file: &'a str,
    pub line: usize,
    /// The module the file is.
    pub from: ModulePath,
    /// The path from the crate's root, as far as the using module alone tells.
    pub to: Vec<String>,
    /// It is a `pub use`.
    pub is_shown: bool,
}

/// Imports that lead to each other end somewhere.
const STEPS: usize = 16;

impl<'a> Scope<'a> {
    /// The crate whose `lib.rs` is in this directory.
    pub(crate) fn of(repository: &'a Repository, directory: &str) -> Self {
        let mut scope =
            Self { files: BTreeMap::new(), modules: BTreeSet::new(), imports: BTreeMap::new() };
        for (file, rust) in repository.rust() {
            let inner = file.strip_prefix(directory).and_then(|rest| rest.strip_prefix('/'));
            let Some(inner) = inner else { continue };
            let module = module_of(inner);
            scope.modules.insert(module.clone());
            for inline in rust.modules.iter().filter(|module| module.inline) {
                let mut path = [&module[..], &inline.inside].concat();
                path.push(inline.name.clone());
                scope.modules.insert(path);
            }
            for import in rust.paths.iter().filter(|path| path.bound.is_some()) {
                let inside = [&module[..], &import.inside].concat();
                scope.imports.entry(inside).or_default().push(import);
            }
            scope.files.insert(module, (file, rust));
        }
        scope
    }

    pub(crate) fn files(&self) -> impl Iterator<Item = (&ModulePath, &'a str)> {
        self.files.iter().map(|(module, (file, _))| (module, *file))
    }

    /// All uses of what is in the crate. A name alone is none: it is the file's own, or imported.
    pub(crate) fn arrows(&self) -> Vec<Arrow<'a>> {
        let mut arrows = Vec::new();
        for (module, (file, rust)) in &self.files {
            for path in &rust.paths {
                if path.segments.len() < 2 && path.bound.is_none() {
                    continue;
                }
                let inside = [&module[..], &path.inside].concat();
                if let Some(to) = self.resolved(&inside, &path.segments, STEPS) {
                    let (line, is_shown) = (path.line, path.is_shown);
                    arrows.push(Arrow { file, line, from: module.clone(), to, is_shown });
                }
            }
        }
        arrows
    }

    /// The module of a file in which the item of this path stands, also behind `pub use`.
    pub(crate) fn home(&self, path: &[String]) -> ModulePath {
        let mut path = path.to_vec();
        for _ in 0..STEPS {
            let module = self.longest_module(&path);
            let rest = &path[module.len()..];
            let Some((name, after)) = rest.split_first() else { break };
            let Some(found) = self.imported(&module, name, STEPS) else { break };
            let followed = [found, after.to_vec()].concat();
            if followed == path {
                break;
            }
            path = followed;
        }
        while !self.files.contains_key(&path) && path.pop().is_some() {}
        path
    }

    fn longest_module(&self, path: &[String]) -> ModulePath {
        let lengths = (0..=path.len()).rev();
        lengths
            .map(|length| path[..length].to_vec())
            .find(|m| self.modules.contains(m))
            .unwrap_or_default()
    }

    /// The path from the root, if it is one of this crate.
    fn resolved(&self, module: &[String], path: &[String], steps: usize) -> Option<Vec<String>> {
        let steps = steps.checked_sub(1)?;
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => return self.through_the_root(rest, steps),
            "self" => return Some([module, rest].concat()),
            "super" => {
                let (_, parent) = module.split_last()?;
                return if rest.first().is_some_and(|next| next == "super") {
                    self.resolved(parent, rest, steps)
                } else if parent.is_empty() {
                    self.through_the_root(rest, steps)
                } else {
                    Some([parent, rest].concat())
                };
            }
            _ => {}
        }
        let child = [module, std::slice::from_ref(first)].concat();
        if self.modules.contains(&child) {
            return Some([child, rest.to_vec()].concat());
        }
        Some([self.imported(module, first, steps)?, rest.to_vec()].concat())
    }

    /// A name that the root itself has from a module is that module's.
    fn through_the_root(&self, path: &[String], steps: usize) -> Option<Vec<String>> {
        let Some((first, rest)) = path.split_first() else { return Some(Vec::new()) };
        if self.modules.contains(std::slice::from_ref(first)) {
            return Some(path.to_vec());
        }
        match self.imported(&[], first, steps) {
            Some(found) => Some([found, rest.to_vec()].concat()),
            None => Some(path.to_vec()),
        }
    }

    /// What a module has under a name it imports.
    fn imported(&self, module: &[String], name: &str, steps: usize) -> Option<Vec<String>> {
        let steps = steps.checked_sub(1)?;
        let imports = self.imports.get(module)?;
        let named = imports.iter().filter(|import| import.bound.as_deref() == Some(name));
        for import in named {
            // `use a::{self}` in a module with a child `a` must not ask for itself.
            if import.segments.len() == 1 && import.segments[0] == name {
                continue;
            }
            if let Some(found) = self.resolved(module, &import.segments, steps) {
                return Some(found);
            }
        }
        for import in imports.iter().filter(|import| import.bound.as_deref() == Some("*")) {
            let Some(found) = self.resolved(module, &import.segments, steps) else { continue };
            let child = [found.clone(), vec![name.to_owned()]].concat();
            if self.modules.contains(&child) {
                return Some(child);
            }
            if found != module
                && let Some(further) = self.imported(&found, name, steps)
            {
                return Some(further);
            }
        }
        None
    }
}

/// The module that a file of a crate is.
fn module_of(file: &str) -> ModulePath {
    let path = file.strip_suffix(".rs").unwrap_or(file);
    let mut module: ModulePath = path.split('/').map(str::to_owned).collect();
    if matches!(module.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        module.pop();
    }
    module
}

#[cfg(test)]
mod tests {
    use super::Scope;
    use crate::Repository;

    /// Where the uses in the module `a::b` lead, and where that is at home.
    fn arrows(text: &str) -> Vec<(String, String)> {
        let repository = Repository::of(&[
            ("src/lib.rs", "mod a; mod c; pub use c::d::Moved;"),
            ("src/a/mod.rs", "mod b; mod e;"),
            ("src/a/e.rs", ""),
            ("src/c/mod.rs", "pub mod d; pub use d::Shown;"),
            ("src/c/d.rs", ""),
            ("src/a/b.rs", text),
        ]);
        let scope = Scope::of(&repository, "src");
        let arrows = scope.arrows().into_iter().filter(|arrow| arrow.file == "src/a/b.rs");
        arrows.map(|arrow| (arrow.to.join("::"), scope.home(&arrow.to).join("::"))).collect()
    }

    fn leads(text: &str, to: &str, home: &str) {
        let arrows = arrows(text);
        assert!(arrows.contains(&(to.to_owned(), home.to_owned())), "{text}: {arrows:?}");
    }

    #[test]
    fn imports_lead_where_they_say() {
        leads("use crate::c::d::X;", "c::d::X", "c::d");
        leads("use super::super::c::d;", "c::d", "c::d");
        leads("use super::e;", "a::e", "a::e");
        leads("use crate::{c::{self, d::{X as Y, Z}}, a};", "c", "c");
        leads("use crate::{c::{self, d::{X as Y, Z}}, a};", "c::d::Z", "c::d");
        leads("use crate::c::*;", "c", "c");
        leads("fn f() { use crate::c::d::X; }", "c::d::X", "c::d");
        leads("mod tests { use super::super::e; }", "a::e", "a::e");
        assert_eq!(arrows("use std::fmt; use ::c::d; use pgrx::c;"), []);
    }

    #[test]
    fn paths_outside_imports_lead_where_they_say() {
        leads("fn f() { crate::c::d::g(); }", "c::d::g", "c::d");
        leads("fn f(x: crate::c::d::X) {}", "c::d::X", "c::d");
        leads("fn f() { g!(1, [crate::c::d::X]); }", "c::d::X", "c::d");
        leads("#[g(crate::c::d::X)] fn f() {}", "c::d::X", "c::d");
        leads("macro_rules! g { () => { $crate::c::d::h() } }", "c::d::h", "c::d");
        assert_eq!(arrows("pub(in super::super) fn f(c: u8) -> u8 { c }"), []);
    }

    #[test]
    fn names_that_stand_for_something_are_followed() {
        leads("use crate::c; fn f() { c::d::g(); }", "c::d::g", "c::d");
        leads("use crate as root; fn f() { root::c::d::g(); }", "c::d::g", "c::d");
        leads("use super::super::*; fn f() { c::d::g(); }", "c::d::g", "c::d");
        leads("use crate::c::Shown;", "c::Shown", "c::d");
        leads("use crate::Moved;", "c::d::Moved", "c::d");
        leads("use super::super::Moved;", "c::d::Moved", "c::d");
    }
}
