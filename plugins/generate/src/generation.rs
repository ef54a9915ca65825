//! A request becomes a generation.

use corral_sdk::{
    Chunk, Constraint, Dry, Error, Finish as HostFinish, Generate, Grammar as HostGrammar, Model,
    Outcome, Penalties,
};

use crate::answer::{Finish, LikelyToken, Piece, Report, TokenLogprobs};
use crate::grammar::Grammar;
use crate::prompt;
use crate::request::{Request, Settings};
use crate::sampling::{self, Sampler};

/// A running generation. Dropping it cancels.
pub struct Generation {
    running: corral_sdk::Generation,
    teller: Teller,
}

/// Says how a generation went.
pub struct Teller {
    /// Says what tokens are in text.
    model: Model,
    logprobs: bool,
}

impl Generation {
    /// Opens the model, renders and tokenises, and starts.
    pub async fn start(request: &Request) -> Result<Self, Error> {
        check_model(request.model.as_deref())?;
        let model = Model::open_or_first(request.model.as_deref()).await?;
        let tokens = prompt::tokens(&request.input, &model)?;
        // `prompt::tokens` leaves at least 1.
        let room = model.info().context - tokens.len() as u32;

        let settings = &request.settings;
        check_adapter(settings.adapter.as_deref(), &model.info().adapters)?;
        let constraint = match &settings.constraint {
            Some(grammar) => Some(compile(&model, grammar).await?),
            None => None,
        };
        let how = how(settings, constraint.as_ref(), room);
        let sequence = model.empty_sequence()?;
        sequence.append_tokens(&tokens)?;
        Ok(Generation {
            running: sequence.generate(&how)?,
            teller: Teller {
                model,
                logprobs: settings.logprobs.is_some(),
            },
        })
    }

    /// Waits for the first piece, or tells what failed before it.
    pub async fn begun(mut self) -> Result<Self, Error> {
        self.running = self.running.begun().await?;
        Ok(self)
    }

    /// The next piece. Nothing when the generation has ended.
    pub async fn next(&mut self) -> Result<Option<Piece>, Error> {
        match self.running.next().await {
            Some(chunk) => self.teller.piece(chunk).map(Some),
            None => Ok(None),
        }
    }

    /// All that is left, as one piece, when the generation has ended.
    pub async fn rest(&mut self) -> Result<Piece, Error> {
        self.teller.piece(self.running.rest().await?)
    }

    /// Whether more is told than text.
    pub fn tells_likely(&self) -> bool {
        self.teller.logprobs
    }

    /// What generates, and who says how it went.
    pub fn apart(self) -> (corral_sdk::Generation, Teller) {
        (self.running, self.teller)
    }

    /// How it went. To be called when there are no more pieces.
    pub async fn finish(self) -> Result<Report, Error> {
        Ok(self.teller.report(self.running.outcome().await?))
    }
}

impl Teller {
    fn piece(&self, chunk: Chunk) -> Result<Piece, Error> {
        let each = chunk.tokens.iter().zip(chunk.logprobs);
        let logprobs = each
            .map(|(&token, likely)| {
                let top = likely.top.into_iter();
                Ok(TokenLogprobs {
                    token: self.likely(token, likely.logprob)?,
                    top: top
                        .map(|(token, logprob)| self.likely(token, logprob))
                        .collect::<Result<_, Error>>()?,
                })
            })
            .collect::<Result<_, Error>>()?;
        Ok(Piece {
            text: chunk.text,
            logprobs,
        })
    }

    fn likely(&self, id: u32, logprob: f32) -> Result<LikelyToken, Error> {
        Ok(LikelyToken {
            id,
            text: self.model.detokenize_with_control(&[id])?,
            logprob,
        })
    }

    /// How it went.
    pub fn report(self, outcome: Outcome) -> Report {
        Report {
            model: self.model.name().to_owned(),
            logprobs: self.logprobs,
            finish: match outcome.finish {
                HostFinish::End => Finish::End,
                HostFinish::Stop => Finish::Stop,
                HostFinish::Length => Finish::Length,
            },
            prompt_tokens: outcome.prompt_tokens,
            cached_tokens: outcome.cached_tokens,
            generated_tokens: outcome.generated_tokens,
            queue_time: outcome.queue_time,
            prefill_time: outcome.prefill_time,
            decode_time: outcome.decode_time,
        }
    }
}

/// With a code of its own: the host calls whatever it can't find `not-found`.
fn check_model(name: Option<&str>) -> Result<(), Error> {
    let Some(name) = name else { return Ok(()) };
    let names = Model::available();
    if names.iter().any(|known| known == name) {
        return Ok(());
    }
    Err(Error::new(
        404,
        "unknown-model",
        format!("there is no model {name:?} here; expected one of {names:?}"),
    ))
}

/// Like an unknown model, rather than the host's `invalid`.
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

/// What is wrong with a grammar is told in the host's words, which say where.
async fn compile(model: &Model, grammar: &Grammar) -> Result<Constraint, Error> {
    let grammar = match grammar.clone() {
        Grammar::JsonSchema(text) => HostGrammar::JsonSchema(text),
        Grammar::JsonObject => HostGrammar::JsonObject,
        Grammar::Regex(text) => HostGrammar::Regex(text),
        Grammar::Lark(text) => HostGrammar::Lark(text),
        Grammar::Gbnf(text) => HostGrammar::Gbnf(text),
    };
    let compiled = Constraint::compile(model, grammar).await;
    compiled.map_err(|error| match error {
        Error::Invalid(text) => Error::bad_request("invalid-constraint", text),
        other => other,
    })
}

/// The settings as the host takes them. At most `room` tokens: those the context has left.
fn how(settings: &Settings, constraint: Option<&Constraint>, room: u32) -> Generate {
    let mut how = Generate::new(settings.max_tokens.min(room));
    if let Some(seed) = settings.seed {
        how = how.seed(seed);
    }
    if settings.ignore_end {
        how = how.ignore_end();
    }
    how = how.stops(&settings.stop);
    for link in &settings.samplers {
        how = add(how, link);
    }
    if let Some(constraint) = constraint {
        how = how.constrain(constraint);
    }
    if let Some(top) = settings.logprobs {
        how = how.logprobs(top);
    }
    if settings.speculate > 0 {
        how = how.speculate(settings.speculate);
    }
    if let Some(name) = &settings.adapter {
        how = how.adapter(name);
    }
    how
}

/// Adds a link at the end of the chain.
fn add(how: Generate, link: &Sampler) -> Generate {
    match link {
        Sampler::Temperature(value) => how.temperature(*value),
        Sampler::TopK(count) => how.top_k(*count),
        Sampler::TopP(mass) => how.top_p(*mass),
        Sampler::MinP(ratio) => how.min_p(*ratio),
        Sampler::Typical(mass) => how.typical(*mass),
        Sampler::TopNSigma(count) => how.top_n_sigma(*count),
        Sampler::DynamicTemperature {
            temperature,
            range,
            exponent,
        } => how.dynamic_temperature(*temperature, *range, *exponent),
        Sampler::Xtc {
            probability,
            threshold,
        } => how.xtc(*probability, *threshold),
        Sampler::Dry(dry) => how.dry(&Dry {
            multiplier: dry.multiplier,
            base: dry.base,
            allowed_length: dry.allowed_length,
            range: dry.range,
            breakers: dry.breakers.clone(),
        }),
        Sampler::Penalties(settings) => how.penalties(penalties(settings)),
        Sampler::AnswerPenalties(settings) => how.answer_penalties(penalties(settings)),
        Sampler::LogitBias(biases) => how.logit_bias(biases),
        Sampler::Mirostat { tau, eta } => how.mirostat(*tau, *eta),
    }
}

/// The settings as the host takes them.
fn penalties(settings: &sampling::Penalties) -> Penalties {
    Penalties {
        last: settings.last,
        repeat: settings.repeat,
        frequency: settings.frequency,
        presence: settings.presence,
    }
}
