//! Several texts at a time, each a generation of its own.
//!
//! The texts of one prompt are forks of one sequence. Of sequences that begin alike and come together the
//! host lets one read the beginning, and the others follow it, so a prompt is read once; only its last
//! token is computed for each.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use corral_sdk::{Constraint, Error, Finish, Generation, Model, Outcome, Token};

use super::likely::{Likely, Waiting};
use super::{Settings, Usage};

/// A piece of one of the texts.
pub struct Piece {
    /// Which text: those of the first prompt come first.
    pub index: usize,
    /// May be empty.
    pub text: String,
    /// As the host told them, so at times before their text.
    pub tokens: Vec<Token>,
    /// If the settings ask for them.
    pub likely: Vec<Likely>,
    /// How the text went, with its last piece.
    pub end: Option<Outcome>,
}

/// Texts in the making. Dropping them cancels.
pub struct Choices {
    model: Model,
    /// One for each text; nothing once it has ended.
    running: Vec<Option<Step>>,
    /// How each went.
    outcomes: Vec<Option<Outcome>>,
    /// Texts of each prompt.
    each: usize,
    /// Tokens of each text so far.
    generated: Vec<u32>,
    /// Tokens of each prompt.
    prompts: Vec<u32>,
    /// Where to look first, so that nobody waits for a quicker one for ever.
    turn: usize,
    /// A piece that was read already.
    first: Option<Piece>,
}

/// A step of a voice: its next piece, and itself unless that was the last one. The voice is lent to it,
/// since a wait that is given up would lose what it waited for.
type Step = Pin<Box<dyn Future<Output = Result<(Piece, Option<Voice>), Error>>>>;

/// One text's generation.
struct Voice {
    index: usize,
    generation: Generation,
    model: Model,
    /// If probabilities are told.
    waiting: Option<Waiting>,
}

impl Choices {
    /// Begins all texts of all prompts; `member` is where those came from, for errors.
    pub fn begin(
        model: &Model,
        member: &str,
        prompts: &[Vec<Token>],
        settings: &Settings,
        constraint: Option<&Constraint>,
    ) -> Result<Self, Error> {
        let mut running = Vec::new();
        for prompt in prompts {
            check(prompt, model).map_err(|error| error.about(member))?;
            let first = model.empty_sequence()?;
            first.append_tokens(prompt)?;
            let mut sequences = Vec::new();
            for _ in 1..settings.n {
                // A model that can't fork reads the prompt for each.
                sequences.push(match model.info().can_fork {
                    true => first.fork()?,
                    false => {
                        let another = model.empty_sequence()?;
                        another.append_tokens(prompt)?;
                        another
                    }
                });
            }
            sequences.insert(0, first);
            let length = length_of(prompt);
            for (at, sequence) in (0..).zip(sequences) {
                let how = settings.how(model, length, at, constraint)?;
                let voice = Voice {
                    index: running.len(),
                    generation: sequence.generate(&how)?,
                    model: model.clone(),
                    waiting: settings.logprobs.map(|_| Waiting::default()),
                };
                running.push(Some(voice.step()));
            }
        }
        let lengths = prompts.iter().map(|prompt| length_of(prompt));
        let texts = running.len();
        Ok(Choices {
            model: model.clone(),
            outcomes: vec![None; texts],
            running,
            each: settings.n as usize,
            generated: vec![0; texts],
            prompts: lengths.collect(),
            turn: 0,
            first: None,
        })
    }

    /// Waits for the first piece. What fails before it can so be told with its own status.
    pub async fn begun(mut self) -> Result<Self, Error> {
        self.first = self.next().await?;
        Ok(self)
    }

    /// The model that speaks.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Tokens of all prompts.
    pub fn prompt_tokens(&self) -> u32 {
        let all = self.prompts.iter();
        all.fold(0, |sum, &length| sum.saturating_add(length))
    }

    /// Number of texts.
    pub fn len(&self) -> usize {
        self.running.len()
    }

    /// The next piece of any of the texts; nothing when all have ended. An error ends all.
    pub async fn next(&mut self) -> Result<Option<Piece>, Error> {
        if self.first.is_some() {
            return Ok(self.first.take());
        }
        if self.running.iter().all(Option::is_none) {
            return Ok(None);
        }
        let count = self.running.len();
        let (turn, running) = (self.turn, &mut self.running);
        let (piece, voice) = poll_fn(|context| {
            for index in (turn..count).chain(0..turn) {
                let Some(step) = &mut running[index] else {
                    continue;
                };
                if let Poll::Ready(ready) = step.as_mut().poll(context) {
                    running[index] = None;
                    return Poll::Ready(ready);
                }
            }
            Poll::Pending
        })
        .await?;
        self.turn = (piece.index + 1) % count;
        self.running[piece.index] = voice.map(Voice::step);
        self.outcomes[piece.index] = piece.end;
        self.generated[piece.index] += length_of(&piece.tokens);
        Ok(Some(piece))
    }

    /// Ends a text of which no more is wanted. What was cached of its prompt is not known then.
    pub fn end(&mut self, index: usize) -> Outcome {
        self.running[index] = None;
        let outcome = Outcome {
            finish: Finish::End,
            prompt_tokens: self.prompts[index / self.each],
            cached_tokens: 0,
            generated_tokens: self.generated[index],
            queue_time: 0,
            prefill_time: 0,
            decode_time: 0,
        };
        self.outcomes[index] = Some(outcome);
        outcome
    }

    /// What it all took, once all have ended.
    pub fn usage(&self) -> Usage {
        let outcomes = self.outcomes.iter().enumerate();
        let ended = outcomes.filter_map(|(index, outcome)| Some((index / self.each, (*outcome)?)));
        Usage::of(ended)
    }
}

impl Voice {
    fn step(mut self) -> Step {
        Box::pin(async move {
            let Some(chunk) = self.generation.next().await else {
                let outcome = self.generation.outcome().await?;
                let waiting = self.waiting.as_mut();
                let rest = waiting.map(|waiting| waiting.rest(&self.model, outcome.finish));
                let piece = Piece {
                    index: self.index,
                    text: String::new(),
                    tokens: Vec::new(),
                    likely: rest.unwrap_or_default(),
                    end: Some(outcome),
                };
                return Ok((piece, None));
            };
            let likely = match &mut self.waiting {
                Some(waiting) => {
                    waiting.piece(&self.model, &chunk.tokens, chunk.logprobs, &chunk.text)?
                }
                None => Vec::new(),
            };
            let piece = Piece {
                index: self.index,
                text: chunk.text,
                tokens: chunk.tokens,
                likely,
                end: None,
            };
            Ok((piece, Some(self)))
        })
    }
}

/// How many tokens there are.
fn length_of(tokens: &[Token]) -> u32 {
    u32::try_from(tokens.len()).unwrap_or(u32::MAX)
}

/// A prompt has at least one token, and leaves room for one more.
fn check(prompt: &[Token], model: &Model) -> Result<(), Error> {
    let limit = model.info().context;
    let length = length_of(prompt);
    if length == 0 {
        return Err(Error::bad_request(
            "empty-prompt",
            "the prompt has no tokens",
        ));
    }
    if length >= limit {
        return Err(Error::bad_request(
            "context_length_exceeded",
            format!(
                "the prompt has {length} tokens; the model {} holds {limit}, so a prompt may have {} \
                 to leave room for an answer",
                model.name(),
                limit.saturating_sub(1),
            ),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::{Call, Script};

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
        let model = Model::first().await?;
        let mut choices = Choices::begin(&model, "prompt", prompts, settings, None)?
            .begun()
            .await?;
        let mut texts = vec![String::new(); choices.len()];
        let (mut order, mut ends) = (Vec::new(), 0);
        while let Some(piece) = choices.next().await? {
            texts[piece.index] += &piece.text;
            order.push(piece.index);
            ends += u32::from(piece.end.is_some_and(|end| end.finish == Finish::End));
        }
        assert_eq!(ends as usize, texts.len());
        // They take turns.
        assert_eq!(order[..texts.len()], *(0..texts.len()).collect::<Vec<_>>());
        assert!(choices.next().await?.is_none());
        Ok((texts, choices.usage()))
    }

    #[test]
    fn texts_come_in_turns_and_a_prompt_counts_once() {
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
            // Each text of a prompt is drawn by a seed of its own.
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
        assert_eq!(
            (long.status(), long.code()),
            (400, "context_length_exceeded")
        );
    }

    #[test]
    fn one_that_fails_ends_all() {
        let script = Script::new()
            .answers("a", "bcd")
            .breaks_off("x", "", Error::Deadline);
        let settings = Settings::default();
        let failed = script.run(all(&prompts(&["a", "x"]), &settings));
        assert_eq!(failed.unwrap_err(), Error::Deadline);
        assert_eq!(script.calls().last(), Some(&Call::Cancelled));
    }
}
