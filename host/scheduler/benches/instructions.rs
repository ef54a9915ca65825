//! The scheduler's hot paths, for `make instructions`, which counts their instructions. The scenes are those of the
//! timing benches.

#[path = "../../engine/benches/support/instruction_count.rs"]
mod instruction_count;
#[path = "support/prefixes.rs"]
mod prefixes;
#[path = "support/scheduling.rs"]
mod scheduling;

use instruction_count::{Path, done};
use prefixes::{CANDIDATES, SCOPE, TEXTS};
use scheduling::{AdmissionScene, DecodeScene, Load};
use std::hint::black_box;

/// Length of the common prefix of the texts.
const SHARED: u32 = 2048;
/// Steps after which the cost model is fitted.
const FITTED_STEPS: u32 = 32;

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
        name: "plan-and-step-done-8-run",
        operations: 128,
        run: |times, with| step((8, 0), times, with),
    },
    Path {
        name: "plan-and-step-done-64-run-1000-wait",
        operations: 128,
        run: |times, with| step((64, 1000), times, with),
    },
    Path {
        name: "admit-with-10000-entries",
        operations: 256,
        run: |times, with| admit(10_000, times, with),
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
    instruction_count::main(PATHS);
}

/// Plans a step alone, each on a copy, since a planned step must be followed by its result.
fn plan(load: Load, times: u32, with: bool) {
    let mut scene = DecodeScene::new(load);
    scene.steps(FITTED_STEPS);
    for _ in 0..times {
        let (mut scheduler, now) = scene.copy();
        if with {
            black_box(scheduler.plan(now));
        }
        black_box(&scheduler);
    }
}

/// Plans a step and applies its result.
fn step(load: Load, times: u32, with: bool) {
    let mut scene = DecodeScene::new(load);
    scene.steps(FITTED_STEPS);
    scene.steps(done(times, with));
}

/// Enqueues a request that needs the id and cells of a retained sequence, plans its step and applies the result.
fn admit(swapped_out: u32, times: u32, with: bool) {
    let mut scene = AdmissionScene::new(swapped_out);
    for _ in 0..done(times, with) {
        scene.enqueue();
        scene.plan();
        scene.answer();
    }
}

/// Finds the texts that share a prefix with another.
fn lookup(times: u32, with: bool) {
    let (tree, path) = (prefixes::tree(SHARED), prefixes::text(SHARED, TEXTS));
    for _ in 0..done(times, with) {
        black_box(tree.nearest(SCOPE, black_box(&path), CANDIDATES));
    }
}

/// The same with one entry behind the other.
fn lookup_in_a_conversation(times: u32, with: bool) {
    let (tree, path) = prefixes::conversation();
    for _ in 0..done(times, with) {
        black_box(tree.nearest(SCOPE, black_box(&path), CANDIDATES));
    }
}

/// Inserts a text and removes it.
fn insert_and_evict(times: u32, with: bool) {
    let (mut tree, path) = (prefixes::tree(SHARED), prefixes::text(SHARED, TEXTS));
    for _ in 0..done(times, with) {
        tree.insert(SCOPE, black_box(&path), TEXTS);
        let there = tree.remove(SCOPE, black_box(&path), TEXTS);
        assert!(there, "inserted before");
    }
}
