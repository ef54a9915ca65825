//! A generation, as far as a script can tell.

use std::rc::Rc;

use super::engine::statistics;
use super::grammar::{Constraint, Matcher};
use super::options::Options;
use super::state::{AnySampler, State};
use crate::raw::inference::{Chunk, Finish, Outcome, TokenLogprobs};
use crate::raw::types::Error;
use crate::role::{Beginning, Told};
use crate::{Candidate, Token};

/// Starts the sampling plugin of this name.
pub(super) fn start(
    script: &State,
    name: &str,
    settings: &str,
    seed: u64,
) -> Result<Box<dyn AnySampler>, Error> {
    let Some(start) = script.samplers.get(name) else {
        let text = format!("there is no sampling plugin {name:?} in the script");
        return Err(Error::NotFound(text));
    };
    let beginning = Beginning {
        settings: settings.to_owned(),
        seed,
        vocabulary: script.info.vocabulary,
    };
    start(beginning).map_err(Error::Invalid)
}

/// A text in the making.
struct Text<'a> {
    options: &'a Options,
    /// What was generated, and how much of it is in chunks.
    bytes: Vec<u8>,
    told: usize,
}

impl Text<'_> {
    /// Where the first stop string begins.
    fn stop(&self) -> Option<usize> {
        let stops = self.options.stops.borrow();
        let found = stops.iter().filter_map(|stop| {
            let mut windows = self.bytes.windows(stop.len());
            windows.position(|window| window == stop.as_bytes())
        });
        found.min()
    }

    /// Text that can be told now: no part of a character, and nothing that may begin a stop string.
    fn ready(&mut self) -> String {
        let mut until = match std::str::from_utf8(&self.bytes[self.told..]) {
            Ok(_) => self.bytes.len(),
            Err(error) if error.error_len().is_none() => self.told + error.valid_up_to(),
            Err(_) => self.bytes.len(),
        };
        for stop in self.options.stops.borrow().iter() {
            let stop = stop.as_bytes();
            let begun = (1..stop.len()).rev();
            let mut begun = begun.filter(|&length| self.bytes.ends_with(&stop[..length]));
            if let Some(length) = begun.next() {
                until = until.min(self.bytes.len() - length);
            }
        }
        self.tell(until)
    }

    fn tell(&mut self, until: usize) -> String {
        let until = until.max(self.told);
        let text = String::from_utf8_lossy(&self.bytes[self.told..until]).into_owned();
        self.told = until;
        text
    }
}

/// All chunks of a generation, and how it ends.
pub(super) fn generate(
    script: &Rc<State>,
    mut tokens: Vec<Token>,
    options: &Options,
) -> Result<(Vec<Chunk>, Result<Outcome, Error>), Error> {
    let prompt = tokens.len();
    script.texts.set(script.texts.get() + 1);
    let seed = options.seed.get().unwrap_or(script.texts.get());
    let sampler = options.sampler.borrow();
    let mut sampler = match &*sampler {
        Some((name, settings)) => Some(start(script, name, settings, seed)?),
        None => None,
    };
    let constraint = options.constraint.borrow().clone();
    let matcher = match constraint {
        Some(texts) => Some(Matcher::start(&Constraint(texts))?),
        None => None,
    };
    let mut since = match &sampler {
        Some(sampler) => {
            let history = sampler.needs().history as usize;
            tokens[prompt.saturating_sub(history)..].to_vec()
        }
        None => Vec::new(),
    };

    let mut text = Text {
        options,
        bytes: Vec::new(),
        told: 0,
    };
    let mut chunks = Vec::new();
    let finish = loop {
        let generated = tokens.len() - prompt;
        if generated as u32 == options.max_tokens || tokens.len() as u32 >= script.info.context {
            break Ok(Finish::Length);
        }
        let row = match script.row(&tokens) {
            Ok(row) => row,
            Err(error) => break Err(error),
        };
        let allows = |token| match &matcher {
            Some(matcher) => matcher.allows(token).unwrap_or(false),
            None => true,
        };
        let shown = State::falling(&row, allows);
        let chosen = match &mut sampler {
            Some(sampler) => choose(
                &mut **sampler,
                &shown,
                &row,
                std::mem::take(&mut since),
                &tokens,
            ),
            None => shown
                .first()
                .map(|best| best.token)
                .ok_or_else(|| Error::Failed("nothing is allowed to come next".to_owned())),
        };
        let token = match chosen {
            Ok(token) => token,
            Err(error) => break Err(error),
        };
        since.push(token);
        tokens.push(token);
        let ends = script.info.end_of_generation.contains(&token);
        if let (Some(matcher), false) = (&matcher, ends) {
            matcher.accept(token)?;
        }
        text.bytes.extend(script.bytes(&[token], false)?);
        let stop = text.stop();
        let done = ends && (!options.ignore_end.get() || matcher.is_some());
        chunks.push(Chunk {
            tokens: vec![token],
            text: match stop {
                Some(at) => text.tell(at),
                None if done => text.tell(text.bytes.len()),
                None => text.ready(),
            },
            logprobs: logprobs(&row, token, options.logprobs.get()),
        });
        if stop.is_some() {
            break Ok(Finish::Stop);
        }
        if done {
            break Ok(Finish::End);
        }
    };
    if let (Ok(Finish::Length), Some(last)) = (&finish, chunks.last_mut()) {
        last.text += &text.tell(text.bytes.len());
    }
    let generated = (tokens.len() - prompt) as u32;
    let outcome = finish.map(|finish| Outcome {
        finish,
        prompt_tokens: prompt as u32,
        cached_tokens: 0,
        generated_tokens: generated,
        queue_time: 0,
        prefill_time: 0,
        decode_time: 0,
    });
    Ok((chunks, outcome))
}

fn choose(
    sampler: &mut dyn AnySampler,
    shown: &[Candidate],
    row: &[f32],
    since: Vec<Token>,
    tokens: &[Token],
) -> Result<Token, Error> {
    let needs = sampler.needs();
    let count = shown.len().min(needs.candidates as usize);
    let chosen = sampler.sample(Told {
        candidates: shown[..count].to_vec(),
        statistics: needs.statistics.then(|| statistics(row)),
        since,
        position: tokens.len() as u32,
    });
    let token = chosen.map_err(Error::Failed)?;
    match shown[..count].iter().any(|one| one.token == token) {
        true => Ok(token),
        false => Err(Error::Failed(format!(
            "the sampling plugin chose token {token}, which is not one of its candidates"
        ))),
    }
}

fn logprobs(row: &[f32], token: Token, top: Option<u8>) -> Vec<TokenLogprobs> {
    let Some(top) = top else {
        return Vec::new();
    };
    let normalizer = statistics(row).log_normalizer;
    let likeliest = State::falling(row, |_| true).into_iter();
    vec![TokenLogprobs {
        logprob: row[token as usize] - normalizer,
        top: likeliest
            .take(top.into())
            .map(|one| (one.token, one.logit - normalizer))
            .collect(),
    }]
}
