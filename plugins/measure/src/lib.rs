//! Workloads of `corral-bench plugin-overhead` and `corral-bench stages`: generates tokens, or calls the host, `count`
//! times. The last segment of the path selects the workload, the body is the prompt, and `?count=N` sets
//! the count. The response is the number of repetitions done.
//!
//! | segment | repeated operation |
//! |---|---|
//! | `generate` | one token of `generate`, greedy |
//! | `sampler` | the same, with the linked sampling plugin `sampler` |
//! | `top` | one token of the plugin's own loop over the 64 most likely |
//! | `logits` | the same over all logits, of which it reads one |
//! | `none` | nothing |
//! | `table` | a look-up in a table that each instance computes, or its initialization |
//! | `call` | the host call `sequence.length` |
//!
//! `measure.py`, `measure.js`, `measure.c` and `measure.go` are `none` and `top` in other languages, for
//! `corral-bench languages`.

use corral_sdk::{
    Error, GenerateOptions, Model, NextTokenRequest, Request, Response, Sequence, Token,
};
use std::collections::BTreeMap;
use std::sync::LazyLock;

corral_sdk::handler!(measure);
corral_sdk::initialize!(initialize);

/// Candidates per token of `top`.
const TOP: u32 = 64;
/// Entries of the table of `table`.
const ENTRIES: u32 = 20_000;

/// The table: its keys are the numbers as text.
static TABLE: LazyLock<BTreeMap<String, u32>> =
    LazyLock::new(|| (0..ENTRIES).map(|n| (n.to_string(), n)).collect());

fn initialize() -> Result<(), String> {
    LazyLock::force(&TABLE);
    Ok(())
}

async fn measure(mut request: Request) -> Result<Response, Error> {
    let count = request.query_parameter("count");
    let count = count.and_then(|count| count.parse().ok());
    let count: u32 = count.ok_or_else(|| {
        Error::Invalid("the query has no valid count; expected ?count=N".to_owned())
    })?;
    let path = request.path().to_owned();
    let prompt = request.text().await?;
    let workload = path.rsplit('/').next().unwrap_or_default();
    let done = match workload {
        "none" => count,
        "table" => {
            let keys = (0..count).map(|n| n.to_string());
            let found = keys.filter_map(|key| TABLE.get(&key)).count();
            u32::try_from(found).unwrap_or(u32::MAX)
        }
        _ => {
            let sequence = Model::open_default().await?.sequence()?;
            sequence.append(&prompt)?;
            run(workload, &sequence, count).await?
        }
    };
    Ok(Response::text(done.to_string()))
}

async fn run(workload: &str, sequence: &Sequence, count: u32) -> Result<u32, Error> {
    let from = sequence.len();
    match workload {
        "generate" => generate(sequence, GenerateOptions::new(count)).await,
        "sampler" => {
            let settings = r#"{"temperature":0}"#;
            let options = GenerateOptions::new(count).sample_with("sampler", settings);
            generate(sequence, options.await?).await
        }
        "top" => {
            for _ in 0..count {
                let next = sequence.next(NextTokenRequest::top(TOP)).await?;
                let first = next.candidates.first().map(|candidate| candidate.token);
                sequence.append_tokens(&[first.ok_or_else(empty_distribution)?])?;
            }
            Ok(sequence.len() - from)
        }
        "logits" => {
            for index in 0..count {
                let next = sequence.next(NextTokenRequest::logits()).await?;
                // Sampling in the guest is not measured.
                let index = index as usize % next.logits.len().max(1);
                let logit = next.logits.get(index).ok_or_else(empty_distribution)?;
                sequence.append_tokens(&[Token::from(logit.is_nan()) + 16])?;
            }
            Ok(sequence.len() - from)
        }
        "call" => {
            let calls = (0..count).filter(|_| sequence.len() == from);
            Ok(u32::try_from(calls.count()).unwrap_or(u32::MAX))
        }
        other => Err(Error::Invalid(format!("there is no workload {other:?}"))),
    }
}

async fn generate(sequence: &Sequence, options: GenerateOptions) -> Result<u32, Error> {
    let mut generation = sequence.generate(&options.ignore_eos())?;
    let mut done = 0;
    while let Some(chunk) = generation.next().await {
        done += u32::try_from(chunk.tokens.len()).unwrap_or(u32::MAX);
    }
    generation.outcome().await?;
    Ok(done)
}

fn empty_distribution() -> Error {
    Error::Failed("the distribution has no candidates".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::Script;

    #[test]
    fn every_workload_repeats_count_times() {
        let workloads = [
            ("generate", "4"),
            ("top", "4"),
            ("call", "4"),
            ("none", "4"),
            ("table", "4"),
        ];
        // The script has no answer after the token of `logits`.
        for (workload, count) in workloads.into_iter().chain([("logits", "1")]) {
            let script = Script::new().answers("1+1=", "2222");
            let response = script.run(async {
                let target = format!("/measure/{workload}?count={count}");
                let request = Request::post(&target).with_body("1+1=");
                measure(request).await.unwrap().read().await
            });
            assert_eq!(response, count.as_bytes(), "{workload}");
        }
    }
}
