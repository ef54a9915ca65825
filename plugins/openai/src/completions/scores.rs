//! How likely the tokens of prompts are: a loop over them that the plugin runs itself, since the host's own
//! loop tells of generated tokens alone.
//!
//! A token's logarithm is its logit less the normalizer of the distribution that it comes after. So a prompt
//! takes a step for each of its tokens but the last; prompts that are read side by side share them.

use corral_sdk::{Distribution, Error, Look, Model, Sequence, Token as Number, next_many};

use crate::asking::{Likely, Token, characters};

/// Prompts that are read side by side: some of the ids that the host has, so that others have some too. They
/// are of together no more tokens than the model's context, so that they don't push each other out of memory.
const SIDE_BY_SIDE: usize = 16;
/// Of how many of the likeliest tokens the host tells, where any are wanted. A token that is not among them
/// is asked for by its name, for which the token before it is computed again; so they are more than wanted.
const SHOWN: u32 = 128;
/// The same of a model that can't fork, which computes all tokens again: as many as there are to be had.
const SHOWN_AT_ONCE: u32 = 4096;
/// Tokens that a request may be told of, those in their places included: all of them stay in memory until
/// they are written.
const TOLD_LIMIT: usize = 600_000;

/// A prompt, as a text begins with it.
pub struct Echo {
    pub text: String,
    /// Characters of the text.
    pub characters: usize,
    /// Its tokens, if their probabilities are told.
    pub likely: Vec<Likely>,
}

impl Echo {
    pub fn new(text: String) -> Self {
        Echo {
            characters: text.chars().count(),
            text,
            likely: Vec::new(),
        }
    }

    /// With the prompt's tokens. They may have characters at the beginning that the text has not: of a
    /// token that the model wants there, or of a space that it puts before a text.
    pub fn tell(&mut self, mut likely: Vec<Likely>) {
        let end = likely
            .last()
            .map_or(0, |last| last.offset + characters(&last.token.bytes));
        let unwritten = end.saturating_sub(self.characters);
        for one in &mut likely {
            one.offset = one.offset.saturating_sub(unwritten);
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

/// Whether prompts can be told, with so many of the likeliest tokens in each place.
pub fn check(prompts: &[Vec<Number>], top: u8) -> Result<(), Error> {
    let tokens: usize = prompts.iter().map(Vec::len).sum();
    let most = TOLD_LIMIT / (usize::from(top) + 1);
    if tokens <= most {
        return Ok(());
    }
    let text = format!(
        "the prompts have {tokens} tokens; with `echo` and `logprobs` of {top} those of a request may have {most} \
         together, so ask for fewer at a time"
    );
    Err(Error::bad_request("out-of-range", text))
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
    let context = model.info().context as usize;
    let mut waiting = prompts.iter().enumerate().peekable();
    let (mut reading, mut read) = (Vec::<Reading>::new(), Vec::new());
    loop {
        let (over, rest): (Vec<_>, Vec<_>) = reading.into_iter().partition(Reading::is_over);
        read.extend(over.into_iter().map(|one| Scored {
            index: one.index,
            likely: one.likely,
            sequence: keep.then_some(one.sequence),
        }));
        reading = rest;
        let mut tokens: usize = reading.iter().map(|one| one.prompt.len()).sum();
        while reading.len() < SIDE_BY_SIDE
            && let Some((index, prompt)) = waiting
                .next_if(|(_, prompt)| reading.is_empty() || tokens + prompt.len() <= context)
        {
            tokens += prompt.len();
            reading.push(Reading::begin(model, index, prompt)?);
        }
        if reading.is_empty() {
            break;
        }
        // One of a single token is over as soon as it begins.
        let asks = reading.iter().filter(|one| !one.is_over());
        let told = next_many(asks.map(|one| (&one.sequence, one.look(top)))).await;
        let asked = reading.iter_mut().filter(|one| !one.is_over());
        for (one, told) in asked.zip(told) {
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
            (1.., None) if self.sequence.model().info().can_fork => Look::top(SHOWN),
            (1.., None) => Look::top(SHOWN_AT_ONCE),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_those_of_the_text_whatever_comes_before_it() {
        for (text, tokens, expected) in [
            ("ab c", &["ab", " c"][..], &[0, 2][..]),
            // What SentencePiece makes of it: a token that begins a text, and a space before it.
            ("ab c", &["<s>", " ab", " c"], &[0, 0, 2]),
            ("\u{e9}b", &[" \u{e9}", "b"], &[0, 1]),
            ("", &["<s>"], &[0]),
            ("", &[], &[]),
        ] {
            let mut offset = 0;
            let likely = tokens.iter().map(|token| {
                let bytes = token.as_bytes().to_vec();
                let before = offset;
                offset += characters(&bytes);
                let (logprob, top) = (None, Vec::new());
                Likely {
                    token: Token { bytes, logprob },
                    top,
                    offset: before,
                }
            });
            let likely = likely.collect();
            let mut echo = Echo::new(text.to_owned());
            echo.tell(likely);
            let offsets: Vec<_> = echo.likely.iter().map(|one| one.offset).collect();
            assert_eq!(offsets, expected, "{text:?} as {tokens:?}");
        }
    }

    #[test]
    fn what_would_not_fit_into_memory_is_refused() {
        for (top, most) in [(0, 600_000), (1, 300_000), (20, 28_571)] {
            let mut prompts = [vec![0; most - 1], vec![0]];
            assert_eq!(check(&prompts, top), Ok(()));
            prompts[1].push(0);
            let error = check(&prompts, top).unwrap_err();
            assert_eq!((error.status(), error.code()), (400, "out-of-range"));
            let expected = format!("may have {most} together");
            assert!(error.to_string().contains(&expected), "{error}");
        }
    }
}
