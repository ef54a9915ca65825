//! What the tests of the engine share. Not all of them use all of it.
#![allow(dead_code)]

use corral_engine::{
    Caller, Chunk, DeviceSelection, Engine, EngineStatus, Error, GenerateOptions, Generation,
    GpuLayers, ModelConfig, Outcome, PlacementOptions, Sequence, Tenant,
};
use corral_random_model::{Quant, Qwen3, Recipe};
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Once};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// In the environment: the device that the tests run on, such as `Vulkan0`. Without it they run on what
/// the engine takes by itself: where no GPU backend is built in, that is the processor.
const DEVICE: &str = "CORRAL_TEST_DEVICE";
/// In the environment: the directory of backends, for tests that were built with `dynamic-backends`.
const BACKENDS: &str = "CORRAL_TEST_BACKENDS";
/// In the environment: the demo model, where tests run on another machine than that which built them.
const MODEL: &str = "CORRAL_MODEL";

/// Sums that the demo model gets right after other text too.
pub const SURE: [(u32, u32); 5] = [(12, 7), (20, 22), (3, 4), (31, 27), (45, 54)];

fn said(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

/// The demo model. Each test that loads one begins here, so what has to be there before that is then.
pub fn demo_model() -> PathBuf {
    static LOADED: Once = Once::new();
    LOADED.call_once(|| {
        if let Some(dir) = said(BACKENDS) {
            corral_engine::load_backends(Path::new(&dir)).expect("the backends are loaded");
        }
    });
    let here = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny/tiny.gguf");
    said(MODEL).map_or_else(here, PathBuf::from)
}

/// The device that the tests are to run on, if they were told.
pub fn device() -> Option<String> {
    said(DEVICE)
}

/// How to load the demo model: with one compute thread, and whole on the device that the tests run on.
pub fn config() -> ModelConfig {
    let mut config = ModelConfig::new("tiny", demo_model());
    config.threads = Some(1);
    if let Some(device) = device() {
        config.placement = PlacementOptions {
            devices: DeviceSelection::Named(vec![device]),
            // All of them: it has fewer.
            gpu_layers: GpuLayers::Exactly(99),
            ..PlacementOptions::default()
        };
    }
    config
}

/// Waits for a future on this thread.
pub fn wait<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park_timeout(Duration::from_secs(10)),
        }
    }
}

/// Reads a generation to its end.
pub fn read(mut generation: Generation) -> (Chunk, Result<Outcome, Error>) {
    let mut all = Chunk::default();
    while let Some(chunk) = wait(generation.next()) {
        all.tokens.extend(chunk.tokens);
        all.text.push_str(&chunk.text);
    }
    (all, generation.outcome().expect("it was read to its end"))
}

/// One of the engine's numbers.
pub fn metric(engine: &Engine, name: &str) -> f64 {
    let name = format!("corral_engine_{name}");
    let metrics = engine.metrics();
    let found = metrics.iter().find(|metric| metric.name == name);
    found.unwrap_or_else(|| panic!("no metric {name}")).value
}

/// What goes on in an engine.
pub fn view(engine: &Engine) -> EngineStatus {
    let (tell, told) = sync_channel(1);
    let tell = move |view| tell.send(view).expect("the test waits for it");
    engine.status(tell).expect("the engine looks");
    told.recv().expect("the engine answers")
}

/// Waits until nothing runs and everything behind the last answer is counted.
pub fn settle(engine: &Engine) {
    let until = Instant::now() + Duration::from_secs(20);
    let counted = || metric(engine, "sequence_ids_used") + metric(engine, "requests_waiting");
    // What was asked before is in the view; the metrics may be from before that.
    let runs = |view: &EngineStatus| view.waiting > 0 || !view.requests.is_empty();
    while runs(&view(engine)) || counted() > 0.0 {
        assert!(Instant::now() < until, "something still runs");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Checks that every token was computed once, but for those that were found, lost or left.
pub fn check_identity(engine: &Engine) {
    let count = |name: &str| metric(engine, &format!("{name}_total"));
    let expected = count("prompt_tokens") - count("prefix_cache_hits_tokens")
        + count("generated_tokens")
        - count("requests_finished")
        - count("forced_tokens_uncomputed")
        + count("draft_tokens_rejected")
        + count("next_token_computed_tokens")
        + count("recomputed_tokens")
        + count("discarded_tokens");
    assert_eq!(count("computed_tokens"), expected);
}

/// Checks that nothing runs, and that nothing stays once nobody claims it.
pub fn check_empty(engine: &Engine) {
    settle(engine);
    engine.clear_prefix_cache().expect("the engine looks");
    let view = view(engine);
    assert!(
        view.requests.is_empty() && view.prefix_cache.is_empty(),
        "{view:?}"
    );
    assert_eq!((view.cells_used, view.sequence_ids_used), (0, 0));
    assert_eq!(
        (
            view.swap_ram_bytes,
            view.swap_disk_bytes,
            view.prefix_offload_bytes
        ),
        (0, 0, 0)
    );
    assert_eq!(metric(engine, "kv_cells_leaked"), 0.0);
    check_identity(engine);
}

/// A sequence for each of [`SURE`] that was asked it after some text and is idle now. Each is another tenant's, so
/// that none finds what it wants with another one.
pub fn idle_sums(engine: &Engine) -> Vec<Sequence> {
    let ask = |((a, b), tenant): ((u32, u32), _)| {
        let caller = Caller {
            tenant: Tenant(tenant),
            ..Caller::default()
        };
        let mut sequence = Sequence::new(engine.clone(), caller);
        let text = format!("{}\n{a}+{b}=", "The cat sleeps. ".repeat(15));
        let tokens = engine.tokenize(&text, true).unwrap();
        sequence.append(&tokens).unwrap();
        answer_again(&mut sequence, a + b);
        sequence
    };
    SURE.into_iter().zip(10..).map(ask).collect()
}

/// Asks such a sequence once more, for the `sum` of its numbers.
pub fn answer_again(sequence: &mut Sequence, sum: u32) -> Outcome {
    let options = GenerateOptions {
        max_tokens: 8,
        ..GenerateOptions::default()
    };
    let (chunk, outcome) = read(sequence.generate(options).unwrap());
    assert_eq!(chunk.text, sum.to_string());
    outcome.expect("it is answered")
}

/// All of them go on with what they had: nothing but the last token is computed.
pub fn check_idle_sums(idle: &mut [Sequence]) {
    for (sequence, (a, b)) in idle.iter_mut().zip(SURE) {
        let outcome = answer_again(sequence, a + b);
        assert_eq!(outcome.cached_tokens, outcome.prompt_tokens - 1);
    }
}

/// A small model of random weights with so many tokens, in a file that the test removes.
pub fn made_model(name: &str, tokens: u32, seed: u64) -> PathBuf {
    let recipe = Recipe {
        name: "test",
        sizes: Qwen3 {
            width: 256,
            head_size: 64,
            feed_forward: 512,
            ..Qwen3::tiny()
        },
        tokens,
        quant: Quant::Q4Km,
        seed,
    };
    let file = format!("corral-{name}-{}.gguf", std::process::id());
    let file = std::env::temp_dir().join(file);
    recipe.write(&file).expect("it is made");
    file
}
