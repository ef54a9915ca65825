//! What is right.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::bindings::corral::inference::budget;
use crate::bindings::corral::inference::constraints::{Constraint, Grammar, Matcher};
use crate::bindings::corral::inference::inference::{
    Candidate, Distribution, Look, Options, Sequence, View, next_many,
};
use crate::bindings::corral::inference::models::{Model, ModelInfo};
use crate::bindings::corral::inference::types::Error;

/// Tokens that these generate, ends or not; 0 for [`USUAL`] at most, up to an end.
pub static MOST: AtomicU32 = AtomicU32::new(0);
/// See [`MOST`].
const USUAL: u32 = 24;
/// Beams.
const WIDTH: usize = 3;

/// A model, and which tokens end its texts.
pub struct Opened {
    pub model: Model,
    pub info: ModelInfo,
}

impl Opened {
    pub async fn new() -> Result<Self, Error> {
        let model = Model::open(None).await?;
        let info = model.info();
        Ok(Self { model, info })
    }

    pub fn sequence(&self, prompt: &str) -> Result<Sequence, Error> {
        let sequence = Sequence::create(&self.model)?;
        sequence.append(&self.model.tokenize(prompt, false)?)?;
        Ok(sequence)
    }

    fn ends(&self, token: u32) -> bool {
        MOST.load(Ordering::Relaxed) == 0 && self.info.end_of_generation.contains(&token)
    }

    /// What stands in a sequence from a place on, but for an end.
    fn text(&self, sequence: &Sequence, from: u32) -> Result<String, Error> {
        let bytes = self.model.detokenize(&sequence.tokens(from), false)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Goes on by what `pick` finds in each distribution, until the end. Says what was added.
    async fn run(
        &self,
        sequence: &Sequence,
        view: View,
        pick: impl Fn(&Distribution) -> Result<u32, Error>,
    ) -> Result<String, Error> {
        let from = sequence.length();
        for _ in 0..most() {
            let told = sequence.next(look(view.clone())).await?;
            if told.position != sequence.length() {
                return Err(Error::Failed(format!("after {} tokens", told.position)));
            }
            let token = pick(&told)?;
            if self.ends(token) {
                break;
            }
            sequence.append(&[token])?;
        }
        self.text(sequence, from)
    }

    pub async fn greedy(&self, sequence: &Sequence) -> Result<String, Error> {
        self.run(sequence, View::Top(64), |told| likeliest(&told.candidates))
            .await
    }
}

pub fn most() -> u32 {
    match MOST.load(Ordering::Relaxed) {
        0 => USUAL,
        most => most,
    }
}

pub fn look(view: View) -> Look<'static> {
    Look {
        view,
        statistics: false,
        matcher: None,
    }
}

fn nothing() -> Error {
    Error::Failed("a distribution without candidates".to_owned())
}

/// The first of the likeliest.
fn likeliest(candidates: &[Candidate]) -> Result<u32, Error> {
    let better = |best: Candidate, next: &Candidate| {
        if next.logit > best.logit { *next } else { best }
    };
    let (first, rest) = candidates.split_first().ok_or_else(nothing)?;
    Ok(rest.iter().fold(*first, better).token)
}

pub async fn generate(prompt: &str) -> Result<String, Error> {
    let opened = Opened::new().await?;
    let sequence = opened.sequence(prompt)?;
    let options = Options::new(most());
    if MOST.load(Ordering::Relaxed) > 0 {
        options.ignore_end();
    }
    let (mut chunks, outcome) = sequence.generate(&options)?;
    let mut text = String::new();
    while let Some(chunk) = chunks.next().await {
        text += &chunk.text;
    }
    outcome.await?;
    Ok(text)
}

pub async fn next(prompt: &str) -> Result<String, Error> {
    let opened = Opened::new().await?;
    opened.greedy(&opened.sequence(prompt)?).await
}

pub async fn logits(prompt: &str) -> Result<String, Error> {
    let opened = Opened::new().await?;
    let vocabulary = opened.info.vocabulary as usize;
    let pick = |told: &Distribution| {
        if told.logits.len() != vocabulary || !told.candidates.is_empty() {
            return Err(Error::Failed(format!("{} logits", told.logits.len())));
        }
        let all = (0..).zip(&told.logits);
        let all: Vec<_> = all
            .map(|(token, &logit)| Candidate { token, logit })
            .collect();
        likeliest(&all)
    };
    let sequence = opened.sequence(prompt)?;
    opened.run(&sequence, View::Logits, pick).await
}

pub async fn only(prompt: &str) -> Result<String, Error> {
    let opened = Opened::new().await?;
    let mut tokens = opened.model.tokenize("0123456789", false)?;
    tokens.extend(&opened.info.end_of_generation);
    let pick = |told: &Distribution| {
        let told_of = told.candidates.iter().map(|candidate| candidate.token);
        if told_of.ne(tokens.iter().copied()) {
            return Err(Error::Failed("other tokens than were named".to_owned()));
        }
        likeliest(&told.candidates)
    };
    let sequence = opened.sequence(prompt)?;
    opened
        .run(&sequence, View::Only(tokens.clone()), pick)
        .await
}

pub async fn many(prompts: &str) -> Result<String, Error> {
    let opened = Opened::new().await?;
    let sequences = prompts.lines().map(|prompt| opened.sequence(prompt));
    let sequences = sequences.collect::<Result<Vec<_>, _>>()?;
    let from: Vec<_> = sequences.iter().map(Sequence::length).collect();
    let mut open: Vec<_> = sequences.iter().collect();
    for _ in 0..most() {
        if open.is_empty() {
            break;
        }
        let asks = open.iter().map(|&sequence| (sequence, look(View::Top(1))));
        let told = next_many(asks.collect()).await;
        let mut left = Vec::new();
        for (sequence, told) in open.into_iter().zip(told) {
            let token = likeliest(&told?.candidates)?;
            if !opened.ends(token) {
                sequence.append(&[token])?;
                left.push(sequence);
            }
        }
        open = left;
    }
    let texts = sequences.iter().zip(from);
    let texts = texts.map(|(sequence, from)| opened.text(sequence, from));
    Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
}

/// A text in the making and the logarithm of its probability.
struct Beam {
    sequence: Sequence,
    score: f32,
    ended: bool,
}

pub async fn beam(prompt: &str) -> Result<String, Error> {
    let opened = Opened::new().await?;
    let sequence = opened.sequence(prompt)?;
    let from = sequence.length();
    let mut beams = vec![Beam {
        sequence,
        score: 0.0,
        ended: false,
    }];
    for _ in 0..most() {
        let open: Vec<_> = beams.iter().filter(|beam| !beam.ended).collect();
        if open.is_empty() {
            break;
        }
        let ask = |beam: &&Beam| Look {
            statistics: true,
            ..look(View::Top(if beam.ended { 0 } else { WIDTH as u32 }))
        };
        let asks = open.iter().map(|beam| (&beam.sequence, ask(beam)));
        let told = next_many(asks.collect()).await;
        let mut next = Vec::new();
        for (beam, told) in open.iter().zip(told) {
            let told = told?;
            let statistics = told.statistics.ok_or_else(nothing)?;
            for candidate in told.candidates {
                let score = beam.score + candidate.logit - statistics.log_normalizer;
                next.push((score, *beam, candidate.token));
            }
        }
        next.sort_by(|one, other| other.0.total_cmp(&one.0));
        let mut kept = Vec::new();
        for (score, beam, token) in next.into_iter().take(WIDTH) {
            let sequence = beam.sequence.fork()?;
            let ended = opened.ends(token);
            if !ended {
                sequence.append(&[token])?;
            }
            kept.push(Beam {
                sequence,
                score,
                ended,
            });
        }
        kept.extend(beams.into_iter().filter(|beam| beam.ended));
        kept.sort_by(|one, other| other.score.total_cmp(&one.score));
        kept.truncate(WIDTH);
        beams = kept;
    }
    let best = beams.first().ok_or_else(nothing)?;
    opened.text(&best.sequence, from)
}

pub async fn again(body: &str) -> Result<String, Error> {
    let opened = Opened::new().await?;
    let mut lines = body.lines();
    let first = lines.next().unwrap_or_default().replace('|', "\n");
    let sequence = opened.sequence(&first)?;
    let begins = sequence.length();
    let mut answers = Vec::new();
    for line in lines {
        sequence.append(&opened.model.tokenize(line, false)?)?;
        answers.push(opened.greedy(&sequence).await?);
        sequence.truncate(begins)?;
    }
    Ok(answers.join("\n"))
}

pub async fn matched(body: &str) -> Result<String, Error> {
    let opened = Opened::new().await?;
    let (expression, prompt) = body.split_once('\n').unwrap_or_default();
    let grammar = Grammar::Regex(expression.to_owned());
    let constraint = Constraint::compile(&opened.model, grammar).await?;
    let mut matcher = Matcher::start(&constraint)?;
    let sequence = opened.sequence(prompt)?;
    let from = sequence.length();
    for _ in 0..most() {
        if matcher.is_complete() {
            break;
        }
        let forced = matcher.fork()?.forced(most())?;
        let told = sequence
            .next(Look {
                matcher: Some(&matcher),
                ..look(View::Top(1))
            })
            .await?;
        let token = likeliest(&told.candidates)?;
        check_mask(&matcher, token, &forced)?;
        if opened.ends(token) {
            break;
        }
        matcher = matcher.fork()?;
        matcher.accept(token)?;
        sequence.append(&[token])?;
        // What has no choice needs no look.
        sequence.append(&matcher.forced(most())?)?;
    }
    opened.text(&sequence, from)
}

/// All ways to ask a matcher say the same.
fn check_mask(matcher: &Matcher, token: u32, forced: &[u32]) -> Result<(), Error> {
    let mask = matcher.mask()?;
    let bit = |token: u32| {
        let word = mask.get(token as usize / 32).copied().unwrap_or(0);
        word >> (token % 32) & 1 == 1
    };
    let set = (0..mask.len() as u32 * 32).filter(|&token| bit(token));
    let set: Vec<_> = set.collect();
    let right = bit(token)
        && matcher.allows(token)?
        && matcher.allowed(u32::MAX)?.as_ref() == Some(&set)
        && matcher.allowed(set.len() as u32 - 1)?.is_none()
        && forced.first().is_none_or(|first| set == [*first]);
    match right {
        true => Ok(()),
        false => Err(Error::Failed(format!("the mask {set:?}, {forced:?}"))),
    }
}

pub async fn statistics(prompt: &str) -> Result<String, Error> {
    let opened = Opened::new().await?;
    let sequence = opened.sequence(prompt)?;
    let told = sequence
        .next(Look {
            statistics: true,
            ..look(View::Logits)
        })
        .await?;
    let told_of = told.statistics.ok_or_else(nothing)?;
    let sum: f64 = told.logits.iter().map(|&l| f64::from(l).exp()).sum();
    let entropy: f64 = told
        .logits
        .iter()
        .map(|&logit| f64::from(logit) - sum.ln())
        .map(|logprob| -logprob.exp() * logprob)
        .sum();
    let near = |told: f32, right: f64| (f64::from(told) - right).abs() < 1e-3;
    match near(told_of.log_normalizer, sum.ln()) && near(told_of.entropy, entropy) {
        true => Ok("ok".to_owned()),
        false => Err(Error::Failed(format!("{told_of:?}: {sum} {entropy}"))),
    }
}

pub async fn keep(body: &str) -> Result<String, Error> {
    let opened = Opened::new().await?;
    let (name, prompt) = body.split_once('\n').unwrap_or_default();
    let sequence = opened.sequence(prompt)?;
    let text = opened.greedy(&sequence).await?;
    sequence.truncate(sequence.length() - text.chars().count() as u32)?;
    sequence.snapshot(name.to_owned()).await?;
    Ok(text)
}

pub async fn kept(name: &str) -> Result<String, Error> {
    let opened = Opened::new().await?;
    let sequence = Sequence::restore(&opened.model, name.to_owned()).await?;
    opened.greedy(&sequence).await
}

pub async fn forget(name: &str) -> Result<String, Error> {
    let opened = Opened::new().await?;
    Sequence::forget(&opened.model, name.to_owned()).await?;
    Ok("ok".to_owned())
}

pub async fn budget(prompt: &str) -> Result<String, Error> {
    let opened = Opened::new().await?;
    let before = budget::left();
    opened.greedy(&opened.sequence(prompt)?).await?;
    let after = budget::left();
    if after.time >= before.time {
        return Err(Error::Failed("time does not pass".to_owned()));
    }
    Ok(format!("{:?} {:?}", before.tokens, after.tokens))
}

pub async fn leave(prompt: &str) -> Result<String, Error> {
    let opened = Opened::new().await?;
    let sequence = opened.sequence(prompt)?;
    {
        // Polled once, and then dropped before it can be there.
        let mut next = std::pin::pin!(sequence.next(look(View::Top(1))));
        std::future::poll_fn(|context| {
            let _ = next.as_mut().poll(context);
            std::task::Poll::Ready(())
        })
        .await;
    }
    opened.greedy(&sequence).await
}

pub async fn info() -> Result<String, Error> {
    let info = Opened::new().await?.info;
    Ok(format!(
        "{:?} {:?} {:?}",
        info.begin, info.end, info.end_of_generation
    ))
}
