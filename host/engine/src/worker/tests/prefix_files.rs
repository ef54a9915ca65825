//! Prefixes on disk over engines that end and start again. An engine computes fewer steps before a hit than the scheduler needs
//! to know costs, so that it always swaps in.

use super::support::*;
use crate::machine_memory::MemoryPressure;
use crate::metrics::get;
use crate::model_config::ModelConfig;
use crate::worker::Command;
use crate::{Caller, PrefixOwner, Tenant, Token};
use corral_scheduler::AdapterId;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use tempfile::TempDir;

/// A model, an adapter and a directory for prefixes.
struct Test {
    dir: TempDir,
    config: ModelConfig,
}

impl Test {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let file = |name: &str| dir.path().join(name);
        for name in ["model", "adapter"] {
            fs::write(file(name), name).unwrap();
        }
        let mut config = ModelConfig::new("m", file("model"));
        config.adapters = vec![("a".into(), file("adapter"))];
        config.prefix_disk = Some((file("prefixes"), 1 << 20));
        Self { dir, config }
    }

    /// An engine that knows the files.
    fn start(&self) -> TestEngine {
        self.start_with(self.config.clone())
    }

    fn start_with(&self, config: ModelConfig) -> TestEngine {
        let engine = TestConfig {
            prefixes: Some(config),
            ..TestConfig::default()
        }
        .start();
        // It wakes once the files are known.
        wait_until(|| get(&engine.metrics.wake_ups) > 0);
        engine
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.dir.path().join("prefixes/m"));
        let paths = entries
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().path());
        let is_prefix = |path: &PathBuf| path.extension().is_some_and(|end| end == "prefix");
        paths.filter(is_prefix).collect()
    }
}

fn caller(name: &str) -> Caller {
    Caller {
        tenant: Tenant(name.len() as u32),
        prefix_owner: Some(PrefixOwner::new("tenant", name)),
        ..Caller::default()
    }
}

/// Generates two tokens after `from..to`. Returns the cached tokens.
#[track_caller]
fn generate(engine: &TestEngine, caller: Caller, from: Token, to: Token) -> u32 {
    let generation = engine.generate_for(caller, (from..to).collect(), limit(2));
    read_tokens(generation, [to, to + 1]).cached_tokens
}

/// The same with the adapter, after 100..160 and for the owner a.
#[track_caller]
fn generate_adapted(engine: &TestEngine) -> u32 {
    let generation =
        engine.generate_adapted(caller("a"), AdapterId(1), (100..160).collect(), limit(2));
    read_tokens(generation, [161, 163]).cached_tokens
}

/// Waits for writes, which end before the wake that reports them.
fn wait_for_files(engine: &TestEngine, count: u64) {
    let metrics = &engine.metrics;
    wait_until(|| get(&metrics.prefix_disk_entries) == count);
}

#[test]
fn offloaded_prefix_is_written_at_once() {
    let test = Test::new();
    let engine = test.start();
    generate(&engine, caller("a"), 0, 60);
    engine.send(Command::OffloadPrefixes);
    wait_for_files(&engine, 1);
    // As after a kill: the files without the end of the engine.
    let copy = test.dir.path().join("copy/m");
    fs::create_dir_all(&copy).unwrap();
    wait_until(|| test.files().len() == 1);
    let file = &test.files()[0];
    fs::copy(file, copy.join(file.file_name().unwrap())).unwrap();
    // The copy in RAM is used first.
    assert_eq!(generate(&engine, caller("a"), 0, 60), 59);
    assert_eq!(get(&engine.metrics.prefix_disk_read_bytes), 0);
    engine.end();
    let mut config = test.config.clone();
    config.prefix_disk = Some((test.dir.path().join("copy"), 1 << 20));
    let engine = test.start_with(config);
    assert_eq!(generate(&engine, caller("a"), 0, 60), 59);
    engine.end();
}

#[test]
fn prefix_on_disk_survives_memory_pressure() {
    let test = Test::new();
    let engine = test.start();
    generate(&engine, caller("a"), 0, 60);
    engine.send(Command::OffloadPrefixes);
    wait_for_files(&engine, 1);
    engine.send(Command::SetMemoryPressure(MemoryPressure::DropPrefixes));
    assert_eq!(generate(&engine, caller("a"), 0, 60), 59);
    assert_eq!(get(&engine.metrics.swap_ins), 1);
    assert!(get(&engine.metrics.prefix_disk_read_bytes) > 0);
    engine.end();
}

#[test]
fn prefix_of_other_owner_is_never_used() {
    let test = Test::new();
    let engine = test.start();
    generate(&engine, caller("a"), 0, 60);
    assert_eq!(generate_adapted(&engine), 0);
    engine.end();
    assert_eq!(test.files().len(), 2);
    let nobody = Caller {
        prefix_owner: None,
        ..caller("nobody")
    };
    let engine = test.start();
    assert_eq!(generate(&engine, caller("bb"), 0, 60), 0);
    assert_eq!(get(&engine.metrics.prefix_disk_read_bytes), 0);
    assert_eq!(generate(&engine, caller("a"), 0, 60), 59);
    engine.end();
    let engine = test.start();
    assert_eq!(generate(&engine, nobody, 0, 60), 0);
    assert_eq!(generate_adapted(&engine), 59);
    engine.end();
    // The same owner without the adapter.
    let engine = test.start();
    assert_eq!(generate(&engine, caller("a"), 100, 160), 0);
    engine.end();
    // Another version of the adapter.
    fs::write(test.dir.path().join("adapter"), "new").unwrap();
    let engine = test.start();
    assert_eq!(generate_adapted(&engine), 0);
    engine.end();
}

#[test]
fn failed_write_fails_no_request() {
    let test = Test::new();
    let engine = test.start();
    generate(&engine, caller("a"), 0, 60);
    fs::remove_dir_all(test.dir.path().join("prefixes")).unwrap();
    engine.send(Command::OffloadPrefixes);
    let metrics = Arc::clone(&engine.metrics);
    wait_until(|| get(&metrics.prefix_disk_failed_writes) == 1);
    // The copy in RAM is there.
    assert_eq!(generate(&engine, caller("a"), 0, 60), 59);
    engine.end();
}

#[test]
fn cleared_prefix_cache_has_no_files() {
    let test = Test::new();
    let engine = test.start();
    generate(&engine, caller("a"), 0, 60);
    generate(&engine, caller("bb"), 100, 160);
    engine.end();
    assert_eq!(test.files().len(), 2);
    let engine = test.start();
    // The second owner makes no request.
    generate(&engine, caller("a"), 0, 60);
    engine.send(Command::ClearPrefixCache);
    wait_until(|| test.files().is_empty());
    assert_eq!(generate(&engine, caller("bb"), 100, 160), 0);
    engine.end();
}

#[test]
fn images_are_not_written() {
    let test = Test::new();
    let engine = test.start();
    let mut prompt: Vec<Token> = (0..60).collect();
    prompt.splice(10..10, [*corral_llama::IMAGE_TOKENS.start()]);
    read_tokens(engine.generate_for(caller("a"), prompt, limit(2)), [60, 61]);
    generate(&engine, caller("a"), 100, 160);
    engine.end();
    assert_eq!(test.files().len(), 1);
}
