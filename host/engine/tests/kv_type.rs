//! The type of the KV cells on the CPU: snapshots need their type. See `device_placement.rs` for q8_0 states that are
//! swapped out and in, and `doctor.rs` of the whole program for their memory and sums.

use corral_engine::{
    Caller, DeviceSelection, EmbedOptions, Engine, Error, KvType, ModelConfig, Sequence,
};
use support::{answer_sum, block_on, check_empty, demo_model, sequence, settle, snapshots};

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
fn embeddings_work_beside_q8_cells() {
    let engine = Engine::load(config(KvType::Q8_0)).unwrap();
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

    let restore = |engine: &Engine| {
        let (engine, caller) = (engine.clone(), Caller::default());
        Sequence::restore(engine, caller, "someone", "cat", usize::MAX)
    };
    let other = engine(KvType::F16);
    match restore(&other) {
        Err(Error::Snapshot(text)) => assert!(text.contains("other cache settings"), "{text}"),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("f16 cells loaded a q8_0 state"),
    }
    other.shutdown();
    drop(other);

    let same = engine(KvType::Q8_0);
    let mut sequence = restore(&same).unwrap();
    let outcome = answer_sum(&mut sequence, 19);
    assert_eq!(outcome.cached_tokens, outcome.prompt_tokens - 1);
    drop(sequence);
    check_empty(&same);
}
