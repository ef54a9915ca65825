//! The radix tree of the prefix cache: search, insert and remove, with 64 texts that share a prefix.
//!
//! `make microbench BENCHES=prefixes`

#[path = "support/prefixes.rs"]
mod support;

use divan::{AllocProfiler, Bencher, black_box};
use std::cell::RefCell;
use support::{CANDIDATES, SCOPE, TAIL, TEXTS, conversation, text, tree};

#[global_allocator]
static ALLOCATOR: AllocProfiler = AllocProfiler::system();

fn main() {
    divan::main();
}

/// Lengths of the common prefix.
const SHARED: [u32; 3] = [128, 2048, 8192];

#[divan::bench(args = SHARED)]
fn lookup(bencher: Bencher, shared: u32) {
    let (tree, path) = (tree(shared), text(shared, TEXTS));
    let found = tree.nearest(SCOPE, &path, CANDIDATES);
    assert_eq!(found.len(), CANDIDATES);
    assert_eq!(found[0].1, shared as usize);
    bencher.bench_local(|| tree.nearest(SCOPE, black_box(&path), CANDIDATES));
}

#[divan::bench]
fn lookup_in_a_conversation(bencher: Bencher) {
    let (tree, path) = conversation();
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
fn remove(bencher: Bencher, shared: u32) {
    let (tree, path) = (RefCell::new(tree(shared)), text(shared, TEXTS));
    bencher
        .with_inputs(|| tree.borrow_mut().insert(SCOPE, &path, TEXTS))
        .bench_local_values(|()| {
            let there = tree.borrow_mut().remove(SCOPE, &path, TEXTS);
            assert!(there, "inserted before");
        });
}

/// The floor of all: comparing the shared tokens once.
#[divan::bench(args = SHARED)]
fn floor(bencher: Bencher, shared: u32) {
    let (one, other) = (text(shared, 0), text(shared, 1));
    let length = shared as usize;
    bencher.bench_local(|| black_box(&one[..length]) == black_box(&other[..length]));
}
