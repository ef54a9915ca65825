//! Runs a generation for a request.

use corral_sdk::{Chunk, Constraint, Error, GenerateOptions, Grammar, Model, Outcome, Token};
use serde_json::{Value, json};

use crate::prompt;
use crate::request::{Request, Settings};
use crate::response::{Report, ResponseChunk, shortest};
use crate::sampling::Sampler;

/// A generation in progress. Dropping it cancels the generation.
pub struct Generation {
    host: corral_sdk::Generation,
    formatter: Formatter,
}

/// Converts the host's output to the response.
pub struct Formatter {
    model: Model,
    logprobs: bool,
}

impl Generation {
    /// Opens the model, tokenizes the prompt and starts the generation.
    pub async fn start(request: &Request) -> Result<Self, Error> {
        let model = Model::open_requested(request.model.as_deref()).await?;
        let tokens = prompt::tokens(&request.input, &model)?;
        // At least 1: `prompt::tokens` checks it.
        let remaining = model.info().context - tokens.len() as u32;

        let settings = &request.settings;
        check_adapter(settings.adapter.as_deref(), &model.info().adapters)?;
        let constraint = match &settings.constraint {
            Some(grammar) => Some(compile(&model, grammar).await?),
            None => None,
        };
        let options = options(settings, constraint.as_ref(), remaining);
        let sequence = model.empty_sequence()?;
        sequence.append_tokens(&tokens)?;
        Ok(Generation {
            host: sequence.generate(&options)?,
            formatter: Formatter {
                model,
                logprobs: settings.logprobs.is_some(),
            },
        })
    }

    /// Waits for the first chunk, and returns an error that occurs before it.
    pub async fn wait_for_start(mut self) -> Result<Self, Error> {
        self.host = self.host.wait_for_start().await?;
        Ok(self)
    }

    /// Returns the next chunk, or `None` at the end.
    pub async fn next(&mut self) -> Result<Option<ResponseChunk>, Error> {
        match self.host.next().await {
            Some(chunk) => self.formatter.chunk(chunk).map(Some),
            None => Ok(None),
        }
    }

    /// Waits for the end and returns the remaining output as one chunk.
    pub async fn rest(&mut self) -> Result<ResponseChunk, Error> {
        self.formatter.chunk(self.host.rest().await?)
    }

    pub fn has_logprobs(&self) -> bool {
        self.formatter.logprobs
    }

    pub fn into_parts(self) -> (corral_sdk::Generation, Formatter) {
        (self.host, self.formatter)
    }

    /// Returns the result after the last chunk.
    pub async fn finish(self) -> Result<Report, Error> {
        Ok(self.formatter.report(self.host.outcome().await?))
    }
}

impl Formatter {
    fn chunk(&self, chunk: Chunk) -> Result<ResponseChunk, Error> {
        let mut logprobs = Vec::new();
        for (&token, entry) in chunk.tokens.iter().zip(chunk.logprobs) {
            let top = entry.top.iter();
            let top = top.map(|&(token, logprob)| self.logprob(token, logprob));
            let top = top.collect::<Result<Vec<_>, Error>>()?;
            let mut fields = self.logprob(token, entry.logprob)?;
            fields["top"] = top.into();
            logprobs.push(fields);
        }
        Ok(ResponseChunk {
            text: chunk.text,
            logprobs,
        })
    }

    fn logprob(&self, token: Token, logprob: f32) -> Result<Value, Error> {
        Ok(json!({
            "token": token,
            // Control tokens by name; U+FFFD for a part of a character.
            "text": self.model.detokenize_with_control(&[token])?,
            "logprob": shortest(logprob),
        }))
    }

    pub fn report(self, outcome: Outcome) -> Report {
        Report {
            model: self.model.name().to_owned(),
            logprobs: self.logprobs,
            outcome,
        }
    }
}

/// Checks the name here, so that it fails like an unknown model and not as `invalid`.
fn check_adapter(name: Option<&str>, known: &[String]) -> Result<(), Error> {
    let Some(name) = name else { return Ok(()) };
    if known.iter().any(|known| known == name) {
        return Ok(());
    }
    let detail = if known.is_empty() {
        format!("there is no adapter {name:?}: this model has none")
    } else {
        format!("there is no adapter {name:?} of this model; expected one of {known:?}")
    };
    Err(Error::new(404, "unknown-adapter", detail))
}

/// Compiles a grammar. Keeps the host's message, which gives the position of a mistake.
async fn compile(model: &Model, grammar: &Grammar) -> Result<Constraint, Error> {
    let compiled = Constraint::compile(model, grammar.clone()).await;
    compiled.map_err(|error| match error {
        Error::Invalid(text) => Error::bad_request("invalid-constraint", text),
        other => other,
    })
}

/// Converts the settings. `remaining` is the number of free positions in the context.
fn options(
    settings: &Settings,
    constraint: Option<&Constraint>,
    remaining: u32,
) -> GenerateOptions {
    let mut options = GenerateOptions::new(settings.max_tokens.min(remaining));
    if let Some(seed) = settings.seed {
        options = options.seed(seed);
    }
    if settings.ignore_eos {
        options = options.ignore_eos();
    }
    options = options.stops(&settings.stop);
    for sampler in &settings.samplers {
        options = add_sampler(options, sampler);
    }
    if let Some(constraint) = constraint {
        options = options.constrain(constraint);
    }
    if let Some(top) = settings.logprobs {
        options = options.logprobs(top);
    }
    if let Some(most) = settings.speculate {
        options = options.speculate(most);
    }
    if let Some(name) = &settings.adapter {
        options = options.adapter(name);
    }
    options
}

fn add_sampler(options: GenerateOptions, sampler: &Sampler) -> GenerateOptions {
    match sampler {
        Sampler::Temperature(value) => options.temperature(*value),
        Sampler::TopK(count) => options.top_k(*count),
        Sampler::TopP(mass) => options.top_p(*mass),
        Sampler::MinP(ratio) => options.min_p(*ratio),
        Sampler::TypicalP(mass) => options.typical_p(*mass),
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
        Sampler::Dry(settings) => options.dry(settings),
        Sampler::Penalties(settings) => options.penalties(*settings),
        Sampler::OutputPenalties(settings) => options.output_penalties(*settings),
        Sampler::LogitBias(biases) => options.logit_bias(biases),
        Sampler::Mirostat { tau, eta } => options.mirostat(*tau, *eta),
    }
}
