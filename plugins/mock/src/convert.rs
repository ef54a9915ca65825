//! Converts between the types that this component exports and those of the SDK, which have the same members.

use corral_sdk::bindings::{constraints, inference, models, types};

use crate::bindings::exports::corral::inference as exported;

pub(crate) fn error(error: types::Error) -> exported::types::Error {
    use exported::types::{ContextLimit, Error, Refusal};
    match error {
        types::Error::Invalid(text) => Error::Invalid(text),
        types::Error::NotFound(text) => Error::NotFound(text),
        types::Error::NotGranted(text) => Error::NotGranted(text),
        types::Error::ContextFull(limit) => Error::ContextFull(ContextLimit {
            needed: limit.needed,
            limit: limit.limit,
        }),
        types::Error::Refused(refusal) => Error::Refused(Refusal {
            reason: refusal.reason,
            retry_after_ms: refusal.retry_after_ms,
        }),
        types::Error::Deadline => Error::Deadline,
        types::Error::Cancelled => Error::Cancelled,
        types::Error::Failed(text) => Error::Failed(text),
    }
}

pub(crate) fn info(info: models::ModelInfo) -> exported::models::ModelInfo {
    exported::models::ModelInfo {
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

pub(crate) fn request_counts(counts: models::RequestCounts) -> exported::models::RequestCounts {
    exported::models::RequestCounts {
        running: counts.running,
        waiting: counts.waiting,
        max_running: counts.max_running,
    }
}

pub(crate) fn pooling(pooling: exported::models::Pooling) -> models::Pooling {
    use exported::models::Pooling;
    match pooling {
        Pooling::Mean => models::Pooling::Mean,
        Pooling::Cls => models::Pooling::Cls,
        Pooling::Last => models::Pooling::Last,
        Pooling::Tokens => models::Pooling::Tokens,
        Pooling::Rank => models::Pooling::Rank,
    }
}

pub(crate) fn grammar(grammar: exported::constraints::Grammar) -> constraints::Grammar {
    use exported::constraints::Grammar;
    match grammar {
        Grammar::JsonSchema(text) => constraints::Grammar::JsonSchema(text),
        Grammar::JsonObject => constraints::Grammar::JsonObject,
        Grammar::Regex(text) => constraints::Grammar::Regex(text),
        Grammar::Lark(text) => constraints::Grammar::Lark(text),
        Grammar::Gbnf(text) => constraints::Grammar::Gbnf(text),
        Grammar::LenientJsonSchema(text) => constraints::Grammar::LenientJsonSchema(text),
    }
}

pub(crate) fn dry(dry: exported::inference::Dry) -> inference::Dry {
    inference::Dry {
        multiplier: dry.multiplier,
        base: dry.base,
        allowed_length: dry.allowed_length,
        last_n: dry.last_n,
        breakers: dry.breakers,
    }
}

pub(crate) fn penalties(penalties: exported::inference::Penalties) -> inference::Penalties {
    inference::Penalties {
        last_n: penalties.last_n,
        repeat: penalties.repeat,
        frequency: penalties.frequency,
        presence: penalties.presence,
    }
}

pub(crate) fn part(part: exported::inference::DistributionPart) -> inference::DistributionPart {
    use exported::inference::DistributionPart;
    match part {
        DistributionPart::Top(count) => inference::DistributionPart::Top(count),
        DistributionPart::Only(tokens) => inference::DistributionPart::Only(tokens),
        DistributionPart::Logits => inference::DistributionPart::Logits,
    }
}

pub(crate) fn distribution(
    distribution: inference::Distribution,
) -> exported::inference::Distribution {
    let candidates = distribution.candidates.into_iter();
    let statistics = distribution.statistics;
    exported::inference::Distribution {
        candidates: candidates
            .map(|candidate| exported::inference::Candidate {
                token: candidate.token,
                logit: candidate.logit,
            })
            .collect(),
        logits: distribution.logits,
        statistics: statistics.map(|statistics| exported::inference::Statistics {
            log_normalizer: statistics.log_normalizer,
            entropy: statistics.entropy,
        }),
        position: distribution.position,
    }
}

pub(crate) fn chunk(chunk: inference::Chunk) -> exported::inference::Chunk {
    let logprobs = chunk.logprobs.into_iter();
    exported::inference::Chunk {
        tokens: chunk.tokens,
        text: chunk.text,
        logprobs: logprobs
            .map(|logprobs| exported::inference::TokenLogprobs {
                logprob: logprobs.logprob,
                top: logprobs.top,
            })
            .collect(),
    }
}

pub(crate) fn outcome(outcome: inference::Outcome) -> exported::inference::Outcome {
    use exported::inference::Finish;
    exported::inference::Outcome {
        finish: match outcome.finish {
            inference::Finish::End => Finish::End,
            inference::Finish::Stop => Finish::Stop,
            inference::Finish::Length => Finish::Length,
        },
        prompt_tokens: outcome.prompt_tokens,
        cached_tokens: outcome.cached_tokens,
        generated_tokens: outcome.generated_tokens,
        queue_time: outcome.queue_time,
        prefill_time: outcome.prefill_time,
        decode_time: outcome.decode_time,
    }
}
