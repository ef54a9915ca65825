//! How likely the tokens of prompts are: a loop over them that the plugin runs itself, since the host's own
//! loop tells of generated tokens alone.
//!
//! A token's logarithm is its logit less the normalizer of the distribution that it comes after. So a prompt
//! takes a step for each of its tokens but the last; prompts that are read side by side share them.

use corral_sdk::{Distribution, Error, Look, Model, Sequence, Token as Number, next_many};

use crate::asking::{Likely, Token, characters};

/// Prompts that are read side by side: some of the ids that the host has, so that others have some too.
const SIDE_BY_SIDE: usize = 32;
/// Of how many of the likeliest tokens the host tells, where any are wanted. A token that is not among them
/// is asked for by its name, for which the token before it is computed again; so they are more than wanted.
const SHOWN: u32 = 128;

/// A prompt, as a text begins with it.
pub struct Echo {
    pub text: String,
    /// Characters of the text.
    pub characters: usize,
    /// Characters of the prompt's first token that the text does not have: of one that the model wants
    /// there.
    unwritten: usize,
    /// Its tokens, if their probabilities are told.
    pub likely: Vec<Likely>,
}

impl Echo {
    pub fn new(text: String, unwritten: usize) -> Self {
        Echo {
            characters: text.chars().count(),
            text,
            unwritten,
            likely: Vec::new(),
        }
    }

    /// With the prompt's tokens.
    pub fn tell(&mut self, mut likely: Vec<Likely>) {
        for one in &mut likely {
            one.offset = one.offset.saturating_sub(self.unwritten);
        }
        self.likely = likely;
    }
}

/// A prompt that was read.
pub struct Scored {
    index: usize,
    pub likely: Vec<Likely>,
    /// To go on with, if it was to be kept.
    pub sequence: Option<Sequence>,
}

/// Reads prompts, of which none is empty, and tells of each token how likely it was after those before it,
/// with so many of the likeliest in its place. Of the first one nothing is known. Sequences that are not to
/// be kept are dropped as soon as they were read, since each lies in somebody's way.
pub async fn read(
    model: &Model,
    prompts: &[Vec<Number>],
    top: u8,
    keep: bool,
) -> Result<Vec<Scored>, Error> {
    let mut waiting = prompts.iter().enumerate();
    let (mut reading, mut read) = (Vec::new(), Vec::new());
    loop {
        while reading.len() < SIDE_BY_SIDE
            && let Some((index, prompt)) = waiting.next()
        {
            reading.push(Reading::begin(model, index, prompt)?);
        }
        let (over, rest): (Vec<_>, Vec<_>) = reading.into_iter().partition(Reading::is_over);
        read.extend(over.into_iter().map(|one| Scored {
            index: one.index,
            likely: one.likely,
            sequence: keep.then_some(one.sequence),
        }));
        reading = rest;
        if reading.is_empty() && waiting.len() == 0 {
            break;
        }
        let asks = reading.iter().map(|one| (&one.sequence, one.look(top)));
        let told = next_many(asks).await;
        for (one, told) in reading.iter_mut().zip(told) {
            one.hear(&told?, top)?;
        }
    }
    read.sort_by_key(|scored| scored.index);
    Ok(read)
}

/// A prompt that is being read.
struct Reading<'a> {
    index: usize,
    prompt: &'a [Number],
    /// As far as it was read.
    sequence: Sequence,
    /// For each token of the sequence.
    likely: Vec<Likely>,
    /// Characters of the sequence.
    characters: usize,
    /// The likeliest tokens in the place of the next one, if it was not among them.
    top: Option<Vec<Token>>,
}

impl<'a> Reading<'a> {
    fn begin(model: &Model, index: usize, prompt: &'a [Number]) -> Result<Self, Error> {
        let mut reading = Reading {
            index,
            prompt,
            sequence: model.empty_sequence()?,
            likely: Vec::with_capacity(prompt.len()),
            characters: 0,
            top: None,
        };
        if let Some(&first) = prompt.first() {
            reading.goes_on(first, None, Vec::new())?;
        }
        Ok(reading)
    }

    fn is_over(&self) -> bool {
        self.likely.len() == self.prompt.len()
    }

    /// The token that comes next.
    fn next(&self) -> Option<Number> {
        self.prompt.get(self.likely.len()).copied()
    }

    /// What to ask for.
    fn look(&self, top: u8) -> Look<'static> {
        let look = match (top, &self.top) {
            (1.., None) => Look::top(SHOWN),
            _ => Look::only(Vec::from_iter(self.next())),
        };
        look.with_statistics()
    }

    fn hear(&mut self, told: &Distribution, top: u8) -> Result<(), Error> {
        let Some(next) = self.next() else {
            return Ok(());
        };
        let statistics = told.statistics.as_ref();
        let all = statistics.map_or(0.0, |statistics| statistics.log_normalizer);
        // Where it is all but certain, rounding may bring it above 0.
        let logprob = |logit: f32| Some((logit - all).min(0.0));
        let mut candidates = told.candidates.iter();
        let own = candidates.find(|candidate| candidate.token == next);
        let asked_by_name = self.top.is_some() || top == 0;
        let likeliest = match self.top.take() {
            Some(likeliest) => likeliest,
            None => {
                let likeliest = told.candidates.iter().take(top.into());
                let model = self.sequence.model();
                likeliest
                    .map(|one| Token::of(model, one.token, logprob(one.logit)))
                    .collect::<Result<_, _>>()?
            }
        };
        match own {
            Some(own) => self.goes_on(next, logprob(own.logit), likeliest),
            None if asked_by_name => self.goes_on(next, Some(f32::NEG_INFINITY), likeliest),
            None => {
                self.top = Some(likeliest);
                Ok(())
            }
        }
    }

    /// Goes on by a token.
    fn goes_on(
        &mut self,
        token: Number,
        logprob: Option<f32>,
        top: Vec<Token>,
    ) -> Result<(), Error> {
        self.sequence.append_tokens(&[token])?;
        let token = Token::of(self.sequence.model(), token, logprob)?;
        let offset = self.characters;
        self.characters += characters(&token.bytes);
        self.likely.push(Likely { token, top, offset });
        Ok(())
    }
}
