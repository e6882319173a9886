//! What the rules ask of a Rust file: its comments, strings, names and paths.
//!
//! The parser reads what the code declares. It keeps neither ordinary comments nor what a macro
//! is called with, so that comments are taken from between the tokens, and a macro's tokens are
//! searched for what looks like a path, a string or a declaration.

mod comments;
mod reader;
mod unsafe_words;

use std::str::FromStr;

use proc_macro2::TokenStream;

use crate::prose::Prose;

/// A Rust file.
#[derive(Default)]
pub struct Rust {
    pub(crate) comments: Vec<Prose>,
    pub(crate) strings: Vec<Prose>,
    pub(crate) types: Vec<TypeName>,
    pub(crate) functions: Vec<Function>,
    pub(crate) modules: Vec<Module>,
    pub(crate) paths: Vec<PathUse>,
    pub(crate) unsafe_words: Vec<UnsafeWord>,
}

pub(crate) struct TypeName {
    pub line: usize,
    pub kind: &'static str,
    pub name: String,
    /// It stands behind a `#[cfg]`, so that another of its name may take its place.
    pub conditional: bool,
}

pub(crate) struct Function {
    pub name: String,
    pub line: usize,
    pub last_line: usize,
}

pub(crate) struct Module {
    pub name: String,
    pub line: usize,
    /// The modules of this file around it, the outermost first.
    pub inside: Vec<String>,
    /// Its items stand in this file.
    pub inline: bool,
}

/// A path in an import, an expression, a type or a macro, as it is written.
#[derive(Clone, Debug)]
pub(crate) struct PathUse {
    pub line: usize,
    /// The modules of this file it stands in, the outermost first.
    pub inside: Vec<String>,
    pub segments: Vec<String>,
    /// What an import calls it; `*` for all that is in it.
    pub bound: Option<String>,
    /// It is a `pub use`: other modules find the item here.
    pub is_shown: bool,
}

/// The keyword `unsafe`.
pub(crate) struct UnsafeWord {
    pub line: usize,
    /// It stands in an attribute, of this name: `#[unsafe(no_mangle)]`.
    pub attribute: Option<String>,
}

impl Rust {
    pub(crate) fn read(text: &str) -> syn::Result<Self> {
        let tokens = TokenStream::from_str(text)?;
        let mut rust = Self {
            comments: comments::comments(text, tokens.clone()),
            strings: comments::strings(tokens.clone()),
            unsafe_words: unsafe_words::unsafe_words(tokens.clone()),
            ..Self::default()
        };
        reader::read(&syn::parse2(tokens)?, &mut rust);
        Ok(rust)
    }
}
