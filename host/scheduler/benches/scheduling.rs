//! What planning a step takes, and what taking note of its result does, beside the step itself: the
//! scheduler alone, where so many sequences generate, and where others wait for one of their ids; and what
//! planning takes where ids and cells are full and so many chats are kept.
//!
//! `make microbench BENCHES=scheduling`

#[path = "support/scheduling.rs"]
mod support;

use corral_scheduler::RequestId;
use divan::{AllocProfiler, Bencher};
use std::cell::RefCell;
use support::{Attic, House, Size};

#[global_allocator]
static ALLOCATOR: AllocProfiler = AllocProfiler::system();

fn main() {
    divan::main();
}

const SIZES: [Size; 8] = [
    (1, 0),
    (8, 0),
    (64, 0),
    (512, 0),
    (1, 1000),
    (8, 1000),
    (64, 1000),
    (512, 1000),
];

#[divan::bench(args = SIZES, sample_count = 1000, sample_size = 1)]
fn plan(bencher: Bencher, size: Size) {
    let house = RefCell::new(House::new(size));
    bencher
        .with_inputs(|| {
            let mut house = house.borrow_mut();
            house.answer();
            house.go_on();
        })
        .bench_local_values(|()| house.borrow_mut().plan());
}

#[divan::bench(args = SIZES, sample_count = 1000, sample_size = 1)]
fn applied(bencher: Bencher, size: Size) {
    let house = RefCell::new(House::new(size));
    bencher
        .with_inputs(|| {
            let mut house = house.borrow_mut();
            house.go_on();
            house.plan();
            house.sample();
        })
        .bench_local_values(|()| house.borrow_mut().apply());
}

/// One newcomer, who is taken up with the id and the cells of another one.
#[divan::bench(args = [0, 1000, 10_000], sample_count = 1000, sample_size = 1)]
fn plan_with_kept(bencher: Bencher, kept: u32) {
    let attic = RefCell::new(Attic::new(kept));
    bencher
        .with_inputs(|| {
            let mut attic = attic.borrow_mut();
            attic.answer();
            attic.enqueue();
        })
        .bench_local_values(|()| attic.borrow_mut().plan());
}

/// The twin of `plan`: what a list of its rows takes that says no more than whose each is.
#[divan::bench(args = [1, 8, 64, 512])]
fn floor(bencher: Bencher, rows: u64) {
    bencher.bench_local(|| (0..rows).map(RequestId).collect::<Vec<_>>());
}
