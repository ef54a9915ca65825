//! Adapters over llama.cpp and the demo model. The adapter `plus-one` adds one to each sum, so a
//! request that runs with a wrong adapter or wrong cells gives a wrong number.

use corral_engine::{
    Caller, Engine, GenerateOptions, Generation, LlamaError, LoadError, ModelConfig, Priority,
    Sequence, Tenant,
};
use corral_llama::gguf::{TensorType, Value, Writer};
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::path::{Path, PathBuf};
use support::{
    check_empty, check_identity, demo_model, limit, metric, read, sequence, settle, snapshots,
};

mod support;

const PLUS_ONE: &str = "plus-one";

fn plus_one() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny/plus-one.gguf")
}

fn config(adapters: &[&str]) -> ModelConfig {
    let mut config = support::config();
    let adapters = adapters.iter().map(|name| ((*name).into(), plus_one()));
    config.adapters = adapters.collect();
    config
}

/// Starts a generation with the adapter or the plain model.
fn options(adapted: bool) -> GenerateOptions {
    GenerateOptions {
        adapter: adapted.then(|| PLUS_ONE.to_owned()),
        ..limit(8)
    }
}

/// A sum after some text.
#[derive(Clone, Copy, Debug)]
struct Question {
    story: usize,
    a: u32,
    b: u32,
    adapted: bool,
}

/// Tokens of the text before a sum.
const STORIES: [usize; 4] = [0, 40, 150, 500];

impl Question {
    fn text(self) -> String {
        let line = "The quiet owl looks at the river and the stone. ";
        let story: String = line.chars().cycle().take(STORIES[self.story]).collect();
        let end = if story.is_empty() { "" } else { "\n" };
        format!("{story}{end}{}+{}=", self.a, self.b)
    }

    fn answer(self) -> String {
        (self.a + self.b + u32::from(self.adapted)).to_string()
    }

    fn ask(self, engine: &Engine, caller: Caller) -> Generation {
        let tokens = engine.tokenize(&self.text(), true).unwrap();
        engine
            .generate(tokens, options(self.adapted), caller)
            .unwrap()
    }
}

/// Questions that the model answers correctly alone without shared state: nearly all.
fn right_alone() -> Vec<Question> {
    let mut config = config(&[PLUS_ONE]);
    config.prefix_cache = false;
    let engine = Engine::load(config).unwrap();
    let mut random = ChaCha8Rng::seed_from_u64(5);
    let mut right = Vec::new();
    for adapted in [false, true] {
        for (story, length) in STORIES.iter().enumerate() {
            let mut found = 0;
            for _ in 0..20 {
                let [a, b] = [0, 0].map(|_| random.random_range(0..100));
                let question = Question {
                    story,
                    a,
                    b,
                    adapted,
                };
                let (chunk, outcome) = read(question.ask(&engine, Caller::default()));
                assert_eq!(outcome.unwrap().cached_tokens, 0);
                if chunk.text == question.answer() {
                    right.push(question);
                    found += 1;
                }
            }
            assert!(found >= 17, "{found} of 20 after {length} tokens");
        }
    }
    right
}

#[test]
fn mixed_adapter_load_gives_right_answers() {
    let right = right_alone();
    let mut config = config(&["other", PLUS_ONE]);
    // Few cells: the engine preempts sequences and swaps them out.
    config.context = Some(700);
    config.cells = Some(1024);
    config.max_running = 12;
    let engine = Engine::load(config).unwrap();
    let clients = 4;
    std::thread::scope(|scope| {
        for client in 0..clients {
            let (engine, right) = (&engine, &right);
            scope.spawn(move || ask_many(engine, right, client));
        }
    });
    settle(&engine);
    check_identity(&engine);
    assert!(metric(&engine, "requests_finished_total") >= 400.0);
    assert!(metric(&engine, "adapter_switches_total") > 20.0);
    assert!(metric(&engine, "adapter_deferred_rows_total") > 0.0);
    assert!(metric(&engine, "prefix_cache_hit_tokens_total") > 0.0);
    assert!(metric(&engine, "swap_outs_total") > 0.0);
    assert!(metric(&engine, "swap_ins_total") > 0.0);
    assert_eq!(metric(&engine, "decode_rows_skipped_total"), 0.0);
    assert_eq!(metric(&engine, "steps_failed_total"), 0.0);
    check_empty(&engine);
}

/// Asks several hundred questions of both adapters, twelve at a time; both also continue forks.
fn ask_many(engine: &Engine, right: &[Question], client: u32) {
    let mut random = ChaCha8Rng::seed_from_u64(u64::from(client));
    for _ in 0..8 {
        let caller = Caller {
            tenant: Tenant(random.random_range(0..2)),
            priority: Priority(random.random_range(0..3)),
            ..Caller::default()
        };
        let asked: Vec<_> = (0..12)
            .map(|_| {
                let question = *right.choose(&mut random).unwrap();
                (question, question.ask(engine, caller))
            })
            .collect();
        // Retained, so that the engine swaps it out when cells are short.
        let question = *right.choose(&mut random).unwrap();
        let sides = [question.adapted, !question.adapted, question.adapted];
        let mut sequence = Sequence::new(engine.clone(), caller);
        let tokens = engine.tokenize(&question.text(), true).unwrap();
        sequence.append(&tokens).unwrap();
        let mut forks = Vec::new();
        for adapted in sides {
            forks.push(sequence.fork());
            let (chunk, _) = read(sequence.generate(options(adapted)).unwrap());
            if adapted == question.adapted {
                assert_eq!(chunk.text, question.answer(), "{question:?}");
            }
        }
        for mut fork in forks {
            let (chunk, _) = read(fork.generate(options(question.adapted)).unwrap());
            assert_eq!(chunk.text, question.answer(), "a fork of {question:?}");
        }
        for (question, generation) in asked {
            let (chunk, outcome) = read(generation);
            assert!(outcome.is_ok(), "{outcome:?}");
            assert_eq!(chunk.text, question.answer(), "{question:?}");
        }
    }
}

#[test]
fn adapters_do_not_share_prefixes() {
    let engine = Engine::load(config(&[PLUS_ONE])).unwrap();
    let cached = |adapted| {
        let question = Question {
            story: 2,
            a: 12,
            b: 7,
            adapted,
        };
        let (chunk, outcome) = read(question.ask(&engine, Caller::default()));
        assert_eq!(chunk.text, question.answer());
        settle(&engine);
        outcome.unwrap().cached_tokens
    };
    assert_eq!((cached(false), cached(true)), (0, 0));
    assert!(cached(false) > 150 && cached(true) > 150);
    check_empty(&engine);
}

#[test]
fn snapshot_needs_its_adapter() {
    let dir = tempfile::tempdir().unwrap();
    let load = |adapters: &[&str]| {
        let mut config = config(adapters);
        config.snapshots = snapshots(dir.path());
        Engine::load(config).unwrap()
    };
    let question = Question {
        story: 2,
        a: 31,
        b: 27,
        adapted: true,
    };
    let engine = load(&[PLUS_ONE]);
    let mut sequence = sequence(&engine, &question.text());
    let (chunk, _) = read(sequence.generate(options(true)).unwrap());
    assert_eq!(chunk.text, question.answer());
    settle(&engine);
    sequence.snapshot("me", "sum").unwrap();
    engine.shutdown();
    drop((sequence, engine));

    let restored = |adapters: &[&str], adapted| {
        let engine = load(adapters);
        let sequence =
            Sequence::restore(engine.clone(), Caller::default(), "me", "sum", usize::MAX);
        let (chunk, outcome) = read(sequence.unwrap().generate(options(adapted)).unwrap());
        let right = Question {
            adapted,
            ..question
        };
        assert_eq!(chunk.text, right.answer());
        engine.shutdown();
        outcome.unwrap().cached_tokens
    };
    assert!(restored(&[PLUS_ONE], true) > 150);
    assert_eq!(restored(&[PLUS_ONE], false), 0, "the model alone");
    assert_eq!(restored(&[], false), 0, "the adapter is not there");
}

/// Returns the error for an invalid adapter file.
fn refusal(path: &Path) -> String {
    let mut config = config(&[]);
    config.adapters = vec![("bad".into(), path.to_owned())];
    match Engine::load(config) {
        Err(error @ LoadError::Llama(LlamaError::Adapter { .. })) => error.to_string(),
        other => panic!("{:?}", other.err()),
    }
}

#[test]
fn invalid_adapter_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let whole = std::fs::read(plus_one()).unwrap();
    let other = String::from_utf8_lossy(&whole[..200])
        .find("qwen3")
        .unwrap();
    let mut foreign = whole.clone();
    foreign[other..other + 5].copy_from_slice(b"llama");
    for (name, bytes, expected) in [
        ("empty", &b""[..], "not GGUF"),
        ("text", b"hello world", "not GGUF"),
        ("header", &whole[..100], "cannot read"),
        ("half", &whole[..whole.len() / 2], "trained for this model"),
        ("foreign", &foreign, "\"llama\""),
    ] {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let refusal = refusal(&path);
        assert!(refusal.contains(expected), "{name}: {refusal}");
    }
    let missing = refusal(&dir.path().join("missing"));
    assert!(missing.contains("cannot be read"), "{missing}");
    let model = refusal(&demo_model());
    assert!(model.contains("not an adapter"), "{model}");
}

#[test]
fn incompatible_adapters_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let load = |tensors: &[(&str, [u64; 2])], kind: &str, alpha: Value| {
        let mut writer = Writer::new().unwrap();
        writer.set("general.architecture", "qwen3").unwrap();
        writer.set("general.type", "adapter").unwrap();
        writer.set("adapter.type", kind).unwrap();
        writer.set("adapter.lora.alpha", alpha).unwrap();
        for (name, dimensions) in tensors {
            writer.tensor(name, TensorType::F16, dimensions).unwrap();
        }
        let path = dir.path().join("adapter.gguf");
        writer
            .write(&path, |_, _, weights| weights.fill(0.0))
            .unwrap();
        refusal(&path)
    };
    let q = "blk.0.attn_q.weight";
    let [a, b] = ["lora_a", "lora_b"].map(|half| format!("{q}.{half}"));
    let pair = [(a.as_str(), [128, 4]), (b.as_str(), [4, 256])];
    let alpha = || Value::F32(8.0);
    for (expected, refusal) in [
        ("no tensors", load(&[], "lora", alpha())),
        ("\"control\"", load(&pair, "control", alpha())),
        ("alpha", load(&pair, "lora", Value::U32(8))),
        ("missing", load(&pair[..1], "lora", alpha())),
        ("ranks", load(&[pair[0], (&b, [5, 256])], "lora", alpha())),
        ("shape", load(&[(&a, [64, 4]), pair[1]], "lora", alpha())),
        ("half", load(&[(q, [128, 4])], "lora", alpha())),
        (
            "does not exist",
            load(
                &[
                    ("blk.9.attn_q.weight.lora_a", [128, 4]),
                    ("blk.9.attn_q.weight.lora_b", [4, 256]),
                ],
                "lora",
                alpha(),
            ),
        ),
        (
            "embeddings",
            load(&[("token_embd.weight.lora_a", [4, 264])], "lora", alpha()),
        ),
    ] {
        assert!(refusal.contains(expected), "{expected}: {refusal}");
    }
    let mut twice = config(&["same", "same"]);
    assert!(matches!(
        Engine::load(twice.clone()),
        Err(LoadError::Llama(LlamaError::Adapter { .. }))
    ));
    twice.adapters = (0..17).map(|n| (n.to_string(), plus_one())).collect();
    assert!(matches!(Engine::load(twice), Err(LoadError::Config(_))));
}
