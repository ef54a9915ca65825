//! The type of the KV cells on the CPU, over llama.cpp and the demo model: q8_0 cells give right sums, also after a swap
//! and from a snapshot. Also errors of device placement.

use corral_engine::{
    Caller, DeviceSelection, EmbedOptions, Engine, Error, GenerateOptions, GpuLayers, KvType,
    LlamaError, LoadError, ModelConfig, Sequence, SnapshotLimits, Snapshots, load_backends,
};
use std::path::Path;
use std::sync::Arc;
use support::{
    SURE, check_empty, check_idle_sums, demo_model, idle_sums, metric, read, settle, view, wait,
};

mod support;

/// A configuration for the CPU, so that results do not depend on the machine.
fn config(kv: KvType) -> ModelConfig {
    let mut config = ModelConfig::new("tiny", demo_model());
    config.threads = Some(1);
    config.placement.devices = DeviceSelection::Cpu;
    config.placement.kv_type = kv;
    config
}

fn limit(max_tokens: u32) -> GenerateOptions {
    GenerateOptions {
        max_tokens,
        ..GenerateOptions::default()
    }
}

fn config_error(config: ModelConfig) -> String {
    match Engine::load(config) {
        Err(error @ LoadError::Config(_)) => error.to_string(),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it loaded"),
    }
}

#[test]
fn cpu_has_all_layers() {
    let engine = Engine::load(config(KvType::F16)).unwrap();
    let info = engine.info();
    // Four layers and the output.
    assert_eq!((info.layers, info.gpu_layers), (5, 0));
    assert!(info.devices.is_empty() && engine.device_memory().is_empty());
}

#[test]
fn q8_0_cells_take_less_memory_and_give_right_sums() {
    let large = Engine::load(config(KvType::F16)).unwrap();
    let (memory, cells) = (large.memory(), 16_384 * 4 * 2 * 128);
    drop(large);
    let engine = Engine::load(config(KvType::Q8_0)).unwrap();
    let less = memory - engine.memory();
    // 34 bytes for 32 numbers instead of 64; compute buffers may differ a little.
    let expected = cells * 2 - cells / 32 * 34;
    assert!(
        less > expected / 10 * 9 && less < expected / 10 * 11,
        "{less} of {expected}"
    );
    let running: Vec<_> = SURE
        .iter()
        .map(|(a, b)| {
            let line = "The quiet owl looks at the river and the stone. ";
            let text = format!("{}\n{a}+{b}=", line.repeat(2));
            let prompt = engine.tokenize(&text, true).unwrap();
            engine
                .generate(prompt, limit(8), Caller::default())
                .unwrap()
        })
        .collect();
    for ((a, b), generation) in SURE.iter().zip(running) {
        let (chunk, outcome) = read(generation);
        outcome.unwrap();
        assert_eq!(chunk.text, (a + b).to_string());
    }
    // The embedding context has f16 cells.
    let text = engine.tokenize("a text", true).unwrap();
    let embedding = engine.embed(vec![text], EmbedOptions::default(), Caller::default());
    assert!(wait(embedding.unwrap()).is_ok());
    check_empty(&engine);
}

#[test]
fn q8_0_states_are_swapped_out_and_in() {
    let mut config = config(KvType::Q8_0);
    (config.context, config.cells) = (Some(512), Some(512));
    config.max_running = 2;
    let engine = Engine::load(config).unwrap();
    let mut idle = idle_sums(&engine);
    settle(&engine);
    assert!(view(&engine).swap_ram_bytes > 0);
    check_idle_sums(&mut idle);
    assert!(metric(&engine, "swap_ins_total") > 0.0);
    drop(idle);
    check_empty(&engine);
}

#[test]
fn snapshots_need_cells_of_their_type() {
    let dir = tempfile::tempdir().unwrap();
    let limits = SnapshotLimits {
        snapshot_bytes: 1 << 24,
        tenant_bytes: 1 << 26,
        tenant_count: 9,
    };
    let engine = |kv| {
        let mut config = config(kv);
        config.snapshots = Some(Arc::new(Snapshots::new(dir.path(), limits).unwrap()));
        Engine::load(config).unwrap()
    };
    let first = engine(KvType::Q8_0);
    let mut sequence = Sequence::new(first.clone(), Caller::default());
    let text = format!("{}\n12+7=", "The cat sleeps. ".repeat(15));
    let tokens = first.tokenize(&text, true).unwrap();
    sequence.append(&tokens).unwrap();
    let (chunk, _) = read(sequence.generate(limit(8)).unwrap());
    assert_eq!(chunk.text, "19");
    settle(&first);
    sequence.snapshot("someone", "cat").unwrap();
    first.shutdown();
    drop((sequence, first));

    let other = engine(KvType::F16);
    let restored = Sequence::restore(other.clone(), Caller::default(), "someone", "cat");
    match restored {
        Err(Error::Snapshot(text)) => assert!(text.contains("other cache settings"), "{text}"),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("f16 cells loaded a q8_0 state"),
    }
    other.shutdown();
    drop(other);

    let same = engine(KvType::Q8_0);
    let restored = Sequence::restore(same.clone(), Caller::default(), "someone", "cat");
    let mut sequence = restored.unwrap();
    let (chunk, outcome) = read(sequence.generate(limit(8)).unwrap());
    let outcome = outcome.unwrap();
    assert_eq!(chunk.text, "19");
    assert_eq!(outcome.cached_tokens, outcome.prompt_tokens - 1);
    drop(sequence);
    check_empty(&same);
}

#[test]
fn placement_errors_list_devices() {
    let mut nonsense = config(KvType::F16);
    nonsense.placement.devices = DeviceSelection::Named(vec!["nonsense".to_owned()]);
    assert!(nonsense.placement.devices.check().is_err());
    let text = config_error(nonsense);
    assert!(
        text.contains("\"nonsense\"") && text.contains("CPU"),
        "{text}"
    );
    let mut impossible = config(KvType::F16);
    impossible.placement.gpu_layers = GpuLayers::Exactly(3);
    let text = config_error(impossible);
    assert!(
        text.contains("3 GPU layers") && text.contains("corral doctor"),
        "{text}"
    );
    let missing = load_backends(Path::new("no/such/directory"));
    assert!(matches!(missing, Err(LlamaError::Setup(_))));
}
