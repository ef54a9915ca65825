//! The radix tree of the prefix cache: who has a text that begins like this one, one more comes, one
//! goes. 64 texts begin with the same tokens and end in some of their own.
//!
//! `cargo bench -p corral-engine --bench prefixes`

use corral_engine::Token;
use corral_engine::scheduler::Scope;
use corral_engine::scheduler::tree::Tree;
use divan::{AllocProfiler, Bencher, black_box};
use std::cell::RefCell;

#[global_allocator]
static ALLOCATOR: AllocProfiler = AllocProfiler::system();

fn main() {
    divan::main();
}

const SCOPE: Scope = Scope(1);
/// Tokens that all texts begin with.
const SHARED: [u32; 3] = [128, 2048, 8192];
const TEXTS: u32 = 64;
/// Tokens of its own at the end of each.
const TAIL: u32 = 64;
/// Candidates that admission looks at.
const CANDIDATES: usize = 32;

fn text(shared: u32, number: u32) -> Vec<Token> {
    let own = 100_000 + number * TAIL;
    (0..shared).chain(own..own + TAIL).collect()
}

fn tree(shared: u32) -> Tree<u32> {
    let mut tree = Tree::default();
    (0..TEXTS).for_each(|number| tree.insert(SCOPE, &text(shared, number), number));
    tree
}

#[divan::bench(args = SHARED)]
fn lookup(bencher: Bencher, shared: u32) {
    let (tree, path) = (tree(shared), text(shared, TEXTS));
    let found = tree.nearest(SCOPE, &path, CANDIDATES);
    assert_eq!(found.len(), CANDIDATES);
    assert_eq!(found[0].1, shared as usize);
    bencher.bench_local(|| tree.nearest(SCOPE, black_box(&path), CANDIDATES));
}

/// A conversation of 64 turns, each of which is kept: the tree is as deep as it gets.
#[divan::bench]
fn lookup_in_a_conversation(bencher: Bencher) {
    let path: Vec<Token> = (0..(TEXTS + 1) * TAIL).collect();
    let mut tree = Tree::default();
    for turn in 1..=TEXTS {
        tree.insert(SCOPE, &path[..(turn * TAIL) as usize], turn);
    }
    let found = tree.nearest(SCOPE, &path, CANDIDATES);
    assert_eq!(found[0], (TEXTS, (TEXTS * TAIL) as usize));
    bencher.bench_local(|| tree.nearest(SCOPE, black_box(&path), CANDIDATES));
}

#[divan::bench(args = SHARED, sample_count = 1000, sample_size = 1)]
fn insert(bencher: Bencher, shared: u32) {
    let (tree, path) = (RefCell::new(tree(shared)), text(shared, TEXTS));
    bencher
        .with_inputs(|| {
            tree.borrow_mut().remove(SCOPE, &path, TEXTS);
        })
        .bench_local_values(|()| tree.borrow_mut().insert(SCOPE, &path, TEXTS));
}

#[divan::bench(args = SHARED, sample_count = 1000, sample_size = 1)]
fn evict(bencher: Bencher, shared: u32) {
    let (tree, path) = (RefCell::new(tree(shared)), text(shared, TEXTS));
    bencher
        .with_inputs(|| tree.borrow_mut().insert(SCOPE, &path, TEXTS))
        .bench_local_values(|()| {
            let there = tree.borrow_mut().remove(SCOPE, &path, TEXTS);
            assert!(there, "it was put there");
        });
}

/// The twin of them all: comparing the shared tokens once.
#[divan::bench(args = SHARED)]
fn floor(bencher: Bencher, shared: u32) {
    let (one, other) = (text(shared, 0), text(shared, 1));
    let length = shared as usize;
    bencher.bench_local(|| black_box(&one[..length]) == black_box(&other[..length]));
}
