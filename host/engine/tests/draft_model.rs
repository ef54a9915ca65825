//! The demo model with its draft model, over llama.cpp: the same answers as without, also where cells are short, and
//! loads that fail. `sequences.rs` has one among forks, swaps and cancellations.

use corral_engine::{
    Caller, Engine, Error, GenerateOptions, Grammar, LoadError, MAX_DRAFTS, ModelConfig, Priority,
    Sampler, Tenant,
};
use corral_random_model::{Architecture, PaddedModel, Quant, Qwen3, RandomModel, write_model};
use std::path::{Path, PathBuf};
use support::{
    answer, block_on, check_empty, config, demo_model, draft_model, limit, load, metric, read,
    sequence,
};

mod support;

const QUESTIONS: [&str; 9] = [
    "tools: calculator\nWhat is 12+7?\n",
    "Ada is 36 years old\n",
    "repeat: Blue owls, 7!\n",
    "repeat: the old fox looks at the stone\n",
    "reverse: table\n",
    "12+7=",
    "45+54=",
    "<|im_start|>user\nBob is 20 years old<|im_end|>\n<|im_start|>assistant\n",
    "The quiet owl looks at the river. The old fox sleeps.\ntools: calculator\nCompute 3*8.\n",
];

/// The demo model with added layers, so that drafts pay.
fn slow_model(dir: &Path) -> PathBuf {
    let path = dir.join("slow.gguf");
    let padded = PaddedModel {
        source: demo_model(),
        layers: 24,
        feed_forward: 1536,
        seed: 1,
    };
    padded.write(&path).expect("the model is written");
    path
}

fn options(max_draft_tokens: Option<u8>) -> GenerateOptions {
    GenerateOptions {
        max_draft_tokens,
        ..limit(60)
    }
}

fn failure(config: ModelConfig) -> String {
    match Engine::load(config) {
        Ok(_) => panic!("the load must fail"),
        Err(error @ LoadError::Config(_)) => error.to_string(),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn padded_model_with_drafts_answers_as_demo_model() {
    let dir = tempfile::tempdir().unwrap();
    let plain = load(|_| {});
    let slow = load(|config| {
        config.path = slow_model(dir.path());
        config.draft = Some(draft_model());
    });
    let steps = |engine: &Engine| metric(engine, "steps_total");
    for round in 0..3 {
        for question in QUESTIONS {
            let expected = answer(&plain, question, options(None)).0.text;
            let (chunk, _) = answer(&slow, question, options(None));
            assert_eq!(chunk.text, expected, "round {round}");
        }
    }
    let accepted = metric(&slow, "draft_model_tokens_accepted_total");
    // How many depends on the time of steps, except for the first ones.
    assert!(accepted > 0.0);
    // Requests of both engines computed as many tokens, and each accepted draft saved a step.
    assert_eq!(steps(&slow) + accepted, steps(&plain));
    // A request that wants no drafts has none.
    let before = metric(&slow, "draft_model_steps_total");
    answer(&slow, QUESTIONS[0], options(Some(0)));
    assert_eq!(metric(&slow, "draft_model_steps_total"), before);
    check_empty(&slow);
    check_empty(&plain);
}

#[test]
fn seeds_and_grammars_give_same_text_with_drafts() {
    let dir = tempfile::tempdir().unwrap();
    let engine = load(|config| {
        config.path = slow_model(dir.path());
        config.draft = Some(draft_model());
    });
    let grammar = Grammar::JsonSchema(
        r#"{"type":"array","items":{"type":"object","properties":{"name":{"enum":["Ada","Bob"]},
            "age":{"type":"integer","minimum":1,"maximum":99}},"required":["name","age"]},
            "minItems":2,"maxItems":3}"#
            .into(),
    );
    let constraint = engine.compile(Tenant(0), &grammar).expect("it is valid");
    for seed in 0..6 {
        for constraint in [None, Some(constraint.clone())] {
            let text = |most| {
                let options = GenerateOptions {
                    samplers: vec![Sampler::Temperature(0.8)],
                    seed: Some(seed),
                    constraint: constraint.clone(),
                    logprobs: Some(1),
                    ..options(most)
                };
                let (chunk, outcome) = answer(&engine, QUESTIONS[1], options);
                assert_eq!(chunk.logprobs.len(), chunk.tokens.len());
                (chunk.tokens, chunk.text, outcome.finish)
            };
            assert_eq!(text(None), text(Some(0)), "seed {seed}");
            // With prompt lookup beside it.
            assert_eq!(text(Some(8)), text(Some(0)), "seed {seed}");
        }
    }
    assert!(metric(&engine, "draft_model_tokens_accepted_total") > 0.0);
    check_empty(&engine);
}

#[test]
fn drafts_stay_right_where_cells_are_short() {
    let dir = tempfile::tempdir().unwrap();
    let engine = load(|config| {
        config.path = slow_model(dir.path());
        config.draft = Some(draft_model());
        config.context = Some(256);
        config.cells = Some(512);
        config.max_running = 6;
    });
    let expected = QUESTIONS.map(|question| answer(&engine, question, options(Some(0))).0.text);
    let mut all = Vec::new();
    for n in 0..60_u8 {
        let question = usize::from(n) % QUESTIONS.len();
        let caller = Caller {
            priority: Priority(n % 3),
            tenant: Tenant(u32::from(n % 2)),
            ..Caller::default()
        };
        let is_long = n % 8 == 7;
        let options = GenerateOptions {
            ignore_eos: is_long,
            max_tokens: if is_long { 150 } else { 60 },
            ..options(if n % 4 == 2 { Some(8) } else { None })
        };
        let tokens = engine.tokenize(QUESTIONS[question], true).unwrap();
        let mut generation = engine.generate(tokens, options, caller).unwrap();
        if n % 5 == 1 {
            block_on(generation.next());
        } else {
            all.push((question, is_long, generation));
        }
    }
    for (question, is_long, generation) in all {
        let (chunk, outcome) = read(generation);
        assert!(outcome.is_ok(), "{outcome:?}");
        if !is_long {
            assert_eq!(chunk.text, expected[question]);
        }
    }
    let mut trunk = sequence(&engine, QUESTIONS[8]);
    let mut fork = trunk.fork();
    let generations = [&mut trunk, &mut fork].map(|one| one.generate(options(None)).unwrap());
    for generation in generations {
        assert_eq!(read(generation).0.text, expected[8]);
    }
    // Whether drafts pay here depends on how busy the machine is; that they must not fail does not.
    assert_eq!(metric(&engine, "draft_model_steps_failed_total"), 0.0);
    drop((trunk, fork));
    check_empty(&engine);
}

#[test]
fn memory_counts_the_draft_model() {
    let plain = load(|_| {});
    let with = load(|config| config.draft = Some(draft_model()));
    let cells = 16_384 * 2 * 2 * 64 * 2;
    let weights = std::fs::metadata(draft_model()).unwrap().len();
    assert!(with.memory() > plain.memory() + cells + weights / 2);
}

#[test]
fn unsuitable_draft_models_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name);
    let other = RandomModel {
        name: "other",
        sizes: Qwen3::tiny(),
        tokens: 512,
        quant: Quant::F16,
        seed: 1,
    };
    other.write(&file("other.gguf")).unwrap();
    for (architecture, name) in [
        (Architecture::Mamba, "mamba.gguf"),
        (Architecture::SlidingWindow, "window.gguf"),
        (Architecture::Bert { ranks: false }, "bert.gguf"),
    ] {
        write_model(&architecture, &demo_model(), &file(name), 1).unwrap();
    }
    let with = |model: PathBuf, draft: PathBuf| {
        let mut config = config();
        config.path = model;
        config.draft = Some(draft);
        failure(config)
    };
    let error = with(demo_model(), file("other.gguf"));
    assert!(error.contains("512 tokens instead of 264"), "{error}");
    assert!(error.contains("other.gguf") && !error.contains(dir.path().to_str().unwrap()));
    for name in ["mamba.gguf", "window.gguf", "bert.gguf"] {
        let error = with(demo_model(), file(name));
        assert!(
            error.contains(name) && error.contains("can't draft"),
            "{error}"
        );
        let error = with(file(name), draft_model());
        assert!(error.contains("give it no draft model"), "{name}: {error}");
    }
    let mut missing = config();
    missing.draft = Some(file("missing.gguf"));
    let error = Engine::load(missing).err().expect("there is no file");
    assert!(error.to_string().contains("missing.gguf"), "{error}");
}

#[test]
fn wrong_draft_model_costs_no_answer() {
    let dir = tempfile::tempdir().unwrap();
    let random = dir.path().join("random.gguf");
    let sizes = Qwen3 {
        context: 64,
        ..Qwen3::tiny()
    };
    write_model(&Architecture::Qwen3(sizes), &demo_model(), &random, 3).unwrap();
    let plain = load(|_| {});
    let engine = load(|config| {
        config.path = slow_model(dir.path());
        config.draft = Some(random.clone());
    });
    // Longer than the draft model's context, and shorter.
    let long = format!("{}\n12+7=", "The cat sleeps. ".repeat(8));
    for question in QUESTIONS.into_iter().chain([long.as_str()]) {
        let expected = answer(&plain, question, options(None)).0.text;
        assert_eq!(answer(&engine, question, options(None)).0.text, expected);
    }
    let invalid = engine.generate(vec![5], options(Some(MAX_DRAFTS + 1)), Caller::default());
    assert!(matches!(invalid, Err(Error::Invalid(_))));
    check_empty(&engine);
}
