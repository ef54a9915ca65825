//! What `corral bench step` takes.

use super::Measuring;
use crate::complaint::Complaint;
use clap::Args;

/// Most steps of a round: each makes the sequences longer, and the last ones are compared with the first.
const MOST_STEPS: usize = 1000;

#[derive(Args, Debug)]
#[command(mut_arg("rounds", |arg| arg.default_value("9")))]
pub(crate) struct StepBench {
    #[command(flatten)]
    pub(crate) measuring: Measuring,
    /// Sequences that generate in a step, each with one token.
    #[arg(
        long,
        value_name = "N,N",
        value_delimiter = ',',
        default_values_t = [1_u16, 4, 7, 8],
        value_parser = clap::value_parser!(u16).range(1..=63)
    )]
    pub(crate) rows: Vec<u16>,
    /// Tokens of a prompt that the step reads beside them. With 0 among them, each step is compared with the one
    /// that reads none.
    #[arg(
        long,
        value_name = "N,N",
        value_delimiter = ',',
        default_values_t = [0_u32, 1, 2, 4, 5, 8, 9, 12, 16, 32],
        value_parser = clap::value_parser!(u32).range(0..=511)
    )]
    pub(crate) prompt: Vec<u32>,
    /// Tokens that each generating sequence has at the beginning of a round.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=8000))]
    pub(crate) cells: u32,
    /// Compute threads; by default one for each core.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: Option<u32>,
}

impl StepBench {
    /// What can be known to be wrong without touching a file.
    pub(super) fn check(&self) -> Result<(), Complaint> {
        let twice = [
            ("--rows", names_one_twice(&self.rows)),
            ("--prompt", names_one_twice(&self.prompt)),
        ];
        if let Some((option, _)) = twice.into_iter().find(|(_, twice)| *twice) {
            return Err(Complaint::Usage(format!(
                "{option} names a number twice; give each once"
            )));
        }
        let steps = self.rows.len().saturating_mul(self.prompt.len());
        if steps > MOST_STEPS {
            return Err(Complaint::Usage(format!(
                "a round would have {steps} steps, and at most {MOST_STEPS} are measured; \
                 give fewer numbers for --rows or --prompt"
            )));
        }
        Ok(())
    }

    /// Sequences that generate in the largest step.
    pub(crate) fn most_rows(&self) -> u16 {
        self.rows.iter().copied().max().unwrap_or(1)
    }

    /// Tokens of the longest prompt.
    pub(crate) fn most_prompt(&self) -> u32 {
        self.prompt.iter().copied().max().unwrap_or(0)
    }

    /// Tokens by which the longest sequence grows in a round: it has a row in each step.
    pub(crate) fn growth(&self) -> u64 {
        self.rows.len() as u64 * self.prompt.len() as u64
    }

    /// Cells that are used at most: at the end of a round, with the longest prompt.
    pub(crate) fn most_cells(&self) -> u64 {
        let begun = u64::from(self.most_rows()) * u64::from(self.cells);
        let rows: u64 = self.rows.iter().copied().map(u64::from).sum();
        begun + rows * self.prompt.len() as u64 + u64::from(self.most_prompt())
    }
}

fn names_one_twice<T: PartialEq>(numbers: &[T]) -> bool {
    let twice = |(at, number): (usize, &T)| numbers[..at].contains(number);
    numbers.iter().enumerate().any(twice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::tests::parse;
    use crate::arguments::{Bench, Command, CommandLine};

    fn step(line: &str) -> StepBench {
        let CommandLine {
            command: Command::Bench(Bench::Step(step)),
            ..
        } = parse(&format!("corral bench step --model x.gguf{line}")).expect("a good line")
        else {
            panic!("no bench step");
        };
        step
    }

    #[test]
    fn without_a_word_small_steps_are_measured_in_nine_rounds() {
        let step = step("");
        assert_eq!(step.rows, [1, 4, 7, 8]);
        assert_eq!(step.prompt, [0, 1, 2, 4, 5, 8, 9, 12, 16, 32]);
        assert_eq!((step.cells, step.threads), (64, None));
        // Others have 5.
        assert_eq!(step.measuring.rounds.most, 9);
    }

    #[test]
    fn what_is_said_is_taken_and_its_cells_are_counted() {
        let step = step(" --rows 2,1 --prompt 0,4,3 --cells 10 --rounds 2 --threads 3 --json");
        assert_eq!(step.rows, [2, 1]);
        assert_eq!(step.prompt, [0, 4, 3]);
        assert_eq!((step.cells, step.threads), (10, Some(3)));
        assert_eq!((step.measuring.rounds.most, step.measuring.json), (2, true));
        assert_eq!((step.most_rows(), step.most_prompt()), (2, 4));
        // Six steps, in three of which the second sequence has no row.
        assert_eq!(step.growth(), 6);
        assert_eq!(step.most_cells(), 2 * 10 + 6 + 3 + 4);
    }

    #[test]
    fn sizes_that_make_no_sense_are_refused_with_what_would() {
        let numbers: Vec<_> = (0..300).map(|number: u32| number.to_string()).collect();
        let many = format!("--prompt {}", numbers.join(","));
        for (line, expected) in [
            ("--rows 0", "0 is not in 1..=63"),
            ("--rows 64", "64 is not in 1..=63"),
            ("--prompt 512", "512 is not in 0..=511"),
            ("--cells 0", "0 is not in 1..=8000"),
            ("--rows 4,8,4", "--rows names a number twice"),
            ("--prompt 0,0", "--prompt names a number twice"),
            (many.as_str(), "1200 steps, and at most 1000"),
            ("--kv-type y=f16", "leave 'y=' away"),
        ] {
            let line = format!("corral bench step --model x.gguf {line}");
            let error = parse(&line).expect_err(&line);
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
