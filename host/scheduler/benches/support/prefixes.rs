//! Radix trees of texts with a common prefix.

use corral_scheduler::{PrefixScope, PrefixTree, Token};

pub const SCOPE: PrefixScope = PrefixScope(1);
pub const TEXTS: u32 = 64;
/// Tokens at the end of each text that no other has.
pub const TAIL: u32 = 64;
/// Candidates that a search returns.
pub const CANDIDATES: usize = 32;

/// A text that shares this many tokens with all others.
pub fn text(shared: u32, number: u32) -> Vec<Token> {
    let own = 100_000 + number * TAIL;
    (0..shared).chain(own..own + TAIL).collect()
}

/// A tree of [`TEXTS`] texts, numbered from 0.
pub fn tree(shared: u32) -> PrefixTree<u32> {
    let mut tree = PrefixTree::default();
    (0..TEXTS).for_each(|number| tree.insert(SCOPE, &text(shared, number), number));
    tree
}

/// A conversation with an entry for each of its 64 turns, which makes the tree as deep as possible; and the text of the
/// next turn.
pub fn conversation() -> (PrefixTree<u32>, Vec<Token>) {
    let path: Vec<Token> = (0..(TEXTS + 1) * TAIL).collect();
    let mut tree = PrefixTree::default();
    for turn in 1..=TEXTS {
        tree.insert(SCOPE, &path[..(turn * TAIL) as usize], turn);
    }
    (tree, path)
}
