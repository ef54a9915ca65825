//! The time to plan a step and to apply its result, for decoding and waiting requests; and to admit a request while ids
//! and cells are full and many retained sequences are swapped out.
//!
//! `make microbench BENCHES=scheduling`

#[path = "support/scheduling.rs"]
mod support;

use corral_scheduler::RequestId;
use divan::{AllocProfiler, Bencher};
use std::cell::RefCell;
use support::{AdmissionScene, DecodeScene, Load};

#[global_allocator]
static ALLOCATOR: AllocProfiler = AllocProfiler::system();

fn main() {
    divan::main();
}

/// The engine runs at most 256 requests, which is llama.cpp's limit; the scheduler has none.
const LOADS: [Load; 10] = [
    (1, 0),
    (8, 0),
    (64, 0),
    (256, 0),
    (512, 0),
    (1, 1000),
    (8, 1000),
    (64, 1000),
    (256, 1000),
    (512, 1000),
];

#[divan::bench(args = LOADS, sample_count = 1000, sample_size = 1)]
fn plan(bencher: Bencher, load: Load) {
    let scene = RefCell::new(DecodeScene::new(load));
    bencher
        .with_inputs(|| {
            let mut scene = scene.borrow_mut();
            scene.answer();
            scene.ensure_step();
        })
        .bench_local_values(|()| scene.borrow_mut().plan());
}

#[divan::bench(args = LOADS, sample_count = 1000, sample_size = 1)]
fn step_done(bencher: Bencher, load: Load) {
    let scene = RefCell::new(DecodeScene::new(load));
    bencher
        .with_inputs(|| {
            let mut scene = scene.borrow_mut();
            scene.ensure_step();
            scene.plan();
            scene.sample();
        })
        .bench_local_values(|()| scene.borrow_mut().apply());
}

/// Admits one request, which needs the id and the cells of a retained sequence.
#[divan::bench(args = [0, 1000, 10_000], sample_count = 1000, sample_size = 1)]
fn admit(bencher: Bencher, swapped_out: u32) {
    let scene = RefCell::new(AdmissionScene::new(swapped_out));
    bencher
        .with_inputs(|| {
            let mut scene = scene.borrow_mut();
            scene.answer();
            scene.enqueue();
        })
        .bench_local_values(|()| scene.borrow_mut().plan());
}

/// The floor of `plan`: a list of the rows' requests.
#[divan::bench(args = [1, 8, 64, 512])]
fn floor(bencher: Bencher, rows: u64) {
    bencher.bench_local(|| (0..rows).map(RequestId).collect::<Vec<_>>());
}
