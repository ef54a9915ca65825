//! The type of the KV cells on the CPU: q8_0 cells take less memory, give right sums, and need snapshots of their type.
//! See `device_placement.rs` for q8_0 states that are swapped out and in.

use corral_engine::{
    Caller, DeviceSelection, EmbedOptions, Engine, Error, KvType, LlamaError, ModelConfig,
    Sequence, load_backends,
};
use std::path::Path;
use support::{
    SURE, answer_sum, block_on, check_empty, demo_model, limit, read, sequence, settle, snapshots,
    start,
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

#[test]
fn q8_cells_save_memory_and_give_right_sums() {
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
    let story = "The quiet owl looks at the river and the stone. ".repeat(2);
    let sum = |&(a, b): &(u32, u32)| start(&engine, &format!("{story}\n{a}+{b}="), limit(8));
    let generations: Vec<_> = SURE.iter().map(sum).collect();
    for ((a, b), generation) in SURE.iter().zip(generations) {
        let (chunk, outcome) = read(generation);
        outcome.unwrap();
        assert_eq!(chunk.text, (a + b).to_string());
    }
    // The embedding context has f16 cells.
    let text = engine.tokenize("a text", true).unwrap();
    let embedding = engine.embed(vec![text], EmbedOptions::default(), Caller::default());
    assert!(block_on(embedding.unwrap()).is_ok());
    check_empty(&engine);
}

#[test]
fn snapshots_need_cells_of_their_type() {
    let dir = tempfile::tempdir().unwrap();
    let engine = |kv| {
        let mut config = config(kv);
        config.snapshots = snapshots(dir.path());
        Engine::load(config).unwrap()
    };
    let first = engine(KvType::Q8_0);
    let text = format!("{}\n12+7=", "The cat sleeps. ".repeat(15));
    let mut sequence = sequence(&first, &text);
    answer_sum(&mut sequence, 19);
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
    let outcome = answer_sum(&mut sequence, 19);
    assert_eq!(outcome.cached_tokens, outcome.prompt_tokens - 1);
    drop(sequence);
    check_empty(&same);
}

#[test]
fn missing_backend_directory_is_an_error() {
    let missing = load_backends(Path::new("no/such/directory"));
    assert!(matches!(missing, Err(LlamaError::Setup(_))));
}
