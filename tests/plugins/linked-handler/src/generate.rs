//! The host's loop, with and without a sampling plugin.

use serde_json::{Value, json};
use wasip3::clocks::monotonic_clock;

use crate::bindings::corral::inference::constraints::Grammar;
use crate::bindings::corral::inference::inference::{Finish, Options, Sequence, TokenLogprobs};
use crate::bindings::corral::inference::inference_async;
use crate::error::GuestError;
use crate::model::{OpenModel, ignores_end, list, max_tokens, number, text};

/// The result of a generation.
#[derive(Default)]
struct Generated {
    text: String,
    tokens: Vec<u32>,
    logprobs: Vec<TokenLogprobs>,
    finish: Option<Finish>,
}

pub async fn generate(request: &Value, sampler: Option<&str>) -> Result<Value, GuestError> {
    let model = OpenModel::new().await?;
    let options = options(&model, request, sampler).await?;
    let prompt = model.tokens(text(request, "prompt"), false)?;
    if request["sleep"] == true {
        return sleep(&model, request, &options, &prompt).await;
    }
    let (mut texts, mut last) = (Vec::new(), Generated::default());
    for _ in 0..number(request, "times", 1) {
        let sequence = model.sequence(&prompt)?;
        last = run(&sequence, &options, request["leave"] == true).await?;
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
        "finish": last.finish.map(finish_name),
        "logprobs": logprobs.collect::<Vec<_>>(),
        "texts": texts,
    }))
}

/// Starts all generations and never reads them.
async fn sleep(
    model: &OpenModel,
    request: &Value,
    options: &Options,
    prompt: &[u32],
) -> Result<Value, GuestError> {
    let mut generations = Vec::new();
    for _ in 0..number(request, "times", 1) {
        let sequence = model.sequence(prompt)?;
        let generation = inference_async::generate(&sequence, options);
        generations.push((generation.map_err(GuestError::at("generate"))?, sequence));
    }
    monotonic_clock::wait_for(365 * 24 * 3600 * 1_000_000_000).await;
    Ok(json!({ "generations": generations.len() }))
}

fn finish_name(finish: Finish) -> &'static str {
    match finish {
        Finish::End => "end",
        Finish::Stop => "stop",
        Finish::Length => "length",
    }
}

/// Generates to the end, or to the first chunk with `leave`.
async fn run(sequence: &Sequence, options: &Options, leave: bool) -> Result<Generated, GuestError> {
    let mut generated = Generated::default();
    let generation = inference_async::generate(sequence, options);
    let (mut chunks, outcome) = generation.map_err(GuestError::at("generate"))?;
    while let Some(chunk) = chunks.next().await {
        generated.text += &chunk.text;
        generated.tokens.extend(chunk.tokens);
        generated.logprobs.extend(chunk.logprobs);
        if leave {
            return Ok(generated);
        }
    }
    let failed = |error| GuestError::at("outcome")(error).after(&generated.tokens);
    generated.finish = Some(outcome.await.map_err(failed)?.finish);
    Ok(generated)
}

async fn options(
    model: &OpenModel,
    request: &Value,
    sampler: Option<&str>,
) -> Result<Options, GuestError> {
    let options = Options::new(max_tokens(request));
    let chain = |position: &str| match text(request, "chain") == position {
        true => options
            .temperature(0.5)
            .map_err(GuestError::at("temperature")),
        false => Ok(()),
    };
    chain("before")?;
    if let Some(name) = sampler {
        let settings = match request["settings_bytes"].as_u64() {
            Some(bytes) => "x".repeat(bytes as usize),
            None => text(request, "settings").to_owned(),
        };
        let linked = inference_async::sample_with(&options, name.to_owned(), settings).await;
        linked.map_err(GuestError::at("sample-with"))?;
    }
    chain("after")?;
    if ignores_end(request) {
        options.ignore_eos();
    }
    if let Some(seed) = request["seed"].as_u64() {
        options.seed(seed);
    }
    for stop in list(request, "stop") {
        let stopped = options.stop(stop.as_str().unwrap_or_default());
        stopped.map_err(GuestError::at("stop"))?;
    }
    if let Some(top) = request["logprobs"].as_u64() {
        options
            .logprobs(top as u8)
            .map_err(GuestError::at("logprobs"))?;
    }
    let draft_tokens = number(request, "speculate", 0) as u8;
    options
        .speculate(draft_tokens)
        .map_err(GuestError::at("speculate"))?;
    if let Some(regex) = request["regex"].as_str() {
        let constraint =
            inference_async::compile_constraint(&model.handle, Grammar::Regex(regex.to_owned()))
                .await;
        options.constrain(&constraint.map_err(GuestError::at("compile"))?);
    }
    Ok(options)
}
