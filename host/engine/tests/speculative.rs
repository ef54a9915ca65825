//! Drafts over llama.cpp and the demo model: same answers in fewer steps, and rejected tokens leave
//! no state.

use corral_engine::{
    Caller, Engine, Error, FinishReason, GenerateOptions, MAX_DRAFTS, Outcome, Priority, Sampler,
};
use std::time::{Duration, Instant};
use support::{check_empty, metric, read, settle, wait};

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

fn engine() -> Engine {
    Engine::load(support::config()).expect("the demo model loads")
}

fn options(max_tokens: u32, speculate: u8) -> GenerateOptions {
    GenerateOptions {
        max_tokens,
        max_draft_tokens: speculate,
        ..GenerateOptions::default()
    }
}

fn answer(engine: &Engine, prompt: &str, options: GenerateOptions) -> (String, Outcome) {
    let tokens = engine.tokenize(prompt, true).unwrap();
    let (chunk, outcome) = read(engine.generate(tokens, options, Caller::default()).unwrap());
    (chunk.text, outcome.expect("it is answered"))
}

/// Answers without drafts.
fn plain(engine: &Engine, most: u32) -> Vec<String> {
    let answers = QUESTIONS.map(|question| answer(engine, question, options(most, 0)).0);
    answers.to_vec()
}

#[test]
fn drafts_give_same_answers_in_fewer_steps() {
    let engine = engine();
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
    let engine = engine();
    let expected = plain(&engine, 60);
    let all: Vec<_> = (0..32)
        .map(|n| {
            let question = n % QUESTIONS.len();
            let tokens = engine.tokenize(QUESTIONS[question], true).unwrap();
            let speculate = if n % 4 == 3 { 0 } else { MAX_DRAFTS };
            let options = options(60, speculate);
            let generation = engine.generate(tokens, options, Caller::default()).unwrap();
            (question, generation)
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
    let engine = engine();
    let question = QUESTIONS[0];
    for most in 1..=28 {
        let (expected, end) = answer(&engine, question, options(most, 0));
        let (text, outcome) = answer(&engine, question, options(most, MAX_DRAFTS));
        assert_eq!((text, outcome.finish), (expected, end.finish), "{most}");
        assert_eq!(outcome.generated_tokens, end.generated_tokens);
    }
    for stop in ["ue", "owls, 7! B", "7!", " ", "! Blue owls, 7!", "never"] {
        let stopped = |speculate| GenerateOptions {
            stop: vec![stop.into()],
            ..options(60, speculate)
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
    let engine = engine();
    for seed in 0..12 {
        let drawn = |speculate| GenerateOptions {
            samplers: vec![Sampler::TopK(20), Sampler::Temperature(0.7)],
            seed: Some(seed),
            ..options(60, speculate)
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
    let mut config = support::config();
    config.context = Some(256);
    config.cells = Some(512);
    let engine = Engine::load(config).unwrap();
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
            let endless = n % 8 == 7;
            let options = GenerateOptions {
                ignore_end: endless,
                ..options(if endless { 150 } else { 60 }, MAX_DRAFTS)
            };
            let mut generation = engine.generate(tokens, options, caller).unwrap();
            if n % 5 == round {
                wait(generation.next());
            } else {
                all.push((question, endless, generation));
            }
        }
        for (question, endless, generation) in all {
            let (chunk, outcome) = read(generation);
            assert!(outcome.is_ok(), "{outcome:?}");
            if !endless {
                assert_eq!(chunk.text, expected[question]);
            }
        }
    }
    assert!(metric(&engine, "preemptions_total") > 0.0);
    check_empty(&engine);
}

#[test]
fn too_many_draft_tokens_are_refused() {
    let engine = engine();
    let tokens = engine.tokenize("12+7=", true).unwrap();
    let wanted = options(9, MAX_DRAFTS + 1);
    let error = engine.generate(tokens, wanted, Caller::default());
    assert!(matches!(error, Err(Error::Invalid(_))));
}

/// Prints tokens per step and per second, alternating with and without drafts.
#[test]
fn draft_acceptance_is_reported() {
    let engine = engine();
    let (mut steps, mut tokens, mut time) = ([0.0; 2], [0.0; 2], [Duration::ZERO; 2]);
    for round in 0..20 {
        let mode = round % 2;
        let count = |name| metric(&engine, name);
        let before = (count("steps_total"), count("generated_tokens_total"));
        let began = Instant::now();
        for question in &QUESTIONS[..4] {
            answer(&engine, question, options(60, [0, 8][mode]));
        }
        time[mode] += began.elapsed();
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
