//! What is right.

use crate::bindings::corral::inference::blocking::{self, Generation};
use crate::bindings::corral::inference::constraints::Grammar;
use crate::bindings::corral::inference::inference::{
    Distribution, Finish, Look, Options, Outcome, Sequence, View,
};
use crate::bindings::corral::inference::models::{Model, ModelInfo};
use crate::bindings::corral::inference::types::Error;

/// Tokens that these generate at most.
const MOST: u32 = 24;

/// A model, and what is known of it.
pub struct Opened {
    pub model: Model,
    pub info: ModelInfo,
}

impl Opened {
    pub fn new() -> Result<Self, Error> {
        let model = blocking::open(None)?;
        let info = model.info();
        Ok(Self { model, info })
    }

    pub fn sequence(&self, prompt: &str) -> Result<Sequence, Error> {
        let sequence = Sequence::create(&self.model)?;
        sequence.append(&self.model.tokenize(prompt, false)?)?;
        Ok(sequence)
    }

    /// What stands in a sequence from a place on; control tokens say nothing.
    fn text(&self, sequence: &Sequence, from: u32) -> Result<String, Error> {
        let bytes = self.model.detokenize(&sequence.tokens(from), false)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn ends(&self, token: u32) -> bool {
        self.info.end_of_generation.contains(&token)
    }

    fn greedy(&self, sequence: &Sequence) -> Result<String, Error> {
        let from = sequence.length();
        for _ in 0..MOST {
            let token = likeliest(&blocking::next(sequence, &look())?)?;
            if self.ends(token) {
                break;
            }
            sequence.append(&[token])?;
        }
        self.text(sequence, from)
    }
}

pub fn look() -> Look<'static> {
    Look {
        view: View::Top(1),
        statistics: false,
        matcher: None,
    }
}

fn likeliest(told: &Distribution) -> Result<u32, Error> {
    let nothing = || Error::Failed("a distribution without candidates".to_owned());
    Ok(told.candidates.first().ok_or_else(nothing)?.token)
}

/// The text of a generation's chunks, and how it went, which it says twice.
fn all(generation: &Generation, sequence: &Sequence) -> Result<(String, Outcome), Error> {
    let (mut text, mut tokens) = (String::new(), Vec::new());
    while let Some(chunk) = generation.read() {
        text += &chunk.text;
        tokens.extend(chunk.tokens);
    }
    let outcome = generation.outcome()?;
    let again = generation.outcome()?;
    // What was generated is a part of the sequence.
    let right = outcome.generated_tokens as usize == tokens.len()
        && sequence.tokens(outcome.prompt_tokens) == tokens
        && again.generated_tokens == outcome.generated_tokens
        && generation.read().is_none();
    match right {
        true => Ok((text, outcome)),
        false => Err(Error::Failed(format!(
            "{tokens:?} of {outcome:?}, {again:?}"
        ))),
    }
}

fn run(sequence: &Sequence, options: &Options) -> Result<String, Error> {
    let generation = Generation::start(sequence, options)?;
    Ok(all(&generation, sequence)?.0)
}

pub fn generate(prompt: &str) -> Result<String, Error> {
    let opened = Opened::new()?;
    run(&opened.sequence(prompt)?, &Options::new(MOST))
}

pub fn outcome(prompt: &str) -> Result<String, Error> {
    let opened = Opened::new()?;
    let sequence = opened.sequence(prompt)?;
    let from = sequence.length();
    let generation = Generation::start(&sequence, &Options::new(MOST))?;
    let outcome = generation.outcome()?;
    if generation.read().is_some() || outcome.finish != Finish::End {
        return Err(Error::Failed(format!("{outcome:?}")));
    }
    opened.text(&sequence, from)
}

pub fn rest(prompt: &str) -> Result<String, Error> {
    let opened = Opened::new()?;
    let sequence = opened.sequence(prompt)?;
    let generation = Generation::start(&sequence, &Options::new(MOST))?;
    let first = generation
        .read()
        .map(|chunk| chunk.text)
        .unwrap_or_default();
    let rest = generation.rest();
    match (generation.rest().tokens.len(), generation.outcome()?.finish) {
        (0, Finish::End) => Ok(first + &rest.text),
        other => Err(Error::Failed(format!("{other:?}"))),
    }
}

pub fn next(prompt: &str) -> Result<String, Error> {
    let opened = Opened::new()?;
    opened.greedy(&opened.sequence(prompt)?)
}

pub fn many(prompts: &str) -> Result<String, Error> {
    let opened = Opened::new()?;
    let sequences = prompts.lines().map(|prompt| opened.sequence(prompt));
    let sequences = sequences.collect::<Result<Vec<_>, _>>()?;
    let from: Vec<_> = sequences.iter().map(Sequence::length).collect();
    let mut open: Vec<_> = sequences.iter().collect();
    for _ in 0..MOST {
        if open.is_empty() {
            break;
        }
        let asks = open.iter().map(|&sequence| (sequence, look()));
        let told = blocking::next_many(&asks.collect::<Vec<_>>());
        let mut left = Vec::new();
        for (sequence, told) in open.into_iter().zip(told) {
            let token = likeliest(&told?)?;
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

pub fn sampled(body: &str) -> Result<String, Error> {
    let mut lines = body.splitn(3, '\n');
    let mut line = || lines.next().unwrap_or_default();
    let (name, settings, prompt) = (line(), line(), line());
    let opened = Opened::new()?;
    let options = Options::new(MOST);
    blocking::sample_with(&options, name, settings)?;
    run(&opened.sequence(prompt)?, &options)
}

pub fn matched(body: &str) -> Result<String, Error> {
    let (regex, prompt) = body.split_once('\n').unwrap_or_default();
    let opened = Opened::new()?;
    let constraint = blocking::compile(&opened.model, &Grammar::Regex(regex.to_owned()))?;
    let options = Options::new(MOST);
    options.constrain(&constraint);
    run(&opened.sequence(prompt)?, &options)
}

pub fn embed(texts: &str) -> Result<String, Error> {
    let opened = Opened::new()?;
    let inputs = texts.split('\n');
    let inputs = inputs.map(|text| opened.model.tokenize(text, false));
    let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
    let vectors = blocking::embed(&opened.model, &inputs, None, None)?;
    let line = |vector: &Vec<f32>| {
        let numbers: Vec<_> = vector.iter().map(f32::to_string).collect();
        numbers.join(" ")
    };
    Ok(vectors.iter().map(line).collect::<Vec<_>>().join("\n"))
}

pub fn keep(body: &str) -> Result<String, Error> {
    let (name, prompt) = body.split_once('\n').unwrap_or_default();
    let opened = Opened::new()?;
    let sequence = opened.sequence(prompt)?;
    let length = sequence.length();
    let text = opened.greedy(&sequence)?;
    sequence.truncate(length)?;
    blocking::snapshot(&sequence, name)?;
    Ok(text)
}

pub fn kept(name: &str) -> Result<String, Error> {
    let opened = Opened::new()?;
    opened.greedy(&blocking::restore(&opened.model, name)?)
}

pub fn forget(name: &str) -> Result<String, Error> {
    let opened = Opened::new()?;
    blocking::forget(&opened.model, name)?;
    Ok("ok".to_owned())
}

/// Begins what would go on for many seconds.
fn begin(sequence: &Sequence) -> Result<Generation, Error> {
    let options = Options::new(16_000);
    options.ignore_end();
    Generation::start(sequence, &options)
}

pub fn leave(prompt: &str) -> Result<String, Error> {
    let opened = Opened::new()?;
    let sequence = opened.sequence(prompt)?;
    let length = sequence.length();
    let generation = begin(&sequence)?;
    let first = generation.read();
    if first.is_none_or(|chunk| chunk.tokens.is_empty()) {
        return Err(Error::Failed("it ended at once".to_owned()));
    }
    drop(generation);
    sequence.truncate(length)?;
    opened.greedy(&sequence)
}

pub fn endless(prompt: &str) -> Result<String, Error> {
    let opened = Opened::new()?;
    let sequence = opened.sequence(prompt)?;
    Ok(all(&begin(&sequence)?, &sequence)?.0)
}
