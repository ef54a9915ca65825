//! The pool with the demo model: the same file under several names is several models. `models.rs` of the whole program has
//! shared loads, models in turn, broken files and sizes over the budget.

use super::*;
use crate::GenerateOptions;
use crate::block_on::block_on;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

fn demo_model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny/tiny.gguf")
}

fn config(name: &str, path: PathBuf) -> ModelConfig {
    let mut config = ModelConfig::new(name, path);
    config.threads = Some(1);
    config.max_running = 8;
    (config.context, config.cells) = (Some(512), Some(512));
    config
}

/// Models `a`, `b`, `c` and so on.
fn models(count: u8, settings: &ModelPoolSettings) -> ModelPool {
    let name = |n: u8| char::from(b'a' + n).to_string();
    let configs = (0..count).map(|n| config(&name(n), demo_model()));
    ModelPool::new(configs.collect(), settings).expect("a thread starts")
}

fn open(models: &ModelPool, name: &str) -> Result<ModelLease, OpenError> {
    block_on(models.open(Some(name), &Caller::default()))
}

fn sum(lease: &ModelLease, a: u32, b: u32) {
    let tokens = lease.tokenize(&format!("{a}+{b}="), true).expect("short");
    let options = GenerateOptions {
        max_tokens: 10,
        ..GenerateOptions::default()
    };
    let mut generation = lease
        .generate(tokens, options, Caller::default())
        .expect("there is room");
    let mut text = String::new();
    while let Some(chunk) = block_on(generation.next()) {
        text += &chunk.text;
    }
    assert!(matches!(generation.outcome(), Some(Ok(_))));
    assert_eq!(text, (a + b).to_string(), "{a}+{b}");
}

fn ask(models: &ModelPool, name: &str, a: u32) {
    let lease = open(models, name).expect("it opens");
    assert_eq!(lease.info().name, name);
    sum(&lease, a, 7);
}

fn status(models: &ModelPool, name: &str) -> ModelStatus {
    let mut all = models.status().into_iter();
    all.find(|status| status.name == name).expect(name)
}

fn number(models: &ModelPool, name: &str, metric: &str) -> f64 {
    let all = models.metrics();
    let (_, metrics) = all.iter().find(|(own, _)| own == name).expect(name);
    let found = metrics.iter().find(|found| found.name == metric);
    found.expect(metric).value
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(
            started.elapsed() < Duration::from_secs(120),
            "timeout: {what}"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn default_model_is_the_first() {
    let models = models(2, &ModelPoolSettings::default());
    assert_eq!(models.names().collect::<Vec<_>>(), ["a", "b"]);
    let lease = block_on(models.open(None, &Caller::default())).expect("it is there");
    assert_eq!(lease.info().name, "a");
    models.shutdown();
    assert!(!lease.is_alive());
    let closed = open(&models, "b").err().expect("the pool is closed");
    assert!(
        matches!(closed, OpenError::Unavailable(Error::ShuttingDown)),
        "{closed:?}"
    );
}

#[test]
fn unknown_model_error_lists_names() {
    let some = models(2, &ModelPoolSettings::default());
    let error = open(&some, "z").err().expect("there is none");
    assert_eq!(error.to_string(), "there is no model z; there is a, b");
    assert!(matches!(Error::from(error), Error::NotFound(_)));
    let none = ModelPool::loaded(Vec::new());
    let error = block_on(none.open(None, &Caller::default()))
        .err()
        .expect("there is none");
    assert!(error.to_string().contains("serves none"), "{error}");
    none.shutdown();
}

#[test]
fn idle_model_frees_memory_and_loads_again() {
    let settings = ModelPoolSettings {
        idle: Some(Duration::from_millis(20)),
        ..ModelPoolSettings::default()
    };
    let models = models(1, &settings);
    let mut expected = 0.0;
    for round in 1..=5 {
        let lease = open(&models, "a").expect("it opens");
        sum(&lease, round, 7);
        let freed = lease.engine().watch();
        let clone = lease.clone();
        drop(lease);
        std::thread::sleep(Duration::from_millis(60));
        assert!(clone.is_alive(), "it is in use");
        drop(clone);
        until("it is unloaded", || {
            status(&models, "a").state == ModelState::Unloaded
        });
        assert!(freed(), "its memory is not freed");
        assert_eq!(status(&models, "a").memory, 0);
        expected += 1.0;
        for (metric, value) in [
            ("corral_model_loads_total", expected),
            ("corral_model_unloads_total", expected),
            ("corral_engine_requests_finished_total", expected),
            ("corral_engine_kv_cells_used", 0.0),
        ] {
            assert_eq!(number(&models, "a", metric), value, "{metric}");
        }
    }
    models.shutdown();
}

#[test]
fn requests_during_unload_are_answered() {
    let settings = ModelPoolSettings {
        idle: Some(Duration::from_millis(1)),
        ..ModelPoolSettings::default()
    };
    let models = models(2, &settings);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3_u32 {
            let (models, done) = (&models, &done);
            scope.spawn(move || {
                for a in 0..60 {
                    ask(
                        models,
                        if (a + thread) % 3 == 0 { "a" } else { "b" },
                        a % 30,
                    );
                    std::thread::sleep(Duration::from_millis(u64::from(a % 5)));
                }
                done.store(true, Ordering::Relaxed);
            });
        }
        let (models, done) = (&models, &done);
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                models.unload("a").expect("there is one");
                std::thread::sleep(Duration::from_millis(1));
            }
        });
    });
    assert!(
        number(&models, "a", "corral_model_unloads_total") > 1.0,
        "it was never unloaded"
    );
    let finished = "corral_engine_requests_finished_total";
    let all = number(&models, "a", finished) + number(&models, "b", finished);
    assert_eq!(all, 180.0);
    models.shutdown();
}

/// Settings with memory for this many demo models.
fn memory_for(count: u64) -> ModelPoolSettings {
    let pool = models(1, &ModelPoolSettings::default());
    let memory = open(&pool, "a").expect("it opens").memory();
    pool.shutdown();
    let estimate = estimate::estimate_host_bytes(&config("a", demo_model())).expect("a model");
    ModelPoolSettings {
        memory: Some(count * estimate.max(memory)),
        ..ModelPoolSettings::default()
    }
}

#[test]
fn waiter_gets_room_of_busy_model() {
    let models = models(2, &memory_for(1));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut held = open(&models, "a").expect("it opens");
        let (models, done) = (&models, &done);
        scope.spawn(move || {
            // A lease always overlaps the next one.
            while !done.load(Ordering::Relaxed) {
                let mut next = models.open(Some("a"), &Caller::default());
                let poll = Pin::new(&mut next).poll(&mut Context::from_waker(Waker::noop()));
                if let Poll::Ready(Ok(lease)) = poll {
                    held = lease;
                } else {
                    drop(held);
                    held = block_on(next).expect("it comes back");
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let caller = Caller {
            deadline: Instant::now().checked_add(Duration::from_secs(100)),
            ..Caller::default()
        };
        let lease = block_on(models.open(Some("b"), &caller)).expect("it gets room");
        sum(&lease, 3, 4);
        done.store(true, Ordering::Relaxed);
    });
    models.shutdown();
}

#[test]
fn open_ends_at_deadline_or_queue_time() {
    let models = models(2, &memory_for(1));
    let held = open(&models, "a").expect("it opens");
    for millis in [0, 30] {
        let short = Duration::from_millis(millis);
        let deadline = Instant::now().checked_add(short);
        let late = Caller {
            deadline,
            ..Caller::default()
        };
        let error = block_on(models.open(Some("b"), &late))
            .err()
            .expect("no room");
        assert!(
            matches!(error, OpenError::Unavailable(Error::DeadlineExceeded)),
            "{error:?}"
        );
        assert!(Instant::now() >= deadline.expect("it is soon"));
        let impatient = Caller {
            queue_time: Some(short),
            ..Caller::default()
        };
        let error = block_on(models.open(Some("b"), &impatient))
            .err()
            .expect("no room");
        let text = error.to_string();
        assert!(text.contains("the model b was not loaded within"), "{text}");
        assert!(
            matches!(error, OpenError::Unavailable(Error::QueueTimeout { .. })),
            "{error:?}"
        );
    }
    assert_eq!(
        (status(&models, "b").state, status(&models, "b").waiting),
        (ModelState::Unloaded, 0)
    );
    drop(held);
    ask(&models, "b", 1);
    models.shutdown();
}

#[test]
fn shutdown_cancels_load() {
    let progress = LoadProgress::default();
    progress.cancel();
    let error = Engine::load_with_progress(config("a", demo_model()), &progress);
    let error = error.err().expect("it was stopped");
    assert!(
        matches!(error, LoadError::Llama(LlamaError::Canceled)),
        "{error}"
    );
    let progress = LoadProgress::default();
    let engine =
        Engine::load_with_progress(config("a", demo_model()), &progress).expect("it loads");
    assert_eq!(progress.fraction(), 1.0);
    engine.shutdown();
    // A shutdown during a load fails its waiters.
    let models = models(1, &ModelPoolSettings::default());
    let opening = models.open(None, &Caller::default());
    models.shutdown();
    let opened = block_on(opening).map(|lease| lease.is_alive());
    assert!(
        matches!(
            opened,
            Ok(false) | Err(OpenError::Unavailable(Error::ShuttingDown))
        ),
        "{opened:?}"
    );
}

#[test]
fn memory_estimate_is_close_upper_bound() {
    for cells in [512, 4096] {
        let mut config = config("a", demo_model());
        config.cells = Some(cells);
        let expected = estimate::estimate_host_bytes(&config).expect("a model");
        let engine = Engine::load(config).expect("it loads");
        let file = std::fs::metadata(demo_model()).expect("it is there").len();
        let took = engine.memory();
        assert!(took > file, "weights and more: {took}");
        assert!(
            (took..3 * took).contains(&expected),
            "{expected} for {took}"
        );
        engine.shutdown();
    }
}

#[test]
fn preloaded_models_stay_loaded() {
    let engine = Engine::load(config("a", demo_model())).expect("it loads");
    let models = ModelPool::loaded(vec![engine.clone()]);
    ask(&models, "a", 1);
    assert!(!models.unload("a").expect("there is one"));
    assert_eq!(models.engines().len(), 1);
    drop(models);
    assert!(engine.is_alive(), "the pool does not own it");
    let models = ModelPool::loaded(vec![engine.clone()]);
    models.shutdown();
    assert!(!engine.is_alive());
}
