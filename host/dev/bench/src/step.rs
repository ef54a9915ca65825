//! `corral-bench step`: the time of one `llama_decode` by decode rows and prompt tokens.
//!
//! No scheduler plans these steps: llama.cpp gets them as they are, in a context beside that of an idle engine. Each
//! round measures every step once, in turn. A round starts with empty cells and prefills the sequences again, so that
//! all rounds have sequences of the same lengths; the prompt is dropped after each step. A step with a prompt is
//! compared with the step of as many rows alone in the same round.

use crate::args::{EngineArgs, check_distinct};
use crate::workload::{check_context, config, prompt};
use clap::Args;
use corral_cli::Error;
use corral_cli::bench::rounds::{RoundArgs, Rounds};
use corral_cli::bench::stats::{median, median_min_max};
use corral_cli::bench::table::{self, Column, Unit};
use corral_engine::SeqId;
use corral_engine::testing::{RawContext, TokenInput};
use corral_engine::{Engine, Token};
use serde_json::{Value, json};
use std::time::Instant;

/// Most steps of a round. Each step makes the sequences longer, and the last steps are compared with the first.
const MAX_STEPS: usize = 1000;

#[derive(Args, Debug)]
#[command(mut_arg("rounds", |arg| arg.default_value("9")))]
pub(crate) struct StepArgs {
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    rounds: RoundArgs,
    /// Decode rows of a step
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_values_t = [1_u16, 4, 7, 8],
          value_parser = clap::value_parser!(u16).range(1..=63))]
    rows: Vec<u16>,
    /// Prompt tokens of a step; with 0 among them, each step is compared with the one of 0
    #[arg(long, value_name = "N,N", value_delimiter = ',',
          default_values_t = [0_u32, 1, 2, 4, 5, 8, 9, 12, 16, 32],
          value_parser = clap::value_parser!(u32).range(0..=511))]
    prompt_tokens: Vec<u32>,
    /// Tokens of each sequence at the start of a round
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=8000))]
    depth: u32,
}

impl StepArgs {
    /// Finds errors that need no file access.
    fn check(&self) -> Result<(), Error> {
        check_distinct("--rows", &self.rows)?;
        check_distinct("--prompt-tokens", &self.prompt_tokens)?;
        let steps = self.rows.len().saturating_mul(self.prompt_tokens.len());
        if steps > MAX_STEPS {
            return Err(Error::usage(format!(
                "a round would have {steps} steps, and at most {MAX_STEPS} can be measured; \
                 give fewer numbers for --rows or --prompt-tokens"
            )));
        }
        Ok(())
    }

    /// Rows of the largest step.
    fn max_rows(&self) -> u16 {
        self.rows.iter().copied().max().unwrap_or(1)
    }

    /// Tokens of the longest prompt.
    fn max_prompt(&self) -> u32 {
        self.prompt_tokens.iter().copied().max().unwrap_or(0)
    }

    /// Tokens by which the longest sequence grows in a round: it has a row in each step.
    fn growth(&self) -> u64 {
        self.rows.len() as u64 * self.prompt_tokens.len() as u64
    }

    /// Most cells in use: at the end of a round, with the longest prompt.
    fn max_cells(&self) -> u64 {
        let start = u64::from(self.max_rows()) * u64::from(self.depth);
        let rows: u64 = self.rows.iter().copied().map(u64::from).sum();
        start + rows * self.prompt_tokens.len() as u64 + u64::from(self.max_prompt())
    }
}

/// The number of the prompt; the sequences' prompts start at 0.
const PROMPT: u64 = 999;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    /// Sequences with one token each.
    rows: u16,
    prompt_tokens: u32,
}

/// A step and its seconds in each round.
struct StepTimes {
    step: Step,
    seconds: Vec<f64>,
}

const COLUMNS: [Column; 5] = [
    ("rows", "rows", Unit::Plain),
    ("prompt", "prompt_tokens", Unit::Plain),
    ("median", "median_s", Unit::Milliseconds),
    ("min", "min_s", Unit::Milliseconds),
    ("to rows alone", "ratio_to_alone", Unit::Ratio),
];

/// Measures and prints the figures.
pub(crate) fn measure(args: &StepArgs) -> Result<(), Error> {
    args.check()?;
    let mut config = config(&args.engine, args.max_cells())?;
    // One more for the prompt.
    config.max_running = config.max_running.max(args.max_rows() + 1);
    let engine = Engine::load(config)?;
    let mut raw = open_context(&engine, args)?;
    let mut sequences = Sequences::new(&engine, args);
    let mut steps = steps(args);
    let mut rounds = Rounds::with_warmup(args.rounds);
    for round in rounds.by_ref() {
        start_round(&mut raw, &mut sequences)?;
        for times in &mut steps {
            let inputs = sequences.step(times.step);
            let start = Instant::now();
            raw.decode(&inputs)?;
            let seconds = start.elapsed().as_secs_f64();
            raw.clear(sequences.prompt_id());
            if round > 0 {
                times.seconds.push(seconds);
            }
        }
    }
    let rounds = rounds.measured();
    drop(raw);
    engine.shutdown();
    let model = args.engine.model.file_name().unwrap_or_default();
    let model = model.to_string_lossy();
    let setup = json!({
        "bench": "step",
        "model": model,
        "depth": args.depth,
        "rounds": rounds,
    });
    let title = format!(
        "{model}: one llama_decode by decode rows and prompt tokens; {} tokens in each sequence at the start of a \
         round; {rounds} rounds, ms; ratios round by round",
        args.depth
    );
    table::print(args.engine.json, setup, &title, &COLUMNS, &reports(&steps));
    Ok(())
}

/// Opens a context that holds all steps.
fn open_context(engine: &Engine, args: &StepArgs) -> Result<RawContext, Error> {
    let info = engine.info();
    if !info.can_generate {
        return Err(Error::failed(
            "this model is an encoder and does not generate; give --model one that does",
        ));
    }
    let depth = u64::from(args.depth);
    check_context(info.context, "--depth", depth, args.growth())?;
    let max_prompt = u64::from(args.max_prompt());
    check_context(info.context, "--prompt-tokens", max_prompt, 0)?;
    let raw = engine.raw_context()?;
    check_step(raw.step_tokens(), args.max_rows(), args.max_prompt())?;
    Ok(raw)
}

/// Refuses a step of more than `max` tokens.
fn check_step(max: u32, rows: u16, prompt: u32) -> Result<(), Error> {
    let tokens = u32::from(rows).saturating_add(prompt);
    if tokens <= max {
        return Ok(());
    }
    Err(Error::usage(format!(
        "--rows {rows} and --prompt-tokens {prompt} make a step of {tokens} tokens, and it can have {max}; \
         give --prompt-tokens {} or less, or fewer rows",
        max.saturating_sub(u32::from(rows))
    )))
}

/// All steps of a round, without times.
fn steps(args: &StepArgs) -> Vec<StepTimes> {
    let with_prompt = |&prompt_tokens: &u32| {
        args.rows.iter().map(move |&rows| StepTimes {
            step: Step {
                rows,
                prompt_tokens,
            },
            seconds: Vec::new(),
        })
    };
    args.prompt_tokens.iter().flat_map(with_prompt).collect()
}

/// Empties all cells and prefills the sequences.
fn start_round(raw: &mut RawContext, sequences: &mut Sequences) -> Result<(), Error> {
    for number in 0..=sequences.tokens.len() {
        raw.clear(id(number));
    }
    let max = usize::try_from(raw.step_tokens()).unwrap_or(usize::MAX);
    for part in sequences.prefill().chunks(max.max(1)) {
        raw.decode(part)?;
    }
    Ok(())
}

/// The inputs of steps. The decoding sequences have the first ids, the prompt has the next one.
struct Sequences {
    /// The prompt of each sequence, which repeats as its output.
    tokens: Vec<Vec<Token>>,
    /// The length of each sequence.
    lengths: Vec<u32>,
    prompt: Vec<Token>,
}

impl Sequences {
    fn new(engine: &Engine, args: &StepArgs) -> Self {
        let tokens = |number| prompt(engine, number, u64::from(args.depth));
        let tokens: Vec<_> = (0..u64::from(args.max_rows())).map(tokens).collect();
        Self {
            lengths: vec![0; tokens.len()],
            tokens,
            prompt: prompt(engine, PROMPT, u64::from(args.max_prompt())),
        }
    }

    fn prompt_id(&self) -> SeqId {
        id(self.tokens.len())
    }

    /// The prompts of all sequences.
    fn prefill(&mut self) -> Vec<TokenInput> {
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

    /// A step, after which its sequences are longer by a token.
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
        // Without an output, as a prefill that continues in the next step.
        let prompt = self.prompt.iter().zip(0..step.prompt_tokens);
        inputs.extend(prompt.map(|(&token, position)| TokenInput {
            token,
            position,
            seq,
            output: false,
        }));
        inputs
    }
}

/// The token at a position of a sequence that repeats its prompt.
fn token_at(prompt: &[Token], position: u32) -> Token {
    let at = usize::try_from(position).unwrap_or(usize::MAX) % prompt.len().max(1);
    prompt.get(at).copied().unwrap_or(0)
}

/// The id of a sequence, of which there are fewer than 65.
fn id(number: usize) -> SeqId {
    SeqId(u16::try_from(number).unwrap_or(u16::MAX))
}

/// The figures of each step. Ratios are taken round by round.
fn reports(steps: &[StepTimes]) -> Vec<Value> {
    let alone = |times: &StepTimes| {
        let alone = Step {
            rows: times.step.rows,
            prompt_tokens: 0,
        };
        steps.iter().find(|other| other.step == alone)
    };
    steps
        .iter()
        .map(|times| report(times, alone(times)))
        .collect()
}

fn report(times: &StepTimes, alone: Option<&StepTimes>) -> Value {
    let ratio = alone.map(|alone| {
        let pairs = times.seconds.iter().zip(&alone.seconds);
        median(pairs.map(|(own, alone)| own / alone))
    });
    let [median, min, _] = median_min_max(&times.seconds);
    json!({
        "rows": times.step.rows,
        "prompt_tokens": times.step.prompt_tokens,
        "median_s": median,
        "min_s": min,
        "ratio_to_alone": ratio,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::tests::parse;

    fn times(rows: u16, prompt_tokens: u32, seconds: &[f64]) -> StepTimes {
        StepTimes {
            step: Step {
                rows,
                prompt_tokens,
            },
            seconds: seconds.to_vec(),
        }
    }

    #[test]
    fn steps_are_compared_with_rows_alone() {
        let all = [
            times(1, 0, &[1.0, 2.0, 8.0]),
            times(4, 0, &[5.0, 5.0, 5.0]),
            times(1, 4, &[6.0, 2.0, 16.0]),
            times(4, 4, &[10.0, 5.0, 20.0]),
        ];
        let rows = reports(&all);
        let of = |key: &str| -> Vec<_> { rows.iter().map(|row| row[key].as_f64()).collect() };
        assert_eq!(of("rows"), [1.0, 4.0, 1.0, 4.0].map(Some));
        assert_eq!(of("prompt_tokens"), [0.0, 0.0, 4.0, 4.0].map(Some));
        assert_eq!(of("median_s"), [2.0, 5.0, 6.0, 10.0].map(Some));
        assert_eq!(of("min_s"), [1.0, 5.0, 2.0, 5.0].map(Some));
        // The ratios are 6, 1 and 2; that of the medians would be 3.
        assert_eq!(of("ratio_to_alone"), [1.0, 1.0, 2.0, 2.0].map(Some));
    }

    #[test]
    fn ratio_needs_a_step_of_rows_alone() {
        let rows = reports(&[times(1, 2, &[1.0]), times(4, 2, &[2.0])]);
        assert!(rows.iter().all(|row| row["ratio_to_alone"].is_null()));
        assert_eq!(rows[1]["median_s"], 2.0);
    }

    #[test]
    fn prompt_follows_the_rows() {
        let mut sequences = Sequences {
            tokens: vec![vec![5, 6], vec![7, 8]],
            lengths: vec![0; 2],
            prompt: vec![1, 2, 3],
        };
        let fields = |inputs: Vec<TokenInput>| -> Vec<_> {
            let inputs = inputs.into_iter();
            inputs
                .map(|input| (input.token, input.position, input.seq.0, input.output))
                .collect()
        };
        let prefill = [
            (5, 0, 0, false),
            (6, 1, 0, true),
            (7, 0, 1, false),
            (8, 1, 1, true),
        ];
        assert_eq!(fields(sequences.prefill()), prefill);
        let step = |rows, prompt_tokens| Step {
            rows,
            prompt_tokens,
        };
        assert_eq!(fields(sequences.step(step(1, 0))), [(5, 2, 0, true)]);
        let expected = [
            (6, 3, 0, true),
            (7, 2, 1, true),
            (1, 0, 2, false),
            (2, 1, 2, false),
        ];
        assert_eq!(fields(sequences.step(step(2, 2))), expected);
        assert_eq!(sequences.prompt_id(), SeqId(2));
        // The next round repeats the first.
        assert_eq!(fields(sequences.prefill()), prefill);
        assert_eq!(fields(sequences.step(step(1, 0))), [(5, 2, 0, true)]);
    }

    #[test]
    fn too_large_step_is_refused() {
        assert!(check_step(512, 8, 504).is_ok());
        let error = check_step(512, 8, 505).expect_err("a step of 513 tokens");
        let expected = "--rows 8 and --prompt-tokens 505 make a step of 513 tokens, and it can have 512; \
                        give --prompt-tokens 504 or less, or fewer rows";
        assert_eq!(error.message(false), expected);
    }

    fn args(line: &str) -> Result<StepArgs, String> {
        let args: StepArgs = parse(&format!("--model x.gguf {line}"))?;
        match args.check() {
            Ok(()) => Ok(args),
            Err(error) => Err(error.message(false)),
        }
    }

    #[test]
    fn cells_are_counted_over_a_round() {
        let args = args("--rows 2,1 --prompt-tokens 0,4,3 --depth 10").expect("valid sizes");
        assert_eq!(args.rounds.count, 9);
        assert_eq!((args.max_rows(), args.max_prompt()), (2, 4));
        // Six steps; the second sequence has a row in three of them.
        assert_eq!(args.growth(), 6);
        assert_eq!(args.max_cells(), 2 * 10 + 6 + 3 + 4);
    }

    #[test]
    fn invalid_sizes_are_refused() {
        let numbers: Vec<_> = (0..300).map(|number: u32| number.to_string()).collect();
        let many = format!("--prompt-tokens {}", numbers.join(","));
        for (line, expected) in [
            ("--rows 0", "0 is not in 1..=63"),
            ("--rows 64", "64 is not in 1..=63"),
            ("--prompt-tokens 512", "512 is not in 0..=511"),
            ("--depth 0", "0 is not in 1..=8000"),
            ("--rows 4,8,4", "--rows names a number twice"),
            (
                "--prompt-tokens 0,0",
                "--prompt-tokens names a number twice",
            ),
            (many.as_str(), "1200 steps, and at most 1000"),
        ] {
            let error = args(line).expect_err(line);
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
