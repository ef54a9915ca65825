//! A request becomes a generation: the one place that calls `corral:inference`.

use std::time::SystemTime;

use wasip3::wit_bindgen::{FutureReader, StreamReader};

use super::bindings::corral::inference::constraints::{self, Constraint};
use super::bindings::corral::inference::inference::{
    self as host, Chunk, Options, Outcome, Sequence,
};
use super::bindings::corral::inference::models::{Model, available};
use super::bindings::corral::inference::types::Error;
use crate::answer::{Finish, LikelyToken, Piece, Report, TokenLogprobs};
use crate::grammar::Grammar;
use crate::problem::Problem;
use crate::prompt::{self, Tokenizer};
use crate::request::{Request, Settings};
use crate::sampling::Sampler;

/// A running generation. Dropping it cancels.
pub struct Generation {
    chunks: StreamReader<Chunk>,
    outcome: FutureReader<Result<Outcome, Error>>,
    /// Says what tokens are in text.
    model: Model,
    name: String,
    logprobs: bool,
    /// Last, and only kept: what the generation runs on lives as long as it does.
    _sequence: Sequence,
}

impl Generation {
    /// Opens the model, renders and tokenises, and starts.
    pub async fn start(request: &Request) -> Result<Self, Problem> {
        check_model(request.model.as_deref())?;
        let model = Model::open(request.model.clone()).await.map_err(problem)?;
        let info = model.info();
        let seen = prompt::Model {
            name: &info.name,
            begin: info.begin,
            end: info.end.or(info.end_of_generation.first().copied()),
            chat_template: info.chat_template.as_deref(),
            context: info.context,
        };
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |since| since.as_secs());
        let tokens = prompt::tokens(&request.input, seen, &model, now)?;
        let room = info.context - tokens.len() as u32; // `prompt::tokens` leaves at least 1.

        let settings = &request.settings;
        check_adapter(settings.adapter.as_deref(), &info.adapters)?;
        let constraint = match &settings.constraint {
            Some(grammar) => Some(compile(&model, grammar).await?),
            None => None,
        };
        let options = options(settings, constraint.as_ref(), room)?;
        let sequence = Sequence::create(&model).map_err(problem)?;
        sequence.append(&tokens).map_err(problem)?;
        let (chunks, outcome) = sequence.generate(&options).map_err(problem)?;
        Ok(Generation {
            chunks,
            outcome,
            model,
            name: info.name,
            logprobs: settings.logprobs.is_some(),
            _sequence: sequence,
        })
    }

    /// The next piece. Nothing when the generation has ended.
    pub async fn next(&mut self) -> Result<Option<Piece>, Problem> {
        let Some(chunk) = self.chunks.next().await else {
            return Ok(None);
        };
        let each = chunk.tokens.iter().zip(chunk.logprobs);
        let logprobs = each
            .map(|(&token, likely)| {
                let top = likely.top.into_iter();
                Ok(TokenLogprobs {
                    token: self.likely(token, likely.logprob)?,
                    top: top
                        .map(|(token, logprob)| self.likely(token, logprob))
                        .collect::<Result<_, _>>()?,
                })
            })
            .collect::<Result<_, _>>()?;
        Ok(Some(Piece {
            text: chunk.text,
            logprobs,
        }))
    }

    fn likely(&self, id: u32, logprob: f32) -> Result<LikelyToken, Problem> {
        let bytes = self.model.detokenize(&[id], true).map_err(problem)?;
        Ok(LikelyToken {
            id,
            text: String::from_utf8_lossy(&bytes).into_owned(),
            logprob,
        })
    }

    /// How it went. To be called when there are no more pieces.
    pub async fn finish(self) -> Result<Report, Problem> {
        let outcome = self.outcome.await.map_err(problem)?;
        Ok(Report {
            model: self.name,
            logprobs: self.logprobs,
            finish: match outcome.finish {
                host::Finish::End => Finish::End,
                host::Finish::Stop => Finish::Stop,
                host::Finish::Length => Finish::Length,
            },
            prompt_tokens: outcome.prompt_tokens,
            cached_tokens: outcome.cached_tokens,
            generated_tokens: outcome.generated_tokens,
            queue_time: outcome.queue_time,
            prefill_time: outcome.prefill_time,
            decode_time: outcome.decode_time,
        })
    }
}

/// With a code of its own: the host calls whatever it can't find `not-found`.
fn check_model(name: Option<&str>) -> Result<(), Problem> {
    let Some(name) = name else { return Ok(()) };
    let names = available();
    if names.iter().any(|known| known == name) {
        return Ok(());
    }
    Err(Problem::new(
        404,
        "unknown-model",
        format!("there is no model {name:?} here; expected one of {names:?}"),
    ))
}

/// Like an unknown model, rather than the host's `invalid`.
fn check_adapter(name: Option<&str>, known: &[String]) -> Result<(), Problem> {
    let Some(name) = name else { return Ok(()) };
    if known.iter().any(|known| known == name) {
        return Ok(());
    }
    let detail = if known.is_empty() {
        format!("there is no adapter {name:?}: this model has none")
    } else {
        format!("there is no adapter {name:?} of this model; expected one of {known:?}")
    };
    Err(Problem::new(404, "unknown-adapter", detail))
}

/// What is wrong with a grammar is told in the host's words, which say where.
async fn compile(model: &Model, grammar: &Grammar) -> Result<Constraint, Problem> {
    let grammar = match grammar.clone() {
        Grammar::JsonSchema(text) => constraints::Grammar::JsonSchema(text),
        Grammar::JsonObject => constraints::Grammar::JsonObject,
        Grammar::Regex(text) => constraints::Grammar::Regex(text),
        Grammar::Lark(text) => constraints::Grammar::Lark(text),
        Grammar::Gbnf(text) => constraints::Grammar::Gbnf(text),
    };
    let compiled = Constraint::compile(model, grammar).await;
    compiled.map_err(|error| match error {
        Error::Invalid(text) => Problem::bad_request("invalid-constraint", text),
        other => problem(other),
    })
}

/// The host's options for the settings. At most `room` tokens: those the context has left.
fn options(
    settings: &Settings,
    constraint: Option<&Constraint>,
    room: u32,
) -> Result<Options, Problem> {
    let options = Options::new(settings.max_tokens.min(room));
    if let Some(seed) = settings.seed {
        options.seed(seed);
    }
    if settings.ignore_end {
        options.ignore_end();
    }
    for text in &settings.stop {
        options.stop(text).map_err(problem)?;
    }
    for link in &settings.samplers {
        add(&options, link).map_err(problem)?;
    }
    if let Some(constraint) = constraint {
        options.constrain(constraint);
    }
    if let Some(top) = settings.logprobs {
        options.logprobs(top).map_err(problem)?;
    }
    if settings.speculate > 0 {
        options.speculate(settings.speculate).map_err(problem)?;
    }
    if let Some(name) = &settings.adapter {
        options.adapter(name);
    }
    Ok(options)
}

/// Adds a link at the end of the chain.
fn add(options: &Options, link: &Sampler) -> Result<(), Error> {
    match link {
        Sampler::Temperature(value) => options.temperature(*value),
        Sampler::TopK(count) => options.top_k(*count),
        Sampler::TopP(mass) => options.top_p(*mass),
        Sampler::MinP(ratio) => options.min_p(*ratio),
        Sampler::Typical(mass) => options.typical(*mass),
        Sampler::TopNSigma(count) => options.top_n_sigma(*count),
        Sampler::DynamicTemperature {
            temperature,
            range,
            exponent,
        } => options.dynamic_temperature(*temperature, *range, *exponent),
        Sampler::Xtc {
            probability,
            threshold,
        } => options.xtc(*probability, *threshold),
        Sampler::Dry(dry) => options.dry(&host::Dry {
            multiplier: dry.multiplier,
            base: dry.base,
            allowed_length: dry.allowed_length,
            range: dry.range,
            breakers: dry.breakers.clone(),
        }),
        Sampler::Penalties(penalties) => options.penalties(host::Penalties {
            last: penalties.last,
            repeat: penalties.repeat,
            frequency: penalties.frequency,
            presence: penalties.presence,
        }),
        Sampler::LogitBias(biases) => options.logit_bias(biases),
        Sampler::Mirostat { tau, eta } => options.mirostat(*tau, *eta),
    }
}

impl Tokenizer for Model {
    fn tokenize(&self, text: &str, special: bool) -> Result<Vec<u32>, Problem> {
        Model::tokenize(self, text, special).map_err(problem)
    }

    fn detokenize(&self, tokens: &[u32], special: bool) -> Result<Vec<u8>, Problem> {
        Model::detokenize(self, tokens, special).map_err(problem)
    }
}

fn problem(error: Error) -> Problem {
    match error {
        Error::Invalid(text) => Problem::bad_request("invalid", text),
        Error::NotFound(text) => Problem::new(404, "not-found", text),
        Error::NotGranted(text) => Problem::new(403, "not-granted", text),
        Error::ContextFull(limit) => Problem::bad_request(
            "context-full",
            format!(
                "{} positions are needed; a sequence may have {} here",
                limit.needed, limit.limit
            ),
        ),
        Error::Refused(refusal) => {
            let mut problem = Problem::new(429, "refused", refusal.reason);
            problem.retry_after_ms = Some(refusal.retry_after_ms);
            problem
        }
        Error::Deadline => Problem::new(
            504,
            "deadline",
            "the request's deadline passed before the generation ended",
        ),
        Error::Cancelled => Problem::new(499, "cancelled", "the request was cancelled"),
        Error::Failed(text) => Problem::new(500, "failed", text),
    }
}
