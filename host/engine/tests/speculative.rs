//! Drafts over llama.cpp and the demo model: rejected tokens leave no state, also where cells are short. The worker's unit
//! tests compare steps, ends and seeds with and without drafts.

use corral_engine::{Caller, GenerateOptions, MAX_DRAFTS, Priority};
use support::{answer, block_on, check_empty, limit, load, metric, read};

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
        max_draft_tokens: Some(max_draft_tokens),
        ..limit(max_tokens)
    }
}

#[test]
fn drafts_give_same_answers_under_cell_pressure() {
    let engine = load(|config| {
        config.context = Some(256);
        config.cells = Some(512);
    });
    let expected = QUESTIONS.map(|question| answer(&engine, question, options(60, 0)).0.text);
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
            let drafts = if n % 4 == 2 { 0 } else { MAX_DRAFTS };
            let options = GenerateOptions {
                ignore_eos: is_long,
                ..options(if is_long { 150 } else { 60 }, drafts)
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
    assert!(metric(&engine, "draft_tokens_accepted_total") > 0.0);
    check_empty(&engine);
}
