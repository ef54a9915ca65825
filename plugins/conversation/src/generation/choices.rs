//! Runs the choices of a request: several generations at a time.
//!
//! The choices of one prompt are forks of one sequence. The host computes a common prefix once, so
//! a prompt is computed once; only its last token is computed for each choice.

use std::collections::VecDeque;
use std::pin::Pin;

use corral_sdk::{Constraint, Error, Finish, Generation, Model, Outcome, Sequence, Token};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::logprobs::{LogprobEntry, PendingLogprobs};
use super::{Settings, Usage};
use crate::context_limit::check_prompt;

/// A part of one choice.
#[derive(Default)]
pub struct ChoiceDelta {
    /// The choice: those of the first prompt come first.
    pub index: usize,
    /// Can be empty.
    pub text: String,
    /// The tokens can precede their text.
    pub tokens: Vec<Token>,
    /// One entry per token if the settings have `logprobs`.
    pub logprobs: Vec<LogprobEntry>,
    /// The outcome, in the choice's last delta.
    pub end: Option<Outcome>,
}

/// Choices in progress. Dropping them cancels their generations.
pub struct Choices {
    model: Model,
    /// The choices without a read in progress. The next call of `next` reads them.
    idle: Vec<ChoiceGeneration>,
    /// Ready reads are taken in turn, so that a fast choice does not starve the others.
    reads: FuturesUnordered<Read>,
    /// The outcome of each choice.
    outcomes: Vec<Option<Outcome>>,
    /// Choices per prompt.
    per_prompt: usize,
    /// Generated tokens of each choice so far.
    generated: Vec<u32>,
    /// Tokens of each prompt.
    prompts: Vec<u32>,
    /// Deltas that are ready.
    ready: VecDeque<ChoiceDelta>,
    /// Whether this request computed the prompts before: the number of cached tokens is then
    /// unknown.
    precomputed: bool,
}

/// A read of the next delta. It returns the choice unless that has ended. The future owns the
/// choice, since a dropped read would lose its chunk.
type Read = Pin<Box<dyn Future<Output = Result<(ChoiceDelta, Option<ChoiceGeneration>), Error>>>>;

/// The generation of one choice.
struct ChoiceGeneration {
    index: usize,
    generation: Generation,
    model: Model,
    /// Present if the settings have `logprobs`.
    pending: Option<PendingLogprobs>,
    /// Whether to read the whole output as one chunk.
    single_chunk: bool,
}

impl Choices {
    /// Starts all choices of all prompts. Errors name the request's `field`.
    pub fn start(
        model: &Model,
        field: &str,
        prompts: &[Vec<Token>],
        settings: &Settings,
        constraint: Option<&Constraint>,
    ) -> Result<Self, Error> {
        let sequences = prompts.iter().map(|prompt| {
            check_prompt(model, prompt, 1, field)?;
            let sequence = model.empty_sequence()?;
            sequence.append_tokens(prompt)?;
            Ok(sequence)
        });
        let sequences = sequences.collect::<Result<_, Error>>()?;
        Self::start_all(model, sequences, settings, constraint, false)
    }

    /// Starts all choices after a sequence that holds the prompt.
    pub fn start_after(
        model: &Model,
        prompt: Sequence,
        settings: &Settings,
        constraint: Option<&Constraint>,
    ) -> Result<Self, Error> {
        Self::start_all(model, vec![prompt], settings, constraint, false)
    }

    /// Starts all choices after sequences that this request has computed. With `logprobs`, the
    /// end-of-generation token gets an entry too.
    pub fn continue_from(
        model: &Model,
        sequences: Vec<Sequence>,
        settings: &Settings,
    ) -> Result<Self, Error> {
        let mut choices = Self::start_all(model, sequences, settings, None, true)?;
        choices.precomputed = true;
        Ok(choices)
    }

    /// Creates choices without tokens.
    pub fn empty(model: &Model, prompts: &[Vec<Token>], per_prompt: u32) -> Self {
        let prompts: Vec<_> = prompts.iter().map(|prompt| token_count(prompt)).collect();
        let mut choices = Self::new(model, Vec::new(), prompts, per_prompt);
        for (index, outcome) in choices.outcomes.iter_mut().enumerate() {
            let prompt = choices.prompts[index / choices.per_prompt];
            *outcome = Some(local_outcome(Finish::Length, prompt, 0));
            choices.ready.push_back(ChoiceDelta {
                index,
                end: *outcome,
                ..ChoiceDelta::default()
            });
        }
        choices
    }

    fn new(model: &Model, idle: Vec<ChoiceGeneration>, prompts: Vec<u32>, per_prompt: u32) -> Self {
        let per_prompt = per_prompt as usize;
        let count = prompts.len() * per_prompt;
        Choices {
            model: model.clone(),
            idle,
            reads: FuturesUnordered::new(),
            outcomes: vec![None; count],
            per_prompt,
            generated: vec![0; count],
            prompts,
            ready: VecDeque::new(),
            precomputed: false,
        }
    }

    /// Starts all choices after these sequences. `with_end`: the end-of-generation token gets a
    /// logprobs entry.
    fn start_all(
        model: &Model,
        prompts: Vec<Sequence>,
        settings: &Settings,
        constraint: Option<&Constraint>,
        with_end: bool,
    ) -> Result<Self, Error> {
        let lengths: Vec<_> = prompts.iter().map(Sequence::len).collect();
        let mut choices = Vec::new();
        for (first, &length) in prompts.into_iter().zip(&lengths) {
            let mut sequences = Vec::new();
            for _ in 1..settings.n {
                // A model that can't fork computes the prompt for each choice.
                sequences.push(match model.info().can_fork {
                    true => first.fork()?,
                    false => {
                        let copy = model.empty_sequence()?;
                        copy.append_tokens(&first.tokens(0))?;
                        copy
                    }
                });
            }
            sequences.insert(0, first);
            for (at, sequence) in (0..).zip(sequences) {
                let options = settings.options(model, length, at, constraint)?;
                choices.push(ChoiceGeneration {
                    index: choices.len(),
                    generation: sequence.generate(&options)?,
                    model: model.clone(),
                    pending: settings.logprobs.map(|_| match with_end {
                        true => PendingLogprobs::with_end(),
                        false => PendingLogprobs::default(),
                    }),
                    single_chunk: false,
                });
            }
        }
        Ok(Self::new(model, choices, lengths, settings.n))
    }

    /// Reads each choice as one delta at its end, which costs less. Call it before the first read.
    pub fn read_whole(&mut self) {
        for choice in &mut self.idle {
            choice.single_chunk = true;
        }
    }

    /// Takes the generation of the only choice, so that the host can stream its text. The caller
    /// passes the outcome to [`set_outcome`](Self::set_outcome). `None` if the response needs more
    /// than the text.
    pub fn take_generation(&mut self) -> Option<Generation> {
        match &self.idle[..] {
            [only] if self.count() == 1 && self.ready.is_empty() && only.pending.is_none() => {
                self.idle.pop().map(|only| only.generation)
            }
            _ => None,
        }
    }

    /// Sets the outcome of the only choice.
    pub fn set_outcome(&mut self, outcome: Outcome) {
        self.outcomes[0] = Some(outcome);
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Tokens of all prompts.
    pub fn prompt_tokens(&self) -> u32 {
        let all = self.prompts.iter();
        all.fold(0, |sum, &length| sum.saturating_add(length))
    }

    /// Number of choices.
    pub fn count(&self) -> usize {
        self.outcomes.len()
    }

    /// Returns the next delta of any choice, or `None` when all have ended. An error ends all.
    pub async fn next(&mut self) -> Result<Option<ChoiceDelta>, Error> {
        if let Some(delta) = self.ready.pop_front() {
            return Ok(Some(delta));
        }
        let idle = self.idle.drain(..);
        self.reads.extend(idle.map(ChoiceGeneration::read));
        let Some(read) = self.reads.next().await else {
            return Ok(None);
        };
        let (delta, choice) = read?;
        self.idle.extend(choice);
        self.outcomes[delta.index] = delta.end;
        self.generated[delta.index] += token_count(&delta.tokens);
        Ok(Some(delta))
    }

    /// Ends the choice of the last delta early. The number of cached prompt tokens is then unknown.
    pub fn stop_choice(&mut self, index: usize) -> Outcome {
        self.idle.retain(|choice| choice.index != index);
        let prompt = self.prompts[index / self.per_prompt];
        let outcome = local_outcome(Finish::End, prompt, self.generated[index]);
        self.outcomes[index] = Some(outcome);
        outcome
    }

    /// The number of tokens that a choice has generated so far.
    pub fn generated_tokens(&self, index: usize) -> u32 {
        self.generated.get(index).copied().unwrap_or_default()
    }

    /// The outcome of a choice that has ended; otherwise an error.
    pub fn outcome(&self, index: usize) -> Result<Outcome, Error> {
        let outcome = self.outcomes.get(index).copied().flatten();
        outcome.ok_or_else(|| Error::Failed(format!("choice {index} has not ended")))
    }

    /// The usage of all choices after their end.
    pub fn usage(&self) -> Usage {
        let outcomes = self.outcomes.iter().enumerate();
        let ended =
            outcomes.filter_map(|(index, outcome)| Some((index / self.per_prompt, (*outcome)?)));
        let usage = Usage::sum(ended);
        match self.precomputed {
            true => Usage { cached: 0, ..usage },
            false => usage,
        }
    }
}

/// An outcome that does not come from the host.
fn local_outcome(finish: Finish, prompt: u32, generated: u32) -> Outcome {
    Outcome {
        finish,
        prompt_tokens: prompt,
        cached_tokens: 0,
        generated_tokens: generated,
        queue_time: 0,
        prefill_time: 0,
        decode_time: 0,
    }
}

impl ChoiceGeneration {
    fn read(mut self) -> Read {
        Box::pin(async move {
            let chunk = match self.single_chunk {
                true => Some(self.generation.rest().await?).filter(|rest| !rest.tokens.is_empty()),
                false => self.generation.next().await,
            };
            let Some(chunk) = chunk else {
                let outcome = self.generation.outcome().await?;
                let pending = self.pending.as_mut();
                let rest = pending.map(|pending| pending.rest(&self.model, outcome.finish));
                let delta = ChoiceDelta {
                    index: self.index,
                    logprobs: rest.unwrap_or_default(),
                    end: Some(outcome),
                    ..ChoiceDelta::default()
                };
                return Ok((delta, None));
            };
            let logprobs = match &mut self.pending {
                Some(pending) => {
                    pending.add(&self.model, &chunk.tokens, chunk.logprobs, &chunk.text)?
                }
                None => Vec::new(),
            };
            let delta = ChoiceDelta {
                index: self.index,
                text: chunk.text,
                tokens: chunk.tokens,
                logprobs,
                end: None,
            };
            Ok((delta, Some(self)))
        })
    }
}

fn token_count(tokens: &[Token]) -> u32 {
    u32::try_from(tokens.len()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::{HostCall, Script};

    fn prompts(texts: &[&str]) -> Vec<Vec<Token>> {
        let texts = texts.iter();
        texts
            .map(|text| text.bytes().map(Token::from).collect())
            .collect()
    }

    async fn all(
        prompts: &[Vec<Token>],
        settings: &Settings,
    ) -> Result<(Vec<String>, Usage), Error> {
        let model = Model::open_default().await?;
        let mut choices = Choices::start(&model, "prompt", prompts, settings, None)?;
        let mut texts = vec![String::new(); choices.count()];
        let (mut order, mut ends) = (Vec::new(), 0);
        while let Some(delta) = choices.next().await? {
            texts[delta.index] += &delta.text;
            order.push(delta.index);
            ends += u32::from(delta.end.is_some_and(|end| end.finish == Finish::End));
        }
        assert_eq!(ends as usize, texts.len());
        // Choices are read in rotation.
        assert_eq!(order[..texts.len()], *(0..texts.len()).collect::<Vec<_>>());
        assert!(choices.next().await?.is_none());
        Ok((texts, choices.usage()))
    }

    #[test]
    fn choices_rotate_and_a_prompt_counts_once() {
        let script = Script::new().answers("ab", "cd").answers("x", "yz");
        let two = Settings {
            n: 2,
            seed: Some(5),
            ..Settings::default()
        };
        for can_fork in [true, false] {
            let script = Script::new()
                .answers("ab", "cd")
                .answers("x", "yz")
                .info(|info| info.can_fork = can_fork);
            let (texts, usage) = script.run(all(&prompts(&["ab", "x"]), &two)).unwrap();
            assert_eq!(texts, ["cd", "cd", "yz", "yz"]);
            assert_eq!((usage.prompt, usage.generated), (3, 12));
            // Each choice of a prompt has its own seed.
            let generations = script.generations().into_iter();
            let seeds: Vec<_> = generations.map(|one| one.settings[1].clone()).collect();
            assert_eq!(seeds, ["seed 5", "seed 6", "seed 5", "seed 6"]);
        }
        let empty = script.run(all(&prompts(&[""]), &two)).unwrap_err();
        assert_eq!(empty.code(), "empty-prompt");
        let long = Script::new()
            .context(2)
            .run(all(&prompts(&["ab"]), &two))
            .unwrap_err();
        assert_eq!((long.status(), long.code()), (400, "prompt-too-long"));
    }

    #[test]
    fn one_error_ends_all_choices() {
        let script = Script::new()
            .answers("a", "bcd")
            .fails_after("x", "", Error::Deadline);
        let settings = Settings::default();
        let failed = script.run(all(&prompts(&["a", "x"]), &settings));
        assert_eq!(failed.unwrap_err(), Error::Deadline);
        assert_eq!(script.calls().last(), Some(&HostCall::Cancelled));
    }
}
