//! What server-sent events cost a plugin, but for the stream that takes them: a thousand of them, written
//! to memory. Native code, not WebAssembly: what counts is the ratio to the floor, and the allocations.
//!
//! `cargo bench --manifest-path plugins/Cargo.toml -p corral-sdk --bench events`

use corral_sdk::Response;
use corral_sdk::testing::block_on;
use divan::counter::ItemsCount;
use divan::{AllocProfiler, Bencher, black_box};
use serde_json::{Value, json};
use std::rc::Rc;

#[global_allocator]
static ALLOCATOR: AllocProfiler = AllocProfiler::system();

fn main() {
    divan::main();
}

const EVENTS: usize = 1000;
/// An event of `generate`.
const TOKEN: &str = r#"{"text":" river"}"#;
/// Each line gets a beginning of its own.
const LINES: &str = "The quiet owl\nlooks at the river\r\nand the stone.\n";

/// What a client of OpenAI's API gets for a token.
fn chunk() -> Value {
    json!({
        "id": "chatcmpl-0123456789abcdef", "object": "chat.completion.chunk", "created": 1_700_000_000,
        "model": "tiny", "choices": [{"index": 0, "delta": {"content": " river"}, "finish_reason": null}],
    })
}

#[divan::bench(args = ["a token", "lines"])]
fn data(bencher: Bencher, what: &str) {
    let text = if what == "lines" { LINES } else { TOKEN };
    bencher.counter(ItemsCount::new(EVENTS)).bench_local(|| {
        let response = Response::events(async move |events| {
            for _ in 0..EVENTS {
                events.data(text).await?;
            }
            Ok(())
        });
        block_on(response.read())
    });
}

#[divan::bench]
fn named(bencher: Bencher) {
    bencher.counter(ItemsCount::new(EVENTS)).bench_local(|| {
        let response = Response::events(async |events| {
            for _ in 0..EVENTS {
                events.named("content_block_delta", TOKEN).await?;
            }
            Ok(())
        });
        block_on(response.read())
    });
}

#[divan::bench]
fn json(bencher: Bencher) {
    let chunk = Rc::new(chunk());
    bencher.counter(ItemsCount::new(EVENTS)).bench_local(|| {
        let chunk = Rc::clone(&chunk);
        let response = Response::events(async move |events| {
            for _ in 0..EVENTS {
                events.json(&*chunk).await?;
            }
            Ok(())
        });
        block_on(response.read())
    });
}

/// The twin of `data`: the same bytes, copied to the same kind of memory.
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
