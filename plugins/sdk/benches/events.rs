//! Cost of server-sent events: a thousand events written to memory, without the stream that sends
//! them. Native code, not WebAssembly: compare with `floor`, and count allocations.
//!
//! `make microbench BENCHES=events`

#[path = "support/events.rs"]
mod support;

use divan::counter::ItemsCount;
use divan::{AllocProfiler, Bencher, black_box};
use std::rc::Rc;
use support::{EVENTS, LINES, TOKEN, chunk};

#[global_allocator]
static ALLOCATOR: AllocProfiler = AllocProfiler::system();

fn main() {
    divan::main();
}

#[divan::bench(args = ["a token", "lines"])]
fn data(bencher: Bencher, what: &str) {
    let text = if what == "lines" { LINES } else { TOKEN };
    bencher
        .counter(ItemsCount::new(EVENTS))
        .bench_local(|| support::data(black_box(text)));
}

#[divan::bench]
fn named(bencher: Bencher) {
    bencher
        .counter(ItemsCount::new(EVENTS))
        .bench_local(support::named);
}

#[divan::bench]
fn json(bencher: Bencher) {
    let chunk = Rc::new(chunk());
    bencher
        .counter(ItemsCount::new(EVENTS))
        .bench_local(|| support::json(black_box(&chunk)));
}

/// The lower bound for `data`: copies the same bytes to the same kind of memory.
#[divan::bench]
fn floor(bencher: Bencher) {
    let event = format!("data: {TOKEN}\n\n");
    bencher.counter(ItemsCount::new(EVENTS)).bench_local(|| {
        let mut page = Vec::new();
        for _ in 0..EVENTS {
            page.extend_from_slice(black_box(event.as_bytes()));
        }
        page
    });
}
