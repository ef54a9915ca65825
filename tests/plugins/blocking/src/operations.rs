//! Valid operations.

use crate::bindings::corral::inference::constraints::Grammar;
use crate::bindings::corral::inference::inference::{
    Distribution, DistributionPart, Finish, NextTokenRequest, Options, Outcome, Sequence,
};
use crate::bindings::corral::inference::inference_sync::{self, Generation};
use crate::bindings::corral::inference::models::{Model, ModelInfo};
use crate::bindings::corral::inference::types::Error;

/// Most tokens to generate.
const MAX_TOKENS: u32 = 24;

/// An open model and its metadata.
pub struct OpenModel {
    pub handle: Model,
    pub info: ModelInfo,
}

impl OpenModel {
    pub fn new() -> Result<Self, Error> {
        let model = inference_sync::open_model(None)?;
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

    /// The text of a sequence from a position on, without control tokens.
    fn text(&self, sequence: &Sequence, from: u32) -> Result<String, Error> {
        let bytes = self.handle.detokenize(&sequence.tokens(from), false)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn ends(&self, token: u32) -> bool {
        self.info.end_of_generation.contains(&token)
    }

    fn greedy(&self, sequence: &Sequence) -> Result<String, Error> {
        let from = sequence.length();
        for _ in 0..MAX_TOKENS {
            let token = most_likely(&inference_sync::next(sequence, &request())?)?;
            if self.ends(token) {
                break;
            }
            sequence.append(&[token])?;
        }
        self.text(sequence, from)
    }
}

pub fn request() -> NextTokenRequest<'static> {
    NextTokenRequest {
        part: DistributionPart::Top(1),
        statistics: false,
        matcher: None,
    }
}

fn most_likely(distribution: &Distribution) -> Result<u32, Error> {
    let empty = || Error::Failed("the distribution has no candidates".to_owned());
    Ok(distribution.candidates.first().ok_or_else(empty)?.token)
}

/// Reads all chunks and the outcome, which must be the same twice.
fn read_all(generation: &Generation, sequence: &Sequence) -> Result<(String, Outcome), Error> {
    let (mut text, mut tokens) = (String::new(), Vec::new());
    while let Some(chunk) = generation.read() {
        text += &chunk.text;
        tokens.extend(chunk.tokens);
    }
    let outcome = generation.outcome()?;
    let repeated = generation.outcome()?;
    // Generated tokens are part of the sequence.
    let consistent = outcome.generated_tokens as usize == tokens.len()
        && sequence.tokens(outcome.prompt_tokens) == tokens
        && repeated.generated_tokens == outcome.generated_tokens
        && generation.read().is_none();
    match consistent {
        true => Ok((text, outcome)),
        false => Err(Error::Failed(format!(
            "{tokens:?} of {outcome:?}, {repeated:?}"
        ))),
    }
}

fn run(sequence: &Sequence, options: &Options) -> Result<String, Error> {
    let generation = inference_sync::generate(sequence, options)?;
    Ok(read_all(&generation, sequence)?.0)
}

pub fn generate(prompt: &str) -> Result<String, Error> {
    let model = OpenModel::new()?;
    run(&model.sequence(prompt)?, &Options::new(MAX_TOKENS))
}

/// Generates after the picture or audio in a file, whose bytes the body has in hexadecimal, and `=`.
pub fn see(hex: &str) -> Result<String, Error> {
    let model = OpenModel::new()?;
    let sequence = Sequence::create(&model.handle)?;
    let digits = hex.as_bytes().chunks(2).map(String::from_utf8_lossy);
    let bytes = digits.map(|digits| u8::from_str_radix(&digits, 16).unwrap_or_default());
    let positions = inference_sync::append_image(&sequence, &bytes.collect::<Vec<_>>())?;
    let is_accepted = model.handle.accepts_images() || model.handle.accepts_audio();
    if positions != sequence.length() || !is_accepted {
        return Err(Error::Failed(format!("{positions} positions")));
    }
    sequence.append(&model.handle.tokenize("=", false)?)?;
    model.greedy(&sequence)
}

pub fn outcome(prompt: &str) -> Result<String, Error> {
    let model = OpenModel::new()?;
    let sequence = model.sequence(prompt)?;
    let from = sequence.length();
    let generation = inference_sync::generate(&sequence, &Options::new(MAX_TOKENS))?;
    let outcome = generation.outcome()?;
    if generation.read().is_some() || outcome.finish != Finish::End {
        return Err(Error::Failed(format!("{outcome:?}")));
    }
    model.text(&sequence, from)
}

pub fn rest(prompt: &str) -> Result<String, Error> {
    let model = OpenModel::new()?;
    let sequence = model.sequence(prompt)?;
    let generation = inference_sync::generate(&sequence, &Options::new(MAX_TOKENS))?;
    let first = generation.read().map(|chunk| chunk.text);
    let first = first.unwrap_or_default();
    let rest = generation.collect();
    match (
        generation.collect().tokens.len(),
        generation.outcome()?.finish,
    ) {
        (0, Finish::End) => Ok(first + &rest.text),
        other => Err(Error::Failed(format!("{other:?}"))),
    }
}

/// Drops the sequence before it reads the generation.
pub fn outlived(prompt: &str) -> Result<String, Error> {
    let model = OpenModel::new()?;
    let sequence = model.sequence(prompt)?;
    let generation = inference_sync::generate(&sequence, &Options::new(MAX_TOKENS))?;
    drop(sequence);
    let text = generation.collect().text;
    generation.outcome()?;
    Ok(text)
}

pub fn next(prompt: &str) -> Result<String, Error> {
    let model = OpenModel::new()?;
    model.greedy(&model.sequence(prompt)?)
}

pub fn many(prompts: &str) -> Result<String, Error> {
    let model = OpenModel::new()?;
    let sequences = prompts.lines().map(|prompt| model.sequence(prompt));
    let sequences = sequences.collect::<Result<Vec<_>, _>>()?;
    let from: Vec<_> = sequences.iter().map(Sequence::length).collect();
    let mut open: Vec<_> = sequences.iter().collect();
    for _ in 0..MAX_TOKENS {
        if open.is_empty() {
            break;
        }
        let requests = open.iter().map(|&sequence| (sequence, request()));
        let distributions = inference_sync::next_many(&requests.collect::<Vec<_>>());
        let mut unfinished = Vec::new();
        for (sequence, distribution) in open.into_iter().zip(distributions) {
            let token = most_likely(&distribution?)?;
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

pub fn sampled(body: &str) -> Result<String, Error> {
    let mut lines = body.splitn(3, '\n');
    let mut line = || lines.next().unwrap_or_default();
    let (name, settings, prompt) = (line(), line(), line());
    let model = OpenModel::new()?;
    let options = Options::new(MAX_TOKENS);
    inference_sync::sample_with(&options, name, settings)?;
    run(&model.sequence(prompt)?, &options)
}

pub fn matched(body: &str) -> Result<String, Error> {
    let (regex, prompt) = body.split_once('\n').unwrap_or_default();
    let model = OpenModel::new()?;
    let constraint =
        inference_sync::compile_constraint(&model.handle, &Grammar::Regex(regex.to_owned()))?;
    let options = Options::new(MAX_TOKENS);
    options.constrain(&constraint);
    run(&model.sequence(prompt)?, &options)
}

pub fn embed(texts: &str) -> Result<String, Error> {
    let model = OpenModel::new()?;
    let inputs = texts.split('\n');
    let inputs = inputs.map(|text| model.handle.tokenize(text, false));
    let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
    let vectors = inference_sync::embed(&model.handle, &inputs, None, None)?;
    let line = |vector: &Vec<f32>| {
        let numbers: Vec<_> = vector.iter().map(f32::to_string).collect();
        numbers.join(" ")
    };
    Ok(vectors.iter().map(line).collect::<Vec<_>>().join("\n"))
}

pub fn keep(body: &str) -> Result<String, Error> {
    let (name, prompt) = body.split_once('\n').unwrap_or_default();
    let model = OpenModel::new()?;
    let sequence = model.sequence(prompt)?;
    let length = sequence.length();
    let text = model.greedy(&sequence)?;
    sequence.truncate(length)?;
    inference_sync::save_snapshot(&sequence, name)?;
    Ok(text)
}

pub fn kept(name: &str) -> Result<String, Error> {
    let model = OpenModel::new()?;
    model.greedy(&inference_sync::restore_snapshot(&model.handle, name)?)
}

pub fn forget(name: &str) -> Result<String, Error> {
    let model = OpenModel::new()?;
    inference_sync::delete_snapshot(&model.handle, name)?;
    Ok("ok".to_owned())
}

/// Starts a generation of many seconds.
fn start_endless(sequence: &Sequence) -> Result<Generation, Error> {
    let options = Options::new(16_000);
    options.ignore_eos();
    inference_sync::generate(sequence, &options)
}

pub fn leave(prompt: &str) -> Result<String, Error> {
    let model = OpenModel::new()?;
    let sequence = model.sequence(prompt)?;
    let length = sequence.length();
    let generation = start_endless(&sequence)?;
    let first = generation.read();
    if first.is_none_or(|chunk| chunk.tokens.is_empty()) {
        return Err(Error::Failed("the generation ended at once".to_owned()));
    }
    drop(generation);
    sequence.truncate(length)?;
    model.greedy(&sequence)
}

pub fn endless(prompt: &str) -> Result<String, Error> {
    let model = OpenModel::new()?;
    let sequence = model.sequence(prompt)?;
    Ok(read_all(&start_endless(&sequence)?, &sequence)?.0)
}
