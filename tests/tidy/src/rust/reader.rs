//! What a Rust file declares, and the paths in it.

use proc_macro2::{Delimiter, Ident, Spacing, TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree};

use super::{Function, Module, PathUse, Rust, TypeName};

pub(super) fn read(file: &syn::File, rust: &mut Rust) {
    Reader { rust, inside: Vec::new(), is_shown: false }.visit_file(file);
}

struct Reader<'a> {
    rust: &'a mut Rust,
    /// The modules around what is being read.
    inside: Vec<String>,
    /// The import that is being read is a `pub use`.
    is_shown: bool,
}

impl Reader<'_> {
    fn add_type(&mut self, kind: &'static str, name: &Ident, attributes: &[Attribute]) {
        self.rust.types.push(TypeName {
            line: name.span().start().line,
            kind,
            name: name.to_string(),
            conditional: attributes.iter().any(|attribute| attribute.path().is_ident("cfg")),
        });
    }

    fn add_function(&mut self, signature: &syn::Signature, block: &syn::Block) {
        self.rust.functions.push(Function {
            name: signature.ident.to_string(),
            line: signature.fn_token.span().start().line,
            last_line: block.brace_token.span.close().end().line,
        });
    }

    fn add_path(&mut self, line: usize, segments: Vec<String>, bound: Option<String>) {
        self.rust.paths.push(PathUse {
            line,
            inside: self.inside.clone(),
            segments,
            bound,
            is_shown: self.is_shown,
        });
    }

    fn add_import(&mut self, tree: &UseTree, before: &[String]) {
        match tree {
            UseTree::Path(path) => {
                let mut segments = before.to_vec();
                segments.push(path.ident.to_string());
                self.add_import(&path.tree, &segments);
            }
            UseTree::Name(name) => self.add_imported(&name.ident, before, None),
            UseTree::Rename(name) => self.add_imported(&name.ident, before, Some(&name.rename)),
            UseTree::Glob(glob) => {
                let line = glob.star_token.span().start().line;
                self.add_path(line, before.to_vec(), Some("*".to_owned()));
            }
            UseTree::Group(group) => {
                for inner in &group.items {
                    self.add_import(inner, before);
                }
            }
        }
    }

    /// `self` as the last name of an import stands for what is before it.
    fn add_imported(&mut self, name: &Ident, before: &[String], renamed: Option<&Ident>) {
        let mut segments = before.to_vec();
        if name != "self" || before.is_empty() {
            segments.push(name.to_string());
        }
        let bound = renamed.map(Ident::to_string).or_else(|| segments.last().cloned());
        self.add_path(name.span().start().line, segments, bound);
    }

    /// What a macro is called with, or consists of: only it knows what its tokens mean.
    fn read_tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Group(group) => self.read_tokens(group.stream()),
                TokenTree::Ident(word) => {
                    self.read_declaration(word, &tokens[at + 1..]);
                    let segments = path_at(&tokens[at..]);
                    at += 3 * (segments.len() - 1);
                    if segments.len() > 1 {
                        self.add_path(word.span().start().line, segments, None);
                    }
                }
                _ => {}
            }
            at += 1;
        }
    }

    fn read_declaration(&mut self, word: &Ident, rest: &[TokenTree]) {
        let Some(TokenTree::Ident(name)) = rest.first() else { return };
        match word.to_string().as_str() {
            "struct" => self.add_type("struct", name, &[]),
            "enum" => self.add_type("enum", name, &[]),
            "trait" => self.add_type("trait", name, &[]),
            "fn" => {
                let body = rest.iter().find_map(|tree| match tree {
                    TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => Some(group),
                    _ => None,
                });
                if let Some(body) = body {
                    self.rust.functions.push(Function {
                        name: name.to_string(),
                        line: word.span().start().line,
                        last_line: body.span_close().end().line,
                    });
                }
            }
            _ => {}
        }
    }
}

/// The path that begins with the first token, a name.
fn path_at(tokens: &[TokenTree]) -> Vec<String> {
    let mut segments = Vec::new();
    let mut rest = tokens;
    while let Some((TokenTree::Ident(name), after)) = rest.split_first() {
        segments.push(name.to_string());
        match after {
            [TokenTree::Punct(first), TokenTree::Punct(second), next @ ..]
                if first.as_char() == ':'
                    && first.spacing() == Spacing::Joint
                    && second.as_char() == ':'
                    && matches!(next.first(), Some(TokenTree::Ident(_))) =>
            {
                rest = next;
            }
            _ => break,
        }
    }
    segments
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        match item {
            Item::Struct(item) => self.add_type("struct", &item.ident, &item.attrs),
            Item::Enum(item) => self.add_type("enum", &item.ident, &item.attrs),
            Item::Union(item) => self.add_type("union", &item.ident, &item.attrs),
            Item::Trait(item) => self.add_type("trait", &item.ident, &item.attrs),
            Item::Type(item) => self.add_type("type", &item.ident, &item.attrs),
            Item::Fn(item) => self.add_function(&item.sig, &item.block),
            _ => {}
        }
        visit::visit_item(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.add_function(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.add_function(&item.sig, block);
        }
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.rust.modules.push(Module {
            name: item.ident.to_string(),
            line: item.ident.span().start().line,
            inside: self.inside.clone(),
            inline: item.content.is_some(),
        });
        self.inside.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.inside.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        // A leading `::` names another crate.
        if item.leading_colon.is_none() {
            self.is_shown = !matches!(item.vis, syn::Visibility::Inherited);
            self.add_import(&item.tree, &[]);
            self.is_shown = false;
        }
        for attribute in &item.attrs {
            self.visit_attribute(attribute);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            let segments = path.segments.iter().map(|segment| segment.ident.to_string());
            self.add_path(path.span().start().line, segments.collect(), None);
        }
        visit::visit_path(self, path);
    }

    /// `pub(super)` says who may see an item and uses nothing.
    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {}

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.read_tokens(call.tokens.clone());
        visit::visit_macro(self, call);
    }

    fn visit_meta_list(&mut self, list: &'ast syn::MetaList) {
        self.read_tokens(list.tokens.clone());
        visit::visit_meta_list(self, list);
    }
}
