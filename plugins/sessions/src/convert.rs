//! Converts between the protocol's types and those of the host functions.

use corral_sdk::bindings::{constraints, inference, models, types};
use session_protocol as protocol;

pub(crate) fn error(error: types::Error) -> protocol::Error {
    use protocol::Error;
    match error {
        types::Error::Invalid(detail) => Error::Invalid { detail },
        types::Error::NotFound(detail) => Error::NotFound { detail },
        types::Error::NotGranted(detail) => Error::NotGranted { detail },
        types::Error::ContextFull(limit) => Error::ContextFull {
            needed: limit.needed,
            limit: limit.limit,
        },
        types::Error::Refused(refusal) => Error::Refused {
            detail: refusal.reason,
            retry_after_ms: refusal.retry_after_ms,
        },
        types::Error::Deadline => Error::Deadline,
        types::Error::Cancelled => Error::Cancelled,
        types::Error::Failed(detail) => Error::Failed { detail },
    }
}

pub(crate) fn info(model: &models::Model) -> protocol::ModelInfo {
    let info = model.info();
    protocol::ModelInfo {
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
        accepts_images: model.accepts_images(),
        accepts_audio: model.accepts_audio(),
        rerank_template: model.rerank_template(),
    }
}

pub(crate) fn request_counts(counts: models::RequestCounts) -> protocol::RequestCounts {
    protocol::RequestCounts {
        running: counts.running,
        waiting: counts.waiting,
        max_running: counts.max_running,
    }
}

pub(crate) fn pooling(pooling: protocol::Pooling) -> models::Pooling {
    match pooling {
        protocol::Pooling::Mean => models::Pooling::Mean,
        protocol::Pooling::Cls => models::Pooling::Cls,
        protocol::Pooling::Last => models::Pooling::Last,
        protocol::Pooling::Tokens => models::Pooling::Tokens,
        protocol::Pooling::Rank => models::Pooling::Rank,
    }
}

pub(crate) fn grammar(grammar: protocol::Grammar) -> constraints::Grammar {
    use constraints::Grammar;
    match grammar {
        protocol::Grammar::JsonSchema(text) => Grammar::JsonSchema(text),
        protocol::Grammar::JsonObject => Grammar::JsonObject,
        protocol::Grammar::Regex(text) => Grammar::Regex(text),
        protocol::Grammar::Lark(text) => Grammar::Lark(text),
        protocol::Grammar::Gbnf(text) => Grammar::Gbnf(text),
        protocol::Grammar::LenientJsonSchema(text) => Grammar::LenientJsonSchema(text),
    }
}

/// Applies a setting to options.
pub(crate) fn set(
    options: &inference::Options,
    setting: protocol::Setting,
) -> Result<(), types::Error> {
    use protocol::Setting;
    match setting {
        Setting::Seed(seed) => options.seed(seed),
        Setting::IgnoreEos => options.ignore_eos(),
        Setting::Adapter(name) => options.adapter(&name),
        Setting::Stop(text) => return options.stop(&text),
        Setting::Temperature(value) => return options.temperature(value),
        Setting::TopK(count) => return options.top_k(count),
        Setting::TopP(mass) => return options.top_p(mass),
        Setting::MinP(ratio) => return options.min_p(ratio),
        Setting::DynamicTemperature(temperature, delta, exponent) => {
            return options.dynamic_temperature(temperature, delta, exponent);
        }
        Setting::TypicalP(mass) => return options.typical_p(mass),
        Setting::TopNSigma(count) => return options.top_n_sigma(count),
        Setting::Xtc(probability, threshold) => return options.xtc(probability, threshold),
        Setting::Dry(settings) => {
            return options.dry(&inference::Dry {
                multiplier: settings.multiplier,
                base: settings.base,
                allowed_length: settings.allowed_length,
                last_n: settings.last_n,
                breakers: settings.breakers,
            });
        }
        Setting::Penalties(settings) => return options.penalties(penalties(&settings)),
        Setting::OutputPenalties(settings) => {
            return options.output_penalties(penalties(&settings));
        }
        Setting::LogitBias(biases) => {
            let biases = biases.into_iter();
            let biases = biases.map(|(token, bias)| (token, bias.unwrap_or(f32::NEG_INFINITY)));
            return options.logit_bias(&biases.collect::<Vec<_>>());
        }
        Setting::Mirostat(tau, eta) => return options.mirostat(tau, eta),
        Setting::Logprobs(top) => return options.logprobs(top),
        Setting::Speculate(max_tokens) => return options.speculate(max_tokens),
    }
    Ok(())
}

fn penalties(settings: &protocol::Penalties) -> inference::Penalties {
    inference::Penalties {
        last_n: settings.last_n,
        repeat: settings.repeat,
        frequency: settings.frequency,
        presence: settings.presence,
    }
}

pub(crate) fn part(part: protocol::Part) -> inference::DistributionPart {
    match part {
        protocol::Part::Top(count) => inference::DistributionPart::Top(count),
        protocol::Part::Only(tokens) => inference::DistributionPart::Only(tokens),
        protocol::Part::Logits => inference::DistributionPart::Logits,
    }
}

/// JSON has no infinity.
fn finite(number: f32) -> Option<f32> {
    Some(number).filter(|number| number.is_finite())
}

pub(crate) fn distribution(distribution: inference::Distribution) -> protocol::Distribution {
    let candidates = distribution.candidates.into_iter();
    let logits = Some(distribution.logits).filter(|logits| !logits.is_empty());
    let statistics = distribution.statistics;
    protocol::Distribution {
        candidates: candidates
            .map(|candidate| (candidate.token, finite(candidate.logit)))
            .collect(),
        logits: logits.map(protocol::Floats),
        statistics: statistics.map(|statistics| protocol::Statistics {
            log_normalizer: statistics.log_normalizer,
            entropy: statistics.entropy,
        }),
        position: distribution.position,
    }
}

pub(crate) fn chunk(chunk: inference::Chunk) -> protocol::Chunk {
    let logprobs = chunk.logprobs.into_iter();
    protocol::Chunk {
        tokens: chunk.tokens,
        text: chunk.text,
        logprobs: logprobs
            .map(|logprobs| protocol::TokenLogprobs {
                logprob: finite(logprobs.logprob),
                top: logprobs
                    .top
                    .into_iter()
                    .map(|(token, logprob)| (token, finite(logprob)))
                    .collect(),
            })
            .collect(),
    }
}

pub(crate) fn outcome(outcome: inference::Outcome) -> protocol::Outcome {
    protocol::Outcome {
        finish: match outcome.finish {
            inference::Finish::End => protocol::Finish::End,
            inference::Finish::Stop => protocol::Finish::Stop,
            inference::Finish::Length => protocol::Finish::Length,
        },
        prompt_tokens: outcome.prompt_tokens,
        cached_tokens: outcome.cached_tokens,
        generated_tokens: outcome.generated_tokens,
        queue_time: outcome.queue_time,
        prefill_time: outcome.prefill_time,
        decode_time: outcome.decode_time,
    }
}
