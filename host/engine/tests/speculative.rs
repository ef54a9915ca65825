//! Drafts over llama.cpp and the demo model: same answers in fewer steps, and rejected tokens leave
//! no state.

use corral_engine::{
    Caller, Engine, Error, FinishReason, GenerateOptions, MAX_DRAFTS, Outcome, Priority, Sampler,
};
use std::time::{Duration, Instant};
use support::{block_on, check_empty, limit, load, metric, read, settle, start};

mod support;

/// Questions that contain their answers, and others.
const QUESTIONS: [&str; 10] = [
    "repeat: Blue owls, 7! Blue owls, 7!\n",
    "repeat: the old fox looks at the stone\n",
    "repeat: 1234567812345678123456781234\n",
    "The quiet owl looks at the river.\nrepeat: The quiet owl looks at the river.\n",
    "reverse: table\n",
    "Ada is 36 years old\n",
    "12+7=",
    "45+54=",
    "tools: calculator\nWhat is 12+7?\n",
    "<|im_start|>user\nrepeat: Blue owls, 7!<|im_end|>\n<|im_start|>assistant\n",
];

fn options(max_tokens: u32, max_draft_tokens: u8) -> GenerateOptions {
    GenerateOptions {
        max_draft_tokens,
        ..limit(max_tokens)
    }
}

fn answer(engine: &Engine, prompt: &str, options: GenerateOptions) -> (String, Outcome) {
    let (chunk, outcome) = support::answer(engine, prompt, options);
    (chunk.text, outcome)
}

/// Answers without drafts.
fn plain(engine: &Engine, max_tokens: u32) -> Vec<String> {
    let answers = QUESTIONS.map(|question| answer(engine, question, options(max_tokens, 0)).0);
    answers.to_vec()
}

#[test]
fn drafts_give_same_answers_in_fewer_steps() {
    let engine = load(|_| {});
    let count = |name: &str| metric(&engine, name);
    let expected = plain(&engine, 60);
    assert_eq!(expected[0], "Blue owls, 7! Blue owls, 7!");
    assert_eq!(expected[6], "19");
    settle(&engine);
    let (steps, tokens) = (count("steps_total"), count("generated_tokens_total"));
    assert_eq!(count("draft_tokens_accepted_total"), 0.0);
    for (question, expected) in QUESTIONS.iter().zip(&expected) {
        let (text, _) = answer(&engine, question, options(60, 8));
        assert_eq!(text, *expected, "{question}");
    }
    settle(&engine);
    let with = count("steps_total") - steps;
    let accepted = count("draft_tokens_accepted_total");
    assert_eq!(count("generated_tokens_total"), 2.0 * tokens);
    assert!(accepted > 0.0);
    // Each accepted token saves a step.
    assert_eq!(with + accepted, steps);
    check_empty(&engine);
}

#[test]
fn drafts_give_same_answers_under_load() {
    let engine = load(|_| {});
    let expected = plain(&engine, 60);
    let all: Vec<_> = (0..32)
        .map(|n| {
            let question = n % QUESTIONS.len();
            let drafts = if n % 4 == 3 { 0 } else { MAX_DRAFTS };
            (
                question,
                start(&engine, QUESTIONS[question], options(60, drafts)),
            )
        })
        .collect();
    for (question, generation) in all {
        let (chunk, outcome) = read(generation);
        assert!(outcome.is_ok());
        assert_eq!(chunk.text, expected[question], "{}", QUESTIONS[question]);
    }
    check_empty(&engine);
}

#[test]
fn drafts_keep_stop_strings_and_limits() {
    let engine = load(|_| {});
    let question = QUESTIONS[0];
    for most in 1..=28 {
        let (expected, end) = answer(&engine, question, options(most, 0));
        let (text, outcome) = answer(&engine, question, options(most, MAX_DRAFTS));
        assert_eq!((text, outcome.finish), (expected, end.finish), "{most}");
        assert_eq!(outcome.generated_tokens, end.generated_tokens);
    }
    for stop in ["ue", "owls, 7! B", "7!", " ", "! Blue owls, 7!", "never"] {
        let stopped = |drafts| GenerateOptions {
            stop: vec![stop.into()],
            ..options(60, drafts)
        };
        let (expected, end) = answer(&engine, question, stopped(0));
        let (text, outcome) = answer(&engine, question, stopped(MAX_DRAFTS));
        assert_eq!((text, outcome.finish), (expected, end.finish), "{stop:?}");
        assert_eq!(outcome.generated_tokens, end.generated_tokens, "{stop:?}");
        assert_eq!(outcome.finish == FinishReason::End, stop == "never");
    }
    assert!(metric(&engine, "draft_tokens_accepted_total") > 0.0);
    check_empty(&engine);
}

/// Uses likely tokens only: the batch shape affects rounding of logits, so a draw among unlikely
/// tokens may differ. Tests with exact logits check that each token draws one random number.
#[test]
fn drafts_keep_seeded_output() {
    let engine = load(|_| {});
    for seed in 0..12 {
        let drawn = |drafts| GenerateOptions {
            samplers: vec![Sampler::TopK(20), Sampler::Temperature(0.7)],
            seed: Some(seed),
            ..options(60, drafts)
        };
        for question in [QUESTIONS[0], QUESTIONS[3], QUESTIONS[9]] {
            let (expected, _) = answer(&engine, question, drawn(0));
            let (text, _) = answer(&engine, question, drawn(8));
            assert_eq!(text, expected, "{seed}: {question}");
        }
    }
    assert!(metric(&engine, "draft_tokens_accepted_total") > 0.0);
    check_empty(&engine);
}

#[test]
fn drafts_give_same_answers_under_cell_pressure() {
    let engine = load(|config| {
        config.context = Some(256);
        config.cells = Some(512);
    });
    let expected = plain(&engine, 60);
    for round in 0..4 {
        let mut all = Vec::new();
        for n in 0..40u8 {
            let question = usize::from(n) % QUESTIONS.len();
            let tokens = engine.tokenize(QUESTIONS[question], true).unwrap();
            let caller = Caller {
                priority: Priority(n % 3),
                ..Caller::default()
            };
            let is_long = n % 8 == 7;
            let options = GenerateOptions {
                ignore_end: is_long,
                ..options(if is_long { 150 } else { 60 }, MAX_DRAFTS)
            };
            let mut generation = engine.generate(tokens, options, caller).unwrap();
            if n % 5 == round {
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
    }
    assert!(metric(&engine, "preemptions_total") > 0.0);
    check_empty(&engine);
}

#[test]
fn too_many_draft_tokens_are_refused() {
    let engine = load(|_| {});
    let tokens = engine.tokenize("12+7=", true).unwrap();
    let wanted = options(9, MAX_DRAFTS + 1);
    let error = engine.generate(tokens, wanted, Caller::default());
    assert!(matches!(error, Err(Error::Invalid(_))));
}

/// Prints tokens per step and per second, alternating with and without drafts.
#[test]
fn draft_acceptance_is_reported() {
    let engine = load(|_| {});
    let (mut steps, mut tokens, mut time) = ([0.0; 2], [0.0; 2], [Duration::ZERO; 2]);
    for round in 0..20 {
        let mode = round % 2;
        let count = |name| metric(&engine, name);
        let before = (count("steps_total"), count("generated_tokens_total"));
        let start_time = Instant::now();
        for question in &QUESTIONS[..4] {
            answer(&engine, question, options(60, [0, 8][mode]));
        }
        time[mode] += start_time.elapsed();
        settle(&engine);
        steps[mode] += count("steps_total") - before.0;
        tokens[mode] += count("generated_tokens_total") - before.1;
    }
    for mode in 0..2 {
        println!(
            "{}: {:.2} tokens a step, {:.0} tokens a second",
            ["without drafts", "with drafts"][mode],
            tokens[mode] / steps[mode],
            tokens[mode] / time[mode].as_secs_f64()
        );
    }
    assert_eq!(tokens[0], tokens[1]);
    assert!(steps[1] < steps[0]);
}
