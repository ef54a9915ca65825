//! Valid operations.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::bindings::corral::inference::budget;
use crate::bindings::corral::inference::constraints::{Grammar, Matcher};
use crate::bindings::corral::inference::inference::{
    Candidate, Distribution, DistributionPart, NextTokenRequest, Options, Sequence,
};
use crate::bindings::corral::inference::inference_async::{self, next, next_many, open_model};
use crate::bindings::corral::inference::models::{Model, ModelInfo};
use crate::bindings::corral::inference::types::Error;

/// Number of tokens to generate, ignoring end tokens; 0 for at most [`DEFAULT_TOKENS`] up to an end
/// token.
pub static TOKENS: AtomicU32 = AtomicU32::new(0);
/// See [`TOKENS`].
const DEFAULT_TOKENS: u32 = 24;
/// Number of beams.
const WIDTH: usize = 3;

/// An open model and its metadata.
pub struct OpenModel {
    pub handle: Model,
    pub info: ModelInfo,
}

impl OpenModel {
    pub async fn new() -> Result<Self, Error> {
        let model = open_model(None).await?;
        let info = model.info();
        Ok(Self {
            handle: model,
            info,
        })
    }

    pub fn sequence(&self, prompt: &str) -> Result<Sequence, Error> {
        let sequence = Sequence::create(&self.handle)?;
        sequence.append(&self.handle.tokenize(prompt, false)?)?;
        Ok(sequence)
    }

    fn ends(&self, token: u32) -> bool {
        TOKENS.load(Ordering::Relaxed) == 0 && self.info.end_of_generation.contains(&token)
    }

    /// The text of a sequence from a position on.
    fn text(&self, sequence: &Sequence, from: u32) -> Result<String, Error> {
        let bytes = self.handle.detokenize(&sequence.tokens(from), false)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Appends the token that `pick` chooses from each distribution until the end. Returns the new
    /// text.
    async fn run(
        &self,
        sequence: &Sequence,
        part: DistributionPart,
        pick: impl Fn(&Distribution) -> Result<u32, Error>,
    ) -> Result<String, Error> {
        let from = sequence.length();
        for _ in 0..max_tokens() {
            let distribution = next(sequence, request(part.clone())).await?;
            if distribution.position != sequence.length() {
                return Err(Error::Failed(format!(
                    "after {} tokens",
                    distribution.position
                )));
            }
            let token = pick(&distribution)?;
            if self.ends(token) {
                break;
            }
            sequence.append(&[token])?;
        }
        self.text(sequence, from)
    }

    pub async fn greedy(&self, sequence: &Sequence) -> Result<String, Error> {
        self.run(sequence, DistributionPart::Top(64), |distribution| {
            most_likely(&distribution.candidates)
        })
        .await
    }
}

pub fn max_tokens() -> u32 {
    match TOKENS.load(Ordering::Relaxed) {
        0 => DEFAULT_TOKENS,
        count => count,
    }
}

pub fn request(part: DistributionPart) -> NextTokenRequest<'static> {
    NextTokenRequest {
        part,
        statistics: false,
        matcher: None,
    }
}

fn empty_distribution() -> Error {
    Error::Failed("the distribution has no candidates".to_owned())
}

/// The first of the most likely candidates.
fn most_likely(candidates: &[Candidate]) -> Result<u32, Error> {
    let better = |best: Candidate, next: &Candidate| {
        if next.logit > best.logit { *next } else { best }
    };
    let (first, rest) = candidates.split_first().ok_or_else(empty_distribution)?;
    Ok(rest.iter().fold(*first, better).token)
}

pub async fn generate(prompt: &str) -> Result<String, Error> {
    let model = OpenModel::new().await?;
    let sequence = model.sequence(prompt)?;
    let options = Options::new(max_tokens());
    if TOKENS.load(Ordering::Relaxed) > 0 {
        options.ignore_eos();
    }
    let (mut chunks, outcome) = inference_async::generate(&sequence, &options)?;
    let mut text = String::new();
    while let Some(chunk) = chunks.next().await {
        text += &chunk.text;
    }
    outcome.await?;
    Ok(text)
}

pub async fn next_loop(prompt: &str) -> Result<String, Error> {
    let model = OpenModel::new().await?;
    model.greedy(&model.sequence(prompt)?).await
}

pub async fn logits(prompt: &str) -> Result<String, Error> {
    let model = OpenModel::new().await?;
    let vocabulary = model.info.vocabulary as usize;
    let pick = |distribution: &Distribution| {
        if distribution.logits.len() != vocabulary || !distribution.candidates.is_empty() {
            return Err(Error::Failed(format!(
                "{} logits",
                distribution.logits.len()
            )));
        }
        let all = (0..).zip(&distribution.logits);
        let all = all.map(|(token, &logit)| Candidate { token, logit });
        let all: Vec<_> = all.collect();
        most_likely(&all)
    };
    let sequence = model.sequence(prompt)?;
    model.run(&sequence, DistributionPart::Logits, pick).await
}

pub async fn only(prompt: &str) -> Result<String, Error> {
    let model = OpenModel::new().await?;
    let mut tokens = model.handle.tokenize("0123456789", false)?;
    tokens.extend(&model.info.end_of_generation);
    let pick = |distribution: &Distribution| {
        let tokens_returned = distribution
            .candidates
            .iter()
            .map(|candidate| candidate.token);
        if tokens_returned.ne(tokens.iter().copied()) {
            return Err(Error::Failed("other tokens than requested".to_owned()));
        }
        most_likely(&distribution.candidates)
    };
    let sequence = model.sequence(prompt)?;
    model
        .run(&sequence, DistributionPart::Only(tokens.clone()), pick)
        .await
}

pub async fn many(prompts: &str) -> Result<String, Error> {
    let model = OpenModel::new().await?;
    let sequences = prompts.lines().map(|prompt| model.sequence(prompt));
    let sequences = sequences.collect::<Result<Vec<_>, _>>()?;
    let from: Vec<_> = sequences.iter().map(Sequence::length).collect();
    let mut open: Vec<_> = sequences.iter().collect();
    for _ in 0..max_tokens() {
        if open.is_empty() {
            break;
        }
        let requests = open
            .iter()
            .map(|&sequence| (sequence, request(DistributionPart::Top(1))));
        let distributions = next_many(requests.collect()).await;
        let mut unfinished = Vec::new();
        for (sequence, distribution) in open.into_iter().zip(distributions) {
            let token = most_likely(&distribution?.candidates)?;
            if !model.ends(token) {
                sequence.append(&[token])?;
                unfinished.push(sequence);
            }
        }
        open = unfinished;
    }
    let texts = sequences.iter().zip(from);
    let texts = texts.map(|(sequence, from)| model.text(sequence, from));
    Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
}

/// A sequence and its log probability.
struct Beam {
    sequence: Sequence,
    score: f32,
    ended: bool,
}

pub async fn beam(prompt: &str) -> Result<String, Error> {
    let model = OpenModel::new().await?;
    let sequence = model.sequence(prompt)?;
    let from = sequence.length();
    let mut beams = vec![Beam {
        sequence,
        score: 0.0,
        ended: false,
    }];
    for _ in 0..max_tokens() {
        let open: Vec<_> = beams.iter().filter(|beam| !beam.ended).collect();
        if open.is_empty() {
            break;
        }
        let beam_request = |beam: &&Beam| NextTokenRequest {
            statistics: true,
            ..request(DistributionPart::Top(if beam.ended {
                0
            } else {
                WIDTH as u32
            }))
        };
        let requests = open.iter().map(|beam| (&beam.sequence, beam_request(beam)));
        let distributions = next_many(requests.collect()).await;
        let mut candidates = Vec::new();
        for (beam, distribution) in open.iter().zip(distributions) {
            let distribution = distribution?;
            let statistics = distribution.statistics.ok_or_else(empty_distribution)?;
            for candidate in distribution.candidates {
                let score = beam.score + candidate.logit - statistics.log_normalizer;
                candidates.push((score, *beam, candidate.token));
            }
        }
        candidates.sort_by(|one, other| other.0.total_cmp(&one.0));
        let mut kept = Vec::new();
        for (score, beam, token) in candidates.into_iter().take(WIDTH) {
            let sequence = beam.sequence.fork()?;
            let ended = model.ends(token);
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
    let best = beams.first().ok_or_else(empty_distribution)?;
    model.text(&best.sequence, from)
}

pub async fn again(body: &str) -> Result<String, Error> {
    let model = OpenModel::new().await?;
    let mut lines = body.lines();
    let first = lines.next().unwrap_or_default().replace('|', "\n");
    let sequence = model.sequence(&first)?;
    let start = sequence.length();
    let mut answers = Vec::new();
    for line in lines {
        sequence.append(&model.handle.tokenize(line, false)?)?;
        answers.push(model.greedy(&sequence).await?);
        sequence.truncate(start)?;
    }
    Ok(answers.join("\n"))
}

pub async fn matched(body: &str) -> Result<String, Error> {
    let model = OpenModel::new().await?;
    let (expression, prompt) = body.split_once('\n').unwrap_or_default();
    let grammar = Grammar::Regex(expression.to_owned());
    let constraint = inference_async::compile_constraint(&model.handle, grammar).await?;
    let mut matcher = Matcher::start(&constraint)?;
    let sequence = model.sequence(prompt)?;
    let from = sequence.length();
    for _ in 0..max_tokens() {
        if matcher.is_complete() {
            break;
        }
        let forced = matcher.fork()?.forced(max_tokens())?;
        let distribution = next(
            &sequence,
            NextTokenRequest {
                matcher: Some(&matcher),
                ..request(DistributionPart::Top(1))
            },
        )
        .await?;
        let token = most_likely(&distribution.candidates)?;
        check_mask(&matcher, token, &forced)?;
        if model.ends(token) {
            break;
        }
        matcher = matcher.fork()?;
        matcher.accept(token)?;
        sequence.append(&[token])?;
        // Forced tokens need no next-token request.
        sequence.append(&matcher.forced(max_tokens())?)?;
    }
    model.text(&sequence, from)
}

/// Checks that all functions of a matcher agree.
fn check_mask(matcher: &Matcher, token: u32, forced: &[u32]) -> Result<(), Error> {
    let mask = matcher.mask()?;
    let bit = |token: u32| {
        let word = mask.get(token as usize / 32).copied().unwrap_or(0);
        word >> (token % 32) & 1 == 1
    };
    let set = (0..mask.len() as u32 * 32).filter(|&token| bit(token));
    let set: Vec<_> = set.collect();
    let consistent = bit(token)
        && matcher.allows(token)?
        && matcher.allowed(u32::MAX)?.as_ref() == Some(&set)
        && matcher.allowed(set.len() as u32 - 1)?.is_none()
        && forced.first().is_none_or(|first| set == [*first]);
    match consistent {
        true => Ok(()),
        false => Err(Error::Failed(format!("the mask {set:?}, {forced:?}"))),
    }
}

pub async fn statistics(prompt: &str) -> Result<String, Error> {
    let model = OpenModel::new().await?;
    let sequence = model.sequence(prompt)?;
    let distribution = next(
        &sequence,
        NextTokenRequest {
            statistics: true,
            ..request(DistributionPart::Logits)
        },
    )
    .await?;
    let statistics = distribution.statistics.ok_or_else(empty_distribution)?;
    let sum: f64 = distribution
        .logits
        .iter()
        .map(|&l| f64::from(l).exp())
        .sum();
    let entropy: f64 = distribution
        .logits
        .iter()
        .map(|&logit| f64::from(logit) - sum.ln())
        .map(|logprob| -logprob.exp() * logprob)
        .sum();
    let near = |actual: f32, expected: f64| (f64::from(actual) - expected).abs() < 1e-3;
    match near(statistics.log_normalizer, sum.ln()) && near(statistics.entropy, entropy) {
        true => Ok("ok".to_owned()),
        false => Err(Error::Failed(format!("{statistics:?}: {sum} {entropy}"))),
    }
}

pub async fn keep(body: &str) -> Result<String, Error> {
    let model = OpenModel::new().await?;
    let (name, prompt) = body.split_once('\n').unwrap_or_default();
    let sequence = model.sequence(prompt)?;
    let text = model.greedy(&sequence).await?;
    sequence.truncate(sequence.length() - text.chars().count() as u32)?;
    inference_async::save_snapshot(&sequence, name.to_owned()).await?;
    Ok(text)
}

pub async fn kept(name: &str) -> Result<String, Error> {
    let model = OpenModel::new().await?;
    let sequence = inference_async::restore_snapshot(&model.handle, name.to_owned()).await?;
    model.greedy(&sequence).await
}

pub async fn forget(name: &str) -> Result<String, Error> {
    let model = OpenModel::new().await?;
    inference_async::delete_snapshot(&model.handle, name.to_owned()).await?;
    Ok("ok".to_owned())
}

pub async fn budget(prompt: &str) -> Result<String, Error> {
    let model = OpenModel::new().await?;
    let before = budget::remaining();
    model.greedy(&model.sequence(prompt)?).await?;
    let after = budget::remaining();
    if after.time >= before.time {
        return Err(Error::Failed("time does not pass".to_owned()));
    }
    Ok(format!("{:?} {:?}", before.tokens, after.tokens))
}

pub async fn leave(prompt: &str) -> Result<String, Error> {
    let model = OpenModel::new().await?;
    let sequence = model.sequence(prompt)?;
    {
        // Polled once and dropped before it can be ready.
        let mut call = std::pin::pin!(next(&sequence, request(DistributionPart::Top(1))));
        std::future::poll_fn(|context| {
            let _ = call.as_mut().poll(context);
            std::task::Poll::Ready(())
        })
        .await;
    }
    model.greedy(&sequence).await
}

pub async fn info() -> Result<String, Error> {
    let info = OpenModel::new().await?.info;
    Ok(format!(
        "{:?} {:?} {:?}",
        info.bos, info.eos, info.end_of_generation
    ))
}
