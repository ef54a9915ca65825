//! Helpers of the engine's tests.

// Each test uses a part of them.
#![allow(dead_code, unused_imports)]

#[path = "../../src/block_on.rs"]
mod block_on;

pub use block_on::block_on;

use corral_engine::{
    Caller, Chunk, DeviceSelection, Engine, EngineStatus, Error, GenerateOptions, Generation,
    GpuLayers, ModelConfig, Outcome, PlacementOptions, Sequence, SnapshotLimits, Snapshots, Tenant,
};
use corral_random_model::{Architecture, write_model};
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

/// Environment variable: the device to run on, such as `Vulkan0`. Without it the engine chooses; without a GPU backend
/// that is the CPU.
const DEVICE: &str = "CORRAL_TEST_DEVICE";
/// Environment variable: the directory of backends, for tests built with `dynamic-backends`.
const BACKENDS: &str = "CORRAL_TEST_BACKENDS";
/// Environment variable: the demo model, for tests that run on another machine than the one that built them.
const MODEL: &str = "CORRAL_MODEL";

/// Sums that the demo model answers correctly after other text too.
pub const SURE: [(u32, u32); 5] = [(12, 7), (20, 22), (3, 4), (31, 27), (45, 54)];

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

/// The demo model. Loads the backends first if they are dynamic.
pub fn demo_model() -> PathBuf {
    static LOADED: Once = Once::new();
    LOADED.call_once(|| {
        if let Some(dir) = variable(BACKENDS) {
            corral_engine::load_backends(Path::new(&dir)).expect("the backends are loaded");
        }
    });
    let here = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny/tiny.gguf");
    variable(MODEL).map_or_else(here, PathBuf::from)
}

/// The draft model of the demo model.
pub fn draft_model() -> PathBuf {
    demo_model().with_file_name("draft.gguf")
}

/// The device to run on, if it is set.
pub fn device() -> Option<String> {
    variable(DEVICE)
}

/// Configures the demo model with one compute thread, and all layers on the device to run on.
pub fn config() -> ModelConfig {
    let mut config = ModelConfig::new("tiny", demo_model());
    config.threads = Some(1);
    if let Some(device) = device() {
        config.placement = PlacementOptions {
            devices: DeviceSelection::Named(vec![device]),
            // More than the model has.
            gpu_layers: GpuLayers::Exactly(99),
            ..PlacementOptions::default()
        };
    }
    config
}

/// The demo model with a changed configuration.
pub fn load(change: impl FnOnce(&mut ModelConfig)) -> Engine {
    let mut config = config();
    change(&mut config);
    Engine::load(config).expect("the demo model loads")
}

/// A model with random weights.
pub fn random_engine(shape: &Architecture, name: &str) -> Engine {
    let file = format!("corral-random-{name}-{}.gguf", std::process::id());
    let file = std::env::temp_dir().join(file);
    write_model(shape, &demo_model(), &file, 7).expect("the model is written");
    let mut config = ModelConfig::new(name, &file);
    config.threads = Some(1);
    let engine = Engine::load(config).expect("the model loads");
    std::fs::remove_file(file).expect("it can be removed");
    engine
}

/// A store of snapshots with large limits.
pub fn snapshots(dir: &Path) -> Option<Arc<Snapshots>> {
    let limits = SnapshotLimits {
        snapshot_bytes: 1 << 24,
        owner_bytes: 1 << 30,
        owner_count: 1000,
    };
    Some(Arc::new(Snapshots::new(dir, limits).unwrap()))
}

pub fn limit(max_tokens: u32) -> GenerateOptions {
    GenerateOptions {
        max_tokens,
        ..GenerateOptions::default()
    }
}

/// Generates this many tokens without regard to end tokens.
pub fn exactly(tokens: u32) -> GenerateOptions {
    GenerateOptions {
        ignore_eos: true,
        ..limit(tokens)
    }
}

pub fn start(engine: &Engine, prompt: &str, options: GenerateOptions) -> Generation {
    let tokens = engine.tokenize(prompt, true).unwrap();
    let generation = engine.generate(tokens, options, Caller::default());
    generation.expect("the request is accepted")
}

/// Generates after a prompt; must succeed.
pub fn answer(engine: &Engine, prompt: &str, options: GenerateOptions) -> (Chunk, Outcome) {
    let (chunk, outcome) = read(start(engine, prompt, options));
    (chunk, outcome.expect("the generation succeeds"))
}

pub fn sequence(engine: &Engine, text: &str) -> Sequence {
    let mut sequence = Sequence::new(engine.clone(), Caller::default());
    let tokens = engine.tokenize(text, true).unwrap();
    sequence.append(&tokens).unwrap();
    sequence
}

/// Reads a generation to its end.
pub fn read(mut generation: Generation) -> (Chunk, Result<Outcome, Error>) {
    let mut all = Chunk::default();
    while let Some(chunk) = block_on(generation.next()) {
        all.tokens.extend(chunk.tokens);
        all.logprobs.extend(chunk.logprobs);
        all.text.push_str(&chunk.text);
    }
    (all, generation.outcome().expect("the generation has ended"))
}

/// The value of an engine metric.
pub fn metric(engine: &Engine, name: &str) -> f64 {
    let name = format!("corral_engine_{name}");
    let metrics = engine.metrics();
    let found = metrics.iter().find(|metric| metric.name == name);
    found.unwrap_or_else(|| panic!("no metric {name}")).value
}

pub fn status(engine: &Engine) -> EngineStatus {
    let (sender, receiver) = sync_channel(1);
    let send = move |status| sender.send(status).expect("the test waits for the status");
    engine.status(send).expect("the engine has room");
    receiver.recv().expect("the engine replies")
}

/// Waits until no request runs or waits and the metrics are up to date.
pub fn settle(engine: &Engine) {
    let until = Instant::now() + Duration::from_secs(60);
    let counted = || metric(engine, "sequence_ids_used") + metric(engine, "requests_waiting");
    // The status includes all earlier commands; the metrics may be older.
    let is_busy = |status: &EngineStatus| status.waiting > 0 || !status.requests.is_empty();
    while is_busy(&status(engine)) || counted() > 0.0 {
        assert!(Instant::now() < until, "a request is still open");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Checks that every token was computed once, except cached, recomputed and discarded ones.
pub fn check_identity(engine: &Engine) {
    let count = |name: &str| metric(engine, &format!("{name}_total"));
    let expected = count("prompt_tokens") - count("prefix_cache_hit_tokens")
        + count("generated_tokens")
        - count("requests_finished")
        - count("forced_tokens_uncomputed")
        + count("draft_tokens_rejected")
        + count("next_token_computed_tokens")
        + count("recomputed_tokens")
        + count("discarded_tokens");
    assert_eq!(count("computed_tokens"), expected);
    let accepted = count("draft_model_tokens_accepted");
    let verified = accepted + count("draft_model_tokens_rejected");
    assert!(verified <= count("draft_model_tokens_proposed"));
    assert!(accepted <= count("draft_tokens_accepted"));
}

/// Checks that no request is open, and that nothing is left once the prefix cache is cleared.
pub fn check_empty(engine: &Engine) {
    settle(engine);
    engine.clear_prefix_cache().expect("the engine has room");
    let status = status(engine);
    assert!(status.requests.is_empty(), "{status:?}");
    assert!(status.prefix_cache.is_empty(), "{status:?}");
    assert_eq!((status.cells_running, status.cells_cached), (0, 0));
    assert_eq!(status.sequence_ids_running, 0);
    assert_eq!(status.sequence_ids_cached, 0);
    assert_eq!((status.swap_ram_bytes, status.swap_disk_bytes), (0, 0));
    assert_eq!(status.prefix_offload_bytes, 0);
    assert_eq!(metric(engine, "kv_cells_leaked"), 0.0);
    // The status may be older than the next run of the draft model, which frees its sequences of ended requests.
    let until = Instant::now() + Duration::from_secs(60);
    while metric(engine, "draft_model_kv_cells_used") > 0.0 {
        assert!(Instant::now() < until, "the draft model keeps cells");
        std::thread::sleep(Duration::from_millis(2));
    }
    check_identity(engine);
}

/// An idle sequence for each of [`SURE`], which has answered its sum after some text. Each has its own tenant, so that
/// they share no prefix.
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
        answer_sum(&mut sequence, a + b);
        sequence
    };
    SURE.into_iter().zip(10..).map(ask).collect()
}

/// Generates after a sequence that ends with a question, and checks the answer.
pub fn answer_sum(sequence: &mut Sequence, sum: u32) -> Outcome {
    let (chunk, outcome) = read(sequence.generate(limit(8)).unwrap());
    assert_eq!(chunk.text, sum.to_string());
    outcome.expect("the generation succeeds")
}

/// Checks that each sequence continues its state: only the last token is computed again.
pub fn check_idle_sums(idle: &mut [Sequence]) {
    for (sequence, (a, b)) in idle.iter_mut().zip(SURE) {
        let outcome = answer_sum(sequence, a + b);
        assert_eq!(outcome.cached_tokens, outcome.prompt_tokens - 1);
    }
}
