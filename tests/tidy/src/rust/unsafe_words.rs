//! Where a Rust file says `unsafe`.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

use super::UnsafeWord;

/// The keyword at each place, whatever it makes unsafe, also in what a macro is called with or
/// consists of. A comment of documentation is a string.
pub(super) fn unsafe_words(tokens: TokenStream) -> Vec<UnsafeWord> {
    let mut found = Vec::new();
    collect(tokens, &mut found);
    found
}

fn collect(tokens: TokenStream, found: &mut Vec<UnsafeWord>) {
    let mut is_after_hash = false;
    for tree in tokens {
        match &tree {
            TokenTree::Group(group) => match attribute(group).filter(|_| is_after_hash) {
                Some(word) => found.push(word),
                None => collect(group.stream(), found),
            },
            TokenTree::Ident(word) if word == "unsafe" => {
                found.push(UnsafeWord { line: word.span().start().line, attribute: None });
            }
            _ => {}
        }
        // `#[…]`, and `#![…]`.
        is_after_hash = match &tree {
            TokenTree::Punct(sign) => {
                sign.as_char() == '#' || (is_after_hash && sign.as_char() == '!')
            }
            _ => false,
        };
    }
}

/// `[unsafe(name …)]`.
fn attribute(group: &Group) -> Option<UnsafeWord> {
    let inside: Vec<_> = group.stream().into_iter().collect();
    let [TokenTree::Ident(word), TokenTree::Group(rest)] = &inside[..] else { return None };
    let is_it = group.delimiter() == Delimiter::Bracket
        && word == "unsafe"
        && rest.delimiter() == Delimiter::Parenthesis;
    let Some(TokenTree::Ident(name)) = rest.stream().into_iter().next() else { return None };
    let line = word.span().start().line;
    is_it.then(|| UnsafeWord { line, attribute: Some(name.to_string()) })
}
