//! The files of the repository, read once for all rules.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use crate::rust::Rust;

/// A file, and what its Rust code consists of if it is Rust.
pub(crate) struct Source {
    pub text: String,
    pub rust: Option<Rust>,
}

/// The files by their paths from the root.
pub struct Repository {
    files: BTreeMap<String, Source>,
}

impl Repository {
    /// Reads the repository this crate stands in. Like the search for typos, this looks at the
    /// files that .gitignore leaves, also where there is no git.
    pub fn read() -> io::Result<Self> {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let mut files = BTreeMap::new();
        walk(root, "", &mut files)?;
        Ok(Self { files })
    }

    pub(crate) fn files(&self) -> impl Iterator<Item = (&str, &Source)> {
        self.files.iter().map(|(path, source)| (path.as_str(), source))
    }

    pub(crate) fn rust(&self) -> impl Iterator<Item = (&str, &Rust)> {
        self.files().filter_map(|(path, source)| Some((path, source.rust.as_ref()?)))
    }

    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        Some(&self.files.get(path)?.text)
    }

    pub(crate) fn has_file(&self, path: &str) -> bool {
        self.files.contains_key(path)
    }

    /// Whether there is a file, or a directory with files, of this path.
    pub fn has(&self, path: &str) -> bool {
        path.is_empty() || self.has_file(path) || self.files.keys().any(|file| under(path, file))
    }

    /// Whether the path of a file or of a directory ends with these components.
    pub(crate) fn has_end(&self, end: &str) -> bool {
        self.has(end)
            || self.files.keys().any(|file| {
                let (inner, last) = (format!("/{end}/"), format!("/{end}"));
                file.contains(&inner) || file.ends_with(&last)
            })
    }
}

pub(crate) fn under(directory: &str, file: &str) -> bool {
    file.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'))
}

fn walk(directory: &Path, path: &str, files: &mut BTreeMap<String, Source>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let inner = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
        if entry.file_type()?.is_dir() {
            if name != ".git" && name != "target" {
                walk(&entry.path(), &inner, files)?;
            }
        } else if !name.ends_with(".swp") {
            let text = String::from_utf8_lossy(&fs::read(entry.path())?).into_owned();
            let source = source(&inner, text)?;
            files.insert(inner, source);
        }
    }
    Ok(())
}

fn source(path: &str, text: String) -> io::Result<Source> {
    let rust = if path.ends_with(".rs") {
        Some(Rust::read(&text).map_err(|error| {
            let line = error.span().start().line;
            io::Error::other(format!("{path}:{line}: {error}"))
        })?)
    } else {
        None
    };
    Ok(Source { text, rust })
}

#[cfg(test)]
impl Repository {
    /// A repository of these paths and texts.
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let files = files.iter().map(|(path, text)| {
            (path.to_string(), source(path, text.to_string()).expect("Rust that can be read"))
        });
        Self { files: files.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::Repository;

    #[test]
    fn knows_directories_and_ends_of_paths() {
        let repository = Repository::of(&[("src/api/pop.rs", "")]);
        assert!(repository.has("src/api") && repository.has("src/api/pop.rs"));
        assert!(!repository.has("src/ap") && !repository.has("api"));
        assert!(repository.has_end("api") && repository.has_end("api/pop.rs"));
        assert!(!repository.has_end("op.rs"));
    }
}
