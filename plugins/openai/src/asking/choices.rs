//! Several texts at a time, each a generation of its own.
//!
//! The texts of one prompt are forks of one sequence. Of sequences that begin alike and come together the
//! host lets one read the beginning, and the others follow it, so a prompt is read once; only its last
//! token is computed for each.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use corral_sdk::{Constraint, Error, Finish, Generation, Model, Outcome, Sequence, Token};

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
    running: Vec<Option<Running>>,
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
    /// Pieces that are there already.
    ready: VecDeque<Piece>,
    /// Whether this request computed the prompts before: what was cached of them is not known then.
    read: bool,
}

/// A text in the making.
enum Running {
    /// Nobody waits for its next piece.
    Still(Box<Voice>),
    Step(Step),
}

/// A step of a voice: its next piece, and itself unless that was the last one. The voice is lent to it,
/// since a wait that is given up would lose what it waited for.
type Step = Pin<Box<dyn Future<Output = Result<(Piece, Option<Box<Voice>>), Error>>>>;

/// One text's generation.
struct Voice {
    index: usize,
    generation: Generation,
    model: Model,
    /// If probabilities are told.
    waiting: Option<Waiting>,
    /// Whether all of it is to be one piece.
    whole: bool,
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
        let sequences = prompts.iter().map(|prompt| {
            check(prompt, model, 1).map_err(|error| error.about(member))?;
            let sequence = model.empty_sequence()?;
            sequence.append_tokens(prompt)?;
            Ok(sequence)
        });
        let sequences = sequences.collect::<Result<_, Error>>()?;
        Self::start(model, sequences, settings, constraint, false)
    }

    /// The same after prompts that were read in this request. If probabilities are told, then also of the
    /// token that ends a text.
    pub fn go_on(
        model: &Model,
        sequences: Vec<Sequence>,
        settings: &Settings,
    ) -> Result<Self, Error> {
        let started = Self::start(model, sequences, settings, None, true)?;
        Ok(Choices {
            read: true,
            ..started
        })
    }

    /// Texts of no tokens.
    pub fn silent(model: &Model, prompts: &[Vec<Token>], each: u32) -> Self {
        let prompts: Vec<_> = prompts.iter().map(|prompt| length_of(prompt)).collect();
        let lengths = prompts
            .iter()
            .flat_map(|&length| (0..each).map(move |_| length));
        let outcomes: Vec<_> = lengths
            .map(|length| told(Finish::Length, length, 0))
            .collect();
        let ready = outcomes.iter().enumerate().map(|(index, outcome)| Piece {
            index,
            text: String::new(),
            tokens: Vec::new(),
            likely: Vec::new(),
            end: Some(*outcome),
        });
        Choices {
            model: model.clone(),
            running: outcomes.iter().map(|_| None).collect(),
            ready: ready.collect(),
            generated: vec![0; outcomes.len()],
            outcomes: outcomes.into_iter().map(Some).collect(),
            each: each as usize,
            prompts,
            turn: 0,
            read: false,
        }
    }

    /// Begins all texts after these sequences; `ends` if the tokens that end them are told too.
    fn start(
        model: &Model,
        prompts: Vec<Sequence>,
        settings: &Settings,
        constraint: Option<&Constraint>,
        ends: bool,
    ) -> Result<Self, Error> {
        let lengths: Vec<_> = prompts.iter().map(Sequence::len).collect();
        let mut running = Vec::new();
        for (first, &length) in prompts.into_iter().zip(&lengths) {
            let mut sequences = Vec::new();
            for _ in 1..settings.n {
                // A model that can't fork reads the prompt for each.
                sequences.push(match model.info().can_fork {
                    true => first.fork()?,
                    false => {
                        let another = model.empty_sequence()?;
                        another.append_tokens(&first.tokens(0))?;
                        another
                    }
                });
            }
            sequences.insert(0, first);
            for (at, sequence) in (0..).zip(sequences) {
                let how = settings.how(model, length, at, constraint)?;
                let voice = Voice {
                    index: running.len(),
                    generation: sequence.generate(&how)?,
                    model: model.clone(),
                    waiting: settings.logprobs.map(|_| match ends {
                        true => Waiting::with_end(),
                        false => Waiting::default(),
                    }),
                    whole: false,
                };
                running.push(Some(Running::Still(Box::new(voice))));
            }
        }
        let texts = running.len();
        Ok(Choices {
            model: model.clone(),
            outcomes: vec![None; texts],
            running,
            each: settings.n as usize,
            generated: vec![0; texts],
            prompts: lengths,
            turn: 0,
            ready: VecDeque::new(),
            read: false,
        })
    }

    /// Waits for the first piece. What fails before it can so be told with its own status.
    pub async fn begun(mut self) -> Result<Self, Error> {
        if let Some(mut voice) = self.only() {
            // It stays where it is, for whoever passes the text on.
            voice.generation = voice.generation.begun().await?;
            self.running[0] = Some(Running::Still(voice));
        } else if let Some(piece) = self.next().await? {
            self.ready.push_front(piece);
        }
        Ok(self)
    }

    /// Lets each text come as one piece when it has ended, which costs less than piece by piece. Before the first of
    /// them was waited for.
    pub fn at_once(&mut self) {
        for running in self.running.iter_mut().flatten() {
            if let Running::Still(voice) = running {
                voice.whole = true;
            }
        }
    }

    /// Takes the only voice, of which nothing is told but its text, if nobody waits for it.
    fn only(&mut self) -> Option<Box<Voice>> {
        match &mut self.running[..] {
            [only @ Some(Running::Still(_))] if self.ready.is_empty() => match only.take() {
                Some(Running::Still(voice)) if voice.waiting.is_none() => Some(voice),
                other => {
                    *only = other;
                    None
                }
            },
            _ => None,
        }
    }

    /// The generation of the only text, for whoever passes the text on without looking at it, and then
    /// [tells](Self::ended) how it went. Nothing where more is to be told than text.
    pub fn unseen(&mut self) -> Option<Generation> {
        Some(self.only()?.generation)
    }

    /// The only text went like this.
    pub fn ended(&mut self, outcome: Outcome) {
        self.outcomes[0] = Some(outcome);
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
        if let Some(piece) = self.ready.pop_front() {
            return Ok(Some(piece));
        }
        if self.running.iter().all(Option::is_none) {
            return Ok(None);
        }
        let count = self.running.len();
        let (turn, running) = (self.turn, &mut self.running);
        let (piece, voice) = poll_fn(|context| {
            for index in (turn..count).chain(0..turn) {
                let mut step = match running[index].take() {
                    None => continue,
                    Some(Running::Still(voice)) => voice.step(),
                    Some(Running::Step(step)) => step,
                };
                match step.as_mut().poll(context) {
                    Poll::Ready(ready) => return Poll::Ready(ready),
                    Poll::Pending => running[index] = Some(Running::Step(step)),
                }
            }
            Poll::Pending
        })
        .await?;
        self.turn = (piece.index + 1) % count;
        self.running[piece.index] = voice.map(Running::Still);
        self.outcomes[piece.index] = piece.end;
        self.generated[piece.index] += length_of(&piece.tokens);
        Ok(Some(piece))
    }

    /// Ends a text of which no more is wanted. What was cached of its prompt is not known then.
    pub fn end(&mut self, index: usize) -> Outcome {
        self.running[index] = None;
        let prompt = self.prompts[index / self.each];
        let outcome = told(Finish::End, prompt, self.generated[index]);
        self.outcomes[index] = Some(outcome);
        outcome
    }

    /// What it all took, once all have ended.
    pub fn usage(&self) -> Usage {
        let outcomes = self.outcomes.iter().enumerate();
        let ended = outcomes.filter_map(|(index, outcome)| Some((index / self.each, (*outcome)?)));
        let usage = Usage::of(ended);
        match self.read {
            true => Usage { cached: 0, ..usage },
            false => usage,
        }
    }
}

/// How a text went of which the host does not tell it.
fn told(finish: Finish, prompt: u32, generated: u32) -> Outcome {
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

impl Voice {
    fn step(mut self: Box<Self>) -> Step {
        Box::pin(async move {
            let chunk = match self.whole {
                true => Some(self.generation.rest().await?).filter(|rest| !rest.tokens.is_empty()),
                false => self.generation.next().await,
            };
            let Some(chunk) = chunk else {
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

/// A prompt has at least one token, and leaves room for so many more.
pub fn check(prompt: &[Token], model: &Model, room: u32) -> Result<(), Error> {
    let limit = model.info().context;
    let length = length_of(prompt);
    if length == 0 {
        return Err(Error::bad_request(
            "empty-prompt",
            "the prompt has no tokens",
        ));
    }
    let most = limit.saturating_sub(room);
    if length > most {
        let why = match room {
            0 => "",
            _ => " to leave room for an answer",
        };
        return Err(Error::bad_request(
            "context_length_exceeded",
            format!(
                "the prompt has {length} tokens; the model {} holds {limit}, so a prompt may have \
                 {most}{why}",
                model.name(),
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
