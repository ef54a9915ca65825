//! Best of n, and self-consistency: sampled answers to one prompt.

use super::client::{ProgramClient, Settings};
use super::input::Input;
use corral_cli::Error;
use serde_json::{Value, json};
use std::cmp::Reverse;

/// Answers of best of n.
const ANSWERS: u64 = 8;
/// Most votes. With random weights no two answers agree, so all are cast, in two waves.
const VOTES: u64 = 9;

pub(super) mod best_of_n {
    use super::*;

    pub(in super::super) fn request(input: &Input) -> Value {
        json!({
            "prompt": input.text,
            "n": ANSWERS,
            "seed": input.seed,
            "max_tokens": input.lengths.output,
            "ignore_eos": true,
        })
    }

    pub(in super::super) async fn run(client: ProgramClient, input: Input) -> Result<u64, Error> {
        let settings = Settings::new(input.lengths.output).sampled(input.seed);
        let settings = settings.answers(ANSWERS).logprobs(1);
        let answers = client.complete_all(&input.prompt, &settings).await?;
        let mean = |index: usize| {
            let logprobs = &answers[index].logprobs;
            let sum: f32 = logprobs.iter().map(|token| token.logprob).sum();
            sum / logprobs.len().max(1) as f32
        };
        let best = (0..answers.len()).max_by(|&one, &other| mean(one).total_cmp(&mean(other)));
        let best = best.map(|index| answers[index].content.as_str());
        std::hint::black_box(best);
        Ok(answers.len() as u64)
    }
}

pub(super) mod self_consistency {
    use super::*;

    pub(in super::super) fn request(input: &Input) -> Value {
        json!({
            "prompt": input.text,
            "votes": VOTES,
            "temperature": 1,
            "seed": input.seed,
            "max_tokens": input.lengths.output,
            "ignore_eos": true,
        })
    }

    pub(in super::super) async fn run(client: ProgramClient, input: Input) -> Result<u64, Error> {
        let mut tally: Vec<(String, u64)> = Vec::new();
        let mut cast = 0;
        loop {
            let leading = tally.first().map_or(0, |first| first.1);
            let wave = (VOTES / 2 + 1 - leading).min(VOTES - cast);
            if wave == 0 {
                return Ok(cast);
            }
            let settings = Settings::new(input.lengths.output).sampled(input.seed + cast);
            let settings = settings.answers(wave);
            for completion in client.complete_all(&input.prompt, &settings).await? {
                let answer = answer(&completion.content);
                match tally.iter_mut().find(|(known, _)| known == answer) {
                    Some((_, votes)) => *votes += 1,
                    None => tally.push((answer.to_owned(), 1)),
                }
            }
            cast += wave;
            tally.sort_by_key(|(_, votes)| Reverse(*votes));
        }
    }

    /// The last number of a text, or the text.
    fn answer(text: &str) -> &str {
        let is_digit = |character: char| character.is_ascii_digit();
        match text.rfind(is_digit) {
            None => text.trim(),
            Some(end) => {
                let before = text[..end].trim_end_matches(is_digit);
                &text[before.len()..=end]
            }
        }
    }
}
