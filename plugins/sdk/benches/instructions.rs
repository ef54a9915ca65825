//! The plugin's hot path, for counting instructions: `make instructions`. Native code, not
//! WebAssembly.

// Shared harness of both workspaces.
#[path = "support/events.rs"]
mod events;
#[path = "../../../host/engine/benches/support/instruction_count.rs"]
mod instruction_count;

use events::{EVENTS, LINES, TOKEN};
use instruction_count::{Path, done};
use std::hint::black_box;
use std::rc::Rc;

const PATHS: &[Path] = &[
    Path {
        name: "sse-data",
        operations: 10_000,
        run: |count, with| times(count, with, || events::data(black_box(TOKEN))),
    },
    Path {
        name: "sse-data-of-three-lines",
        operations: 10_000,
        run: |count, with| times(count, with, || events::data(black_box(LINES))),
    },
    Path {
        name: "sse-named",
        operations: 10_000,
        run: |count, with| times(count, with, events::named),
    },
    Path {
        name: "sse-json",
        operations: 10_000,
        run: |count, with| {
            let chunk = Rc::new(events::chunk());
            times(count, with, || events::json(black_box(&chunk)));
        },
    },
];

fn main() {
    instruction_count::main(PATHS);
}

/// Writes `count` events.
fn times(count: u32, with: bool, write: impl Fn() -> Vec<u8>) {
    for _ in 0..done(count, with) as usize / EVENTS {
        black_box(write());
    }
}
