//! The host's loop, with and without a sampling plugin, and the guest's own over the likeliest token.

use serde_json::{Value, json};
use wasip3::clocks::monotonic_clock;

use crate::bindings::corral::inference::constraints::{Constraint, Grammar};
use crate::bindings::corral::inference::inference::{
    Distribution, Finish, Look, Options, Sequence, TokenLogprobs, View, next_many,
};
use crate::bindings::corral::inference::types::Error;
use crate::failed::Failed;
use crate::opened::{Opened, endless, list, most, number, text};

/// What was generated.
#[derive(Default)]
struct Generated {
    text: String,
    tokens: Vec<u32>,
    logprobs: Vec<TokenLogprobs>,
    finish: Option<Finish>,
}

pub async fn generate(asked: &Value, sampler: Option<&str>) -> Result<Value, Failed> {
    let opened = Opened::new().await?;
    let options = options(&opened, asked, sampler).await?;
    let prompt = opened.tokens(text(asked, "prompt"), false)?;
    if asked["sleep"] == true {
        return sleep(&opened, asked, &options, &prompt).await;
    }
    let (mut texts, mut last) = (Vec::new(), Generated::default());
    for _ in 0..number(asked, "times", 1) {
        let sequence = opened.sequence(&prompt)?;
        last = run(&sequence, &options, asked["leave"] == true).await?;
        texts.push(last.text.clone());
    }
    let logprobs = last
        .logprobs
        .iter()
        .map(|one| json!([one.logprob, one.top]));
    Ok(json!({
        "text": last.text,
        "tokens": last.tokens,
        "prompt_tokens": prompt,
        "finish": last.finish.map(named),
        "logprobs": logprobs.collect::<Vec<_>>(),
        "texts": texts,
    }))
}

/// Generates as often as it is asked to, and does not listen.
async fn sleep(
    opened: &Opened,
    asked: &Value,
    options: &Options,
    prompt: &[u32],
) -> Result<Value, Failed> {
    let mut generations = Vec::new();
    for _ in 0..number(asked, "times", 1) {
        let sequence = opened.sequence(prompt)?;
        let generation = sequence.generate(options);
        generations.push((generation.map_err(Failed::at("generate"))?, sequence));
    }
    monotonic_clock::wait_for(365 * 24 * 3600 * 1_000_000_000).await;
    Ok(json!({ "generations": generations.len() }))
}

fn named(finish: Finish) -> &'static str {
    match finish {
        Finish::End => "end",
        Finish::Stop => "stop",
        Finish::Length => "length",
    }
}

/// Generates to the end, or to the first chunk.
async fn run(sequence: &Sequence, options: &Options, leave: bool) -> Result<Generated, Failed> {
    let mut generated = Generated::default();
    let generation = sequence.generate(options);
    let (mut chunks, outcome) = generation.map_err(Failed::at("generate"))?;
    while let Some(chunk) = chunks.next().await {
        generated.text += &chunk.text;
        generated.tokens.extend(chunk.tokens);
        generated.logprobs.extend(chunk.logprobs);
        if leave {
            return Ok(generated);
        }
    }
    let failed = |error| Failed::at("outcome")(error).after(&generated.tokens);
    generated.finish = Some(outcome.await.map_err(failed)?.finish);
    Ok(generated)
}

async fn options(opened: &Opened, asked: &Value, sampler: Option<&str>) -> Result<Options, Failed> {
    let options = Options::new(most(asked));
    let chain = |place: &str| match text(asked, "chain") == place {
        true => options.temperature(0.5).map_err(Failed::at("temperature")),
        false => Ok(()),
    };
    chain("before")?;
    if let Some(name) = sampler {
        let settings = match asked["settings_bytes"].as_u64() {
            Some(bytes) => "x".repeat(bytes as usize),
            None => text(asked, "settings").to_owned(),
        };
        let linked = options.sample_with(name.to_owned(), settings).await;
        linked.map_err(Failed::at("sample-with"))?;
    }
    chain("after")?;
    if endless(asked) {
        options.ignore_end();
    }
    if let Some(seed) = asked["seed"].as_u64() {
        options.seed(seed);
    }
    for stop in list(asked, "stop") {
        let stopped = options.stop(stop.as_str().unwrap_or_default());
        stopped.map_err(Failed::at("stop"))?;
    }
    if let Some(top) = asked["logprobs"].as_u64() {
        options
            .logprobs(top as u8)
            .map_err(Failed::at("logprobs"))?;
    }
    let guesses = number(asked, "speculate", 0) as u8;
    options
        .speculate(guesses)
        .map_err(Failed::at("speculate"))?;
    if let Some(regex) = asked["regex"].as_str() {
        let constraint = Constraint::compile(&opened.model, Grammar::Regex(regex.to_owned())).await;
        options.constrain(&constraint.map_err(Failed::at("compile"))?);
    }
    Ok(options)
}

pub async fn next(asked: &Value) -> Result<Value, Failed> {
    let opened = Opened::new().await?;
    let prompt = opened.tokens(text(asked, "prompt"), false)?;
    let sequence = opened.sequence(&prompt)?;
    let mut tokens = Vec::new();
    while goes_on(&opened, asked, &tokens) {
        let token = likeliest(sequence.next(look()).await)?;
        sequence.append(&[token]).map_err(Failed::at("append"))?;
        tokens.push(token);
    }
    Ok(json!({ "text": opened.text(&tokens)?, "tokens": tokens, "prompt_tokens": prompt }))
}

pub async fn many(asked: &Value) -> Result<Value, Failed> {
    let opened = Opened::new().await?;
    let mut texts = Vec::new();
    for prompt in list(asked, "prompts") {
        let prompt = opened.tokens(prompt.as_str().unwrap_or_default(), false)?;
        texts.push((opened.sequence(&prompt)?, Vec::new()));
    }
    loop {
        let open = texts.iter_mut();
        let mut open: Vec<_> = open
            .filter(|(_, tokens)| goes_on(&opened, asked, tokens))
            .collect();
        if open.is_empty() {
            break;
        }
        let asks = open.iter().map(|(sequence, _)| (sequence, look()));
        let told = next_many(asks.collect()).await;
        for ((sequence, tokens), told) in open.iter_mut().zip(told) {
            let token = likeliest(told)?;
            sequence.append(&[token]).map_err(Failed::at("append"))?;
            tokens.push(token);
        }
    }
    let mut answers = Vec::new();
    for (_, tokens) in texts {
        answers.push(json!({ "text": opened.text(&tokens)?, "tokens": tokens }));
    }
    Ok(json!({ "answers": answers }))
}

fn goes_on(opened: &Opened, asked: &Value, tokens: &[u32]) -> bool {
    let ends = |token| !endless(asked) && opened.info.end_of_generation.contains(token);
    tokens.len() < most(asked) as usize && !tokens.last().is_some_and(ends)
}

fn look() -> Look<'static> {
    Look {
        view: View::Top(1),
        statistics: false,
        matcher: None,
    }
}

fn likeliest(told: Result<Distribution, Error>) -> Result<u32, Failed> {
    let told = told.map_err(Failed::at("next"))?;
    let nothing = || Failed::other("next", "no candidates".to_owned());
    Ok(told.candidates.first().ok_or_else(nothing)?.token)
}
