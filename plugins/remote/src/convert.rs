//! Converts between the protocol's types and those that this component exports.

use session_protocol as wire;

use crate::bindings::exports::corral::inference::{constraints, inference, models, types};

pub(crate) fn error(error: wire::Error) -> types::Error {
    use types::{ContextLimit, Error, Refusal};
    match error {
        wire::Error::Invalid { detail } => Error::Invalid(detail),
        wire::Error::NotFound { detail } => Error::NotFound(detail),
        wire::Error::NotGranted { detail } => Error::NotGranted(detail),
        wire::Error::ContextFull { needed, limit } => {
            Error::ContextFull(ContextLimit { needed, limit })
        }
        wire::Error::Refused {
            detail,
            retry_after_ms,
        } => Error::Refused(Refusal {
            reason: detail,
            retry_after_ms,
        }),
        wire::Error::Deadline => Error::Deadline,
        wire::Error::Cancelled => Error::Cancelled,
        wire::Error::Failed { detail } => Error::Failed(detail),
    }
}

/// An error as text.
pub(crate) fn message(error: types::Error) -> String {
    use types::Error;
    match error {
        Error::Invalid(detail)
        | Error::NotFound(detail)
        | Error::NotGranted(detail)
        | Error::Failed(detail) => detail,
        Error::Refused(refusal) => refusal.reason,
        other => format!("{other:?}"),
    }
}

pub(crate) fn info(info: &wire::ModelInfo) -> models::ModelInfo {
    let info = info.clone();
    models::ModelInfo {
        name: info.name,
        vocabulary: info.vocabulary,
        context: info.context,
        embedding_length: info.embedding_length,
        bos: info.bos,
        eos: info.eos,
        end_of_generation: info.end_of_generation,
        chat_template: info.chat_template,
        can_fork: info.can_fork,
        adapters: info.adapters,
    }
}

pub(crate) fn request_counts(counts: wire::RequestCounts) -> models::RequestCounts {
    models::RequestCounts {
        running: counts.running,
        waiting: counts.waiting,
        max_running: counts.max_running,
    }
}

pub(crate) fn pooling(pooling: models::Pooling) -> wire::Pooling {
    match pooling {
        models::Pooling::Mean => wire::Pooling::Mean,
        models::Pooling::Cls => wire::Pooling::Cls,
        models::Pooling::Last => wire::Pooling::Last,
        models::Pooling::Tokens => wire::Pooling::Tokens,
        models::Pooling::Rank => wire::Pooling::Rank,
    }
}

pub(crate) fn grammar(grammar: constraints::Grammar) -> wire::Grammar {
    use constraints::Grammar;
    match grammar {
        Grammar::JsonSchema(text) => wire::Grammar::JsonSchema(text),
        Grammar::JsonObject => wire::Grammar::JsonObject,
        Grammar::Regex(text) => wire::Grammar::Regex(text),
        Grammar::Lark(text) => wire::Grammar::Lark(text),
        Grammar::Gbnf(text) => wire::Grammar::Gbnf(text),
        Grammar::LenientJsonSchema(text) => wire::Grammar::LenientJsonSchema(text),
    }
}

pub(crate) fn part(part: inference::DistributionPart) -> wire::Part {
    use inference::DistributionPart;
    match part {
        DistributionPart::Top(count) => wire::Part::Top(count),
        DistributionPart::Only(tokens) => wire::Part::Only(tokens),
        DistributionPart::Logits => wire::Part::Logits,
    }
}

/// JSON has no infinity.
fn logit(logit: Option<f32>) -> f32 {
    logit.unwrap_or(f32::NEG_INFINITY)
}

pub(crate) fn distribution(distribution: wire::Distribution) -> inference::Distribution {
    let candidates = distribution.candidates.into_iter();
    let candidates = candidates.map(|(token, score)| inference::Candidate {
        token,
        logit: logit(score),
    });
    let logits = distribution.logits.map(|wire::Floats(logits)| logits);
    let statistics = distribution.statistics;
    inference::Distribution {
        candidates: candidates.collect(),
        logits: logits.unwrap_or_default(),
        statistics: statistics.map(|statistics| inference::Statistics {
            log_normalizer: statistics.log_normalizer,
            entropy: statistics.entropy,
        }),
        position: distribution.position,
    }
}

pub(crate) fn chunk(chunk: wire::Chunk) -> inference::Chunk {
    let logprobs = chunk.logprobs.into_iter();
    let logprobs = logprobs.map(|logprobs| inference::TokenLogprobs {
        logprob: logit(logprobs.logprob),
        top: logprobs
            .top
            .into_iter()
            .map(|(token, score)| (token, logit(score)))
            .collect(),
    });
    inference::Chunk {
        tokens: chunk.tokens,
        text: chunk.text,
        logprobs: logprobs.collect(),
    }
}

pub(crate) fn outcome(outcome: wire::Outcome) -> inference::Outcome {
    inference::Outcome {
        finish: match outcome.finish {
            wire::Finish::End => inference::Finish::End,
            wire::Finish::Stop => inference::Finish::Stop,
            wire::Finish::Length => inference::Finish::Length,
        },
        prompt_tokens: outcome.prompt_tokens,
        cached_tokens: outcome.cached_tokens,
        generated_tokens: outcome.generated_tokens,
        queue_time: outcome.queue_time,
        prefill_time: outcome.prefill_time,
        decode_time: outcome.decode_time,
    }
}
