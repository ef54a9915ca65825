//! The scheduler's hot paths, to have their instructions counted: `make instructions`. What they work on is what the
//! timing benches work on, which stand beside this.

#[path = "../../engine/benches/support/counted.rs"]
mod counted;
#[path = "support/prefixes.rs"]
mod prefixes;
#[path = "support/scheduling.rs"]
mod scheduling;

use counted::{Path, done};
use prefixes::{CANDIDATES, SCOPE, TEXTS};
use scheduling::{Attic, House, Size};
use std::hint::black_box;

/// Tokens that the texts of the tree begin with.
const SHARED: u32 = 2048;
/// Steps after which the scheduler has learnt what steps take, and has looked at everybody who waits.
const SETTLED: u32 = 32;

const PATHS: &[Path] = &[
    Path {
        name: "plan-8-run",
        operations: 64,
        run: |times, with| plan((8, 0), times, with),
    },
    Path {
        name: "plan-64-run-1000-wait",
        operations: 64,
        run: |times, with| plan((64, 1000), times, with),
    },
    Path {
        name: "plan-512-run-1000-wait",
        operations: 32,
        run: |times, with| plan((512, 1000), times, with),
    },
    Path {
        name: "plan-and-applied-8-run",
        operations: 128,
        run: |times, with| step((8, 0), times, with),
    },
    Path {
        name: "plan-and-applied-64-run-1000-wait",
        operations: 128,
        run: |times, with| step((64, 1000), times, with),
    },
    Path {
        name: "newcomer-10000-kept",
        operations: 256,
        run: |times, with| newcomer(10_000, times, with),
    },
    Path {
        name: "prefix-lookup",
        operations: 512,
        run: lookup,
    },
    Path {
        name: "prefix-lookup-in-a-conversation",
        operations: 512,
        run: lookup_in_a_conversation,
    },
    Path {
        name: "prefix-insert-and-evict",
        operations: 512,
        run: insert_and_evict,
    },
];

fn main() {
    counted::main(PATHS);
}

/// Planning a step alone. What was planned has to be answered before the next is, so each is planned on a copy.
fn plan(size: Size, times: u32, with: bool) {
    let mut house = House::new(size);
    house.steps(SETTLED);
    for _ in 0..times {
        let (mut scheduler, now) = house.copy();
        if with {
            black_box(scheduler.plan(now));
        }
        black_box(&scheduler);
    }
}

/// Planning a step and taking note of its result.
fn step(size: Size, times: u32, with: bool) {
    let mut house = House::new(size);
    house.steps(SETTLED);
    house.steps(done(times, with));
}

/// Enqueueing a request that gets the id and the cells of somebody else, planning its step and taking note of
/// the result.
fn newcomer(kept: u32, times: u32, with: bool) {
    let mut attic = Attic::new(kept);
    for _ in 0..done(times, with) {
        attic.enqueue();
        attic.plan();
        attic.answer();
    }
}

/// Finding those that begin like a text.
fn lookup(times: u32, with: bool) {
    let (tree, path) = (prefixes::tree(SHARED), prefixes::text(SHARED, TEXTS));
    for _ in 0..done(times, with) {
        black_box(tree.nearest(SCOPE, black_box(&path), CANDIDATES));
    }
}

/// The same where one lies behind the other.
fn lookup_in_a_conversation(times: u32, with: bool) {
    let (tree, path) = prefixes::conversation();
    for _ in 0..done(times, with) {
        black_box(tree.nearest(SCOPE, black_box(&path), CANDIDATES));
    }
}

/// One text more, and it goes again.
fn insert_and_evict(times: u32, with: bool) {
    let (mut tree, path) = (prefixes::tree(SHARED), prefixes::text(SHARED, TEXTS));
    for _ in 0..done(times, with) {
        tree.insert(SCOPE, black_box(&path), TEXTS);
        let there = tree.remove(SCOPE, black_box(&path), TEXTS);
        assert!(there, "it was put there");
    }
}
