//! Arguments of `corral-bench step`.

use super::{CommonArgs, check_distinct};
use clap::Args;
use corral_cli::Error;

/// Most steps of a round. Each step makes the sequences longer, and the last steps are compared with the first.
const MAX_STEPS: usize = 1000;

#[derive(Args, Debug)]
#[command(mut_arg("rounds", |arg| arg.default_value("9")))]
pub(crate) struct StepArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    /// Decode rows of a step
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_values_t = [1_u16, 4, 7, 8],
          value_parser = clap::value_parser!(u16).range(1..=63))]
    pub(crate) rows: Vec<u16>,
    /// Prompt tokens of a step; with 0 among them, each step is compared with the one of 0
    #[arg(long, value_name = "N,N", value_delimiter = ',',
          default_values_t = [0_u32, 1, 2, 4, 5, 8, 9, 12, 16, 32],
          value_parser = clap::value_parser!(u32).range(0..=511))]
    pub(crate) prompt_tokens: Vec<u32>,
    /// Tokens of each sequence at the start of a round
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=8000))]
    pub(crate) depth: u32,
    /// Compute threads [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: Option<u32>,
}

impl StepArgs {
    /// Finds errors that need no file access.
    pub(super) fn check(&self) -> Result<(), Error> {
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
    pub(crate) fn max_rows(&self) -> u16 {
        self.rows.iter().copied().max().unwrap_or(1)
    }

    /// Tokens of the longest prompt.
    pub(crate) fn max_prompt(&self) -> u32 {
        self.prompt_tokens.iter().copied().max().unwrap_or(0)
    }

    /// Tokens by which the longest sequence grows in a round: it has a row in each step.
    pub(crate) fn growth(&self) -> u64 {
        self.rows.len() as u64 * self.prompt_tokens.len() as u64
    }

    /// Most cells in use: at the end of a round, with the longest prompt.
    pub(crate) fn max_cells(&self) -> u64 {
        let start = u64::from(self.max_rows()) * u64::from(self.depth);
        let rows: u64 = self.rows.iter().copied().map(u64::from).sum();
        start + rows * self.prompt_tokens.len() as u64 + u64::from(self.max_prompt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Bench;
    use crate::args::tests::parse;

    fn step(line: &str) -> StepArgs {
        let bench = parse(&format!("step --model x.gguf {line}"));
        let Ok(Bench::Step(step)) = bench else {
            panic!("not step: {bench:?}");
        };
        step
    }

    #[test]
    fn defaults_are_small_steps_in_nine_rounds() {
        let step = step("");
        assert_eq!(step.rows, [1, 4, 7, 8]);
        assert_eq!(step.prompt_tokens, [0, 1, 2, 4, 5, 8, 9, 12, 16, 32]);
        assert_eq!((step.depth, step.threads), (64, None));
        assert_eq!(step.common.rounds.count, 9);
    }

    #[test]
    fn cells_are_counted_over_a_round() {
        let line = "--rows 2,1 --prompt-tokens 0,4,3 --depth 10 --rounds 2 --threads 3 --json";
        let step = step(line);
        assert_eq!(step.rows, [2, 1]);
        assert_eq!(step.prompt_tokens, [0, 4, 3]);
        assert_eq!((step.depth, step.threads), (10, Some(3)));
        assert_eq!((step.common.rounds.count, step.common.json), (2, true));
        assert_eq!((step.max_rows(), step.max_prompt()), (2, 4));
        // Six steps; the second sequence has a row in three of them.
        assert_eq!(step.growth(), 6);
        assert_eq!(step.max_cells(), 2 * 10 + 6 + 3 + 4);
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
            ("--kv-type y=f16", "remove 'y='"),
        ] {
            let error = parse(&format!("step --model x.gguf {line}")).expect_err(line);
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
