//! `corral bench step`: how long one `llama_decode` takes, by how many rows generate and how many tokens of a prompt
//! are read beside them.
//!
//! Nothing plans these steps: they are given to llama.cpp as they stand, in a context beside an engine's, which
//! has nothing to do. Each round measures every step once, in turn. At its beginning all cells are emptied, and the
//! generating sequences are read again, so that no round has longer ones than another; the prompt is dropped after
//! each step. A step that reads a prompt is compared with the one of as many rows alone, in the same round.

use super::load::{check_room, config, prompt};
use super::rounds::Rounds;
use super::table::{Column, Unit, tell};
use super::{median, median_and_ends};
use crate::arguments::StepBench;
use crate::complaint::Complaint;
use corral_engine::SeqId;
use corral_engine::{Engine, Raw, Token, TokenInput};
use serde_json::{Value, json};
use std::time::Instant;

/// The number of the prompt that is read beside the sequences, which have theirs from 0 on.
const PROMPT: u64 = 999;

/// What a step computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    /// Sequences that generate, each with one token.
    rows: u16,
    /// Tokens of a prompt.
    prompt: u32,
}

/// A step, and what it took in each round, in seconds.
struct Found {
    step: Step,
    times: Vec<f64>,
}

const COLUMNS: [Column; 5] = [
    ("rows", "rows", Unit::Plain),
    ("prompt", "prompt", Unit::Plain),
    ("median", "median_s", Unit::Milliseconds),
    ("least", "least_s", Unit::Milliseconds),
    ("to rows alone", "ratio_to_alone", Unit::Ratio),
];

/// Measures and prints.
pub(super) fn measure(arguments: &StepBench) -> Result<(), Complaint> {
    let measuring = &arguments.measuring;
    let mut config = config(measuring, arguments.threads, arguments.most_cells())?;
    // One more for the prompt.
    config.sequences = config.sequences.max(arguments.most_rows() + 1);
    let engine = Engine::load(config)?;
    let mut raw = set_up(&engine, arguments)?;
    let mut sequences = Sequences::new(&engine, arguments);
    let mut found = steps(arguments);
    let mut rounds = Rounds::after_one(measuring.rounds);
    for round in rounds.by_ref() {
        begin(&mut raw, &mut sequences)?;
        for one in &mut found {
            let inputs = sequences.step(one.step);
            let began = Instant::now();
            raw.decode(&inputs)?;
            let took = began.elapsed().as_secs_f64();
            raw.clear(sequences.prompt_id());
            // The first one warms up.
            if round > 0 {
                one.times.push(took);
            }
        }
    }
    let rounds = rounds.measured();
    drop(raw);
    engine.shutdown();
    let model = measuring.model.file_name().unwrap_or_default();
    let model = model.to_string_lossy();
    let setup = json!({
        "bench": "step",
        "model": model,
        "cells": arguments.cells,
        "rounds": rounds,
    });
    let title = format!(
        "{model}: one llama_decode by the rows that generate and the prompt tokens beside them; {} tokens in each \
         sequence at the beginning of a round; {rounds} rounds, ms; ratios round by round",
        arguments.cells
    );
    tell(measuring.json, setup, &title, &COLUMNS, &rows(&found));
    Ok(())
}

/// A context that holds what is asked for.
fn set_up(engine: &Engine, arguments: &StepBench) -> Result<Raw, Complaint> {
    let info = engine.info();
    if !info.can_generate {
        let text = "this model is an encoder and generates nothing; give --model one that does";
        return Err(Complaint::Failed(text.into()));
    }
    let (cells, growth) = (u64::from(arguments.cells), arguments.growth());
    check_room(info.context, "--cells", cells, growth)?;
    check_room(
        info.context,
        "--prompt",
        u64::from(arguments.most_prompt()),
        0,
    )?;
    let raw = engine.raw()?;
    check_step(
        raw.step_tokens(),
        arguments.most_rows(),
        arguments.most_prompt(),
    )?;
    Ok(raw)
}

/// Refuses a step of more than `most` tokens.
fn check_step(most: u32, rows: u16, prompt: u32) -> Result<(), Complaint> {
    let tokens = u32::from(rows).saturating_add(prompt);
    if tokens <= most {
        return Ok(());
    }
    Err(Complaint::Usage(format!(
        "--rows {rows} and --prompt {prompt} make a step of {tokens} tokens, and one has at most {most}; \
         give --prompt {} or less, or fewer rows",
        most.saturating_sub(u32::from(rows))
    )))
}

/// All steps of a round in their order, with nothing found yet.
fn steps(arguments: &StepBench) -> Vec<Found> {
    let of = |&prompt: &u32| {
        arguments.rows.iter().map(move |&rows| Found {
            step: Step { rows, prompt },
            times: Vec::new(),
        })
    };
    arguments.prompt.iter().flat_map(of).collect()
}

/// Empties all cells, and reads what the sequences begin with.
fn begin(raw: &mut Raw, sequences: &mut Sequences) -> Result<(), Complaint> {
    for number in 0..=sequences.tokens.len() {
        raw.clear(id(number));
    }
    let most = usize::try_from(raw.step_tokens()).unwrap_or(usize::MAX);
    for part in sequences.begin().chunks(most.max(1)) {
        raw.decode(part)?;
    }
    Ok(())
}

/// What the context is given. The sequences that generate have the first ids, and the prompt has the next one.
struct Sequences {
    /// What each of those begins with. It goes on with the same, over and over.
    tokens: Vec<Vec<Token>>,
    /// Positions that each has.
    lengths: Vec<u32>,
    prompt: Vec<Token>,
}

impl Sequences {
    fn new(engine: &Engine, arguments: &StepBench) -> Self {
        let begun = |number| prompt(engine, number, u64::from(arguments.cells));
        let tokens: Vec<_> = (0..u64::from(arguments.most_rows())).map(begun).collect();
        Self {
            lengths: vec![0; tokens.len()],
            tokens,
            prompt: prompt(engine, PROMPT, u64::from(arguments.most_prompt())),
        }
    }

    fn prompt_id(&self) -> SeqId {
        id(self.tokens.len())
    }

    /// What all of them begin with.
    fn begin(&mut self) -> Vec<TokenInput> {
        let mut inputs = Vec::new();
        for (number, (tokens, length)) in self.tokens.iter().zip(&mut self.lengths).enumerate() {
            let count = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
            *length = count;
            inputs.extend((0..count).map(|position| TokenInput {
                token: token_at(tokens, position),
                position,
                seq: id(number),
                output: position + 1 == count,
            }));
        }
        inputs
    }

    /// A step. Its sequences are longer by a token after it.
    fn step(&mut self, step: Step) -> Vec<TokenInput> {
        let mut inputs = Vec::new();
        let all = self.tokens.iter().zip(&mut self.lengths).enumerate();
        for (number, (tokens, length)) in all.take(usize::from(step.rows)) {
            inputs.push(TokenInput {
                token: token_at(tokens, *length),
                position: *length,
                seq: id(number),
                output: true,
            });
            *length += 1;
        }
        let seq = self.prompt_id();
        // As a prompt is read that goes on in the next step.
        let of_prompt = self.prompt.iter().zip(0..step.prompt);
        inputs.extend(of_prompt.map(|(&token, position)| TokenInput {
            token,
            position,
            seq,
            output: false,
        }));
        inputs
    }
}

/// The token of a sequence that goes on with its beginning over and over.
fn token_at(beginning: &[Token], position: u32) -> Token {
    let at = usize::try_from(position).unwrap_or(usize::MAX) % beginning.len().max(1);
    beginning.get(at).copied().unwrap_or(0)
}

/// The id of a sequence; there are fewer than 65.
fn id(number: usize) -> SeqId {
    SeqId(u16::try_from(number).unwrap_or(u16::MAX))
}

/// Each step in a row. Ratios are taken round by round.
fn rows(found: &[Found]) -> Vec<Value> {
    let alone = |one: &Found| {
        let rows = one.step.rows;
        let alone = Step { rows, prompt: 0 };
        found.iter().find(|other| other.step == alone)
    };
    found.iter().map(|one| row(one, alone(one))).collect()
}

fn row(one: &Found, alone: Option<&Found>) -> Value {
    let ratio = alone.map(|alone| {
        let pairs = one.times.iter().zip(&alone.times);
        median(pairs.map(|(own, alone)| own / alone))
    });
    let [middle, least, _] = median_and_ends(&one.times);
    json!({
        "rows": one.step.rows,
        "prompt": one.step.prompt,
        "median_s": middle,
        "least_s": least,
        "ratio_to_alone": ratio,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(rows: u16, prompt: u32, times: &[f64]) -> Found {
        Found {
            step: Step { rows, prompt },
            times: times.to_vec(),
        }
    }

    #[test]
    fn steps_are_compared_with_as_many_rows_alone_in_the_same_round() {
        let all = [
            found(1, 0, &[1.0, 2.0, 8.0]),
            found(4, 0, &[5.0, 5.0, 5.0]),
            found(1, 4, &[6.0, 2.0, 16.0]),
            found(4, 4, &[10.0, 5.0, 20.0]),
        ];
        let rows = rows(&all);
        let of = |key: &str| -> Vec<_> { rows.iter().map(|row| row[key].as_f64()).collect() };
        assert_eq!(of("rows"), [1.0, 4.0, 1.0, 4.0].map(Some));
        assert_eq!(of("prompt"), [0.0, 0.0, 4.0, 4.0].map(Some));
        assert_eq!(of("median_s"), [2.0, 5.0, 6.0, 10.0].map(Some));
        assert_eq!(of("least_s"), [1.0, 5.0, 2.0, 5.0].map(Some));
        // The third took 6, 1 and 2 times as long: not 3, which is what the medians are to each other.
        assert_eq!(of("ratio_to_alone"), [1.0, 1.0, 2.0, 2.0].map(Some));
    }

    #[test]
    fn without_steps_of_rows_alone_there_is_no_ratio() {
        let rows = rows(&[found(1, 2, &[1.0]), found(4, 2, &[2.0])]);
        assert!(rows.iter().all(|row| row["ratio_to_alone"].is_null()));
        assert_eq!(rows[1]["median_s"], 2.0);
    }

    #[test]
    fn a_step_has_a_token_of_each_row_and_then_the_prompts() {
        let mut sequences = Sequences {
            tokens: vec![vec![5, 6], vec![7, 8]],
            lengths: vec![0; 2],
            prompt: vec![1, 2, 3],
        };
        let told = |inputs: Vec<TokenInput>| -> Vec<_> {
            let told = inputs.into_iter();
            told.map(|input| (input.token, input.position, input.seq.0, input.output))
                .collect()
        };
        let begun = [
            (5, 0, 0, false),
            (6, 1, 0, true),
            (7, 0, 1, false),
            (8, 1, 1, true),
        ];
        assert_eq!(told(sequences.begin()), begun);
        let step = |rows, prompt| Step { rows, prompt };
        assert_eq!(told(sequences.step(step(1, 0))), [(5, 2, 0, true)]);
        let expected = [
            (6, 3, 0, true),
            (7, 2, 1, true),
            (1, 0, 2, false),
            (2, 1, 2, false),
        ];
        assert_eq!(told(sequences.step(step(2, 2))), expected);
        assert_eq!(sequences.prompt_id(), SeqId(2));
        // The next round has the same again.
        assert_eq!(told(sequences.begin()), begun);
        assert_eq!(told(sequences.step(step(1, 0))), [(5, 2, 0, true)]);
    }

    #[test]
    fn steps_that_are_too_large_are_refused_with_what_is_not() {
        assert!(check_step(512, 8, 504).is_ok());
        let Err(Complaint::Usage(text)) = check_step(512, 8, 505) else {
            panic!("512 tokens are no 513");
        };
        let expected = "--rows 8 and --prompt 505 make a step of 513 tokens, and one has at most 512; \
                        give --prompt 504 or less, or fewer rows";
        assert_eq!(text, expected);
    }
}
