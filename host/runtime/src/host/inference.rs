//! `corral:inference/inference`.

use super::bindings::corral::inference::inference as guest;
use super::bindings::corral::inference::inference::{
    Chunk, Host, HostOptions, HostSequence, HostSequenceWithStore, Outcome, Token,
};
use super::generation::{Run, Tokens, lock};
use super::{Constraint, HANDLES, Model, TOKENS, take, wit};
use crate::meter::thread_nanos;
use crate::quota::{Reservation, Unreserved, Visit};
use crate::state::State;
use crate::tally::Turn;
use corral_engine::sampling::{Breakers, Dry, MAX_LINKS, MAX_TOP_LOGPROBS, Penalties};
use corral_engine::{Claim, Engine, Error, MAX_DRAFTS, MAX_STOP_BYTES, MAX_STOPS, Sampler};
use std::sync::Arc;
use std::time::Duration;
use wasmtime::component::{Access, FutureReader, HasSelf, Resource, StreamReader};

/// Longest name of an adapter, in bytes.
const ADAPTER_BYTES: usize = 256;

type Answer<T> = wasmtime::Result<Result<T, wit::Error>>;

fn invalid<T>(text: impl Into<String>) -> Answer<T> {
    Ok(Err(wit::Error::Invalid(text.into())))
}

/// How to generate, while the guest is still adding to it.
#[derive(Default)]
pub struct Options {
    engine: corral_engine::Options,
    /// Texts where DRY's repetitions end, by the place of its link: they become tokens when the model
    /// is known.
    breakers: Vec<(usize, Vec<String>)>,
}

/// A sequence: its tokens stand here, and the engine is given all of them for each generation. What
/// it has computed of them is claimed as long as the guest holds the sequence.
pub struct Sequence {
    engine: Engine,
    tokens: Tokens,
    claim: Claim,
    appended: usize,
    /// How many of those have not been counted yet by whoever counts tokens.
    uncounted: usize,
    run: Option<Run>,
}

impl Sequence {
    fn runs(&self) -> bool {
        self.run.as_ref().is_some_and(Run::goes_on)
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        if let Some(run) = &self.run {
            run.cancel();
        }
    }
}

impl Options {
    /// The options for a model.
    fn of(&self, engine: &Engine) -> Result<corral_engine::Options, Error> {
        let mut options = self.engine.clone();
        for (place, texts) in &self.breakers {
            if let Some(Sampler::Dry(dry)) = options.samplers.get_mut(*place) {
                dry.breakers = engine.breakers(texts)?;
            }
        }
        Ok(options)
    }
}

impl Host for State {}

impl State {
    fn sampler(&mut self, options: &Resource<Options>, sampler: Sampler) -> Answer<()> {
        let options = &mut self.table.get_mut(options)?.engine;
        let second =
            |link: &Sampler| matches!((link, &sampler), (Sampler::Dry(_), Sampler::Dry(_)));
        if options.samplers.iter().any(second) {
            return invalid("a chain may have one DRY sampler");
        }
        if options.samplers.len() >= MAX_LINKS {
            return invalid(format!("a chain may have {MAX_LINKS} samplers"));
        }
        if let Err(error) = sampler.check() {
            return Ok(Err(error.into()));
        }
        options.samplers.push(sampler);
        Ok(Ok(()))
    }
}

impl HostOptions for State {
    fn new(&mut self, max_tokens: u32) -> wasmtime::Result<Resource<Options>> {
        if take(&mut self.handles.options, "options").is_err() {
            wasmtime::bail!("the plugin holds {HANDLES} options, the most it may");
        }
        let mut options = Options::default();
        options.engine.max_tokens = max_tokens;
        Ok(self.table.push(options)?)
    }

    fn seed(&mut self, options: Resource<Options>, seed: u64) -> wasmtime::Result<()> {
        self.table.get_mut(&options)?.engine.seed = Some(seed);
        Ok(())
    }

    fn stop(&mut self, options: Resource<Options>, text: String) -> Answer<()> {
        let options = &mut self.table.get_mut(&options)?.engine;
        if text.is_empty() || text.len() > MAX_STOP_BYTES {
            return invalid(format!(
                "a stop string has {} bytes; it must have 1 to {MAX_STOP_BYTES}",
                text.len()
            ));
        }
        if options.stop.len() >= MAX_STOPS {
            return invalid(format!("there may be {MAX_STOPS} stop strings"));
        }
        options.stop.push(text);
        Ok(Ok(()))
    }

    fn ignore_end(&mut self, options: Resource<Options>) -> wasmtime::Result<()> {
        self.table.get_mut(&options)?.engine.ignore_end = true;
        Ok(())
    }

    fn temperature(&mut self, options: Resource<Options>, value: f32) -> Answer<()> {
        self.sampler(&options, Sampler::Temperature(value))
    }

    fn top_k(&mut self, options: Resource<Options>, count: u32) -> Answer<()> {
        self.sampler(&options, Sampler::TopK(count))
    }

    fn top_p(&mut self, options: Resource<Options>, mass: f32) -> Answer<()> {
        self.sampler(&options, Sampler::TopP(mass))
    }

    fn min_p(&mut self, options: Resource<Options>, ratio: f32) -> Answer<()> {
        self.sampler(&options, Sampler::MinP(ratio))
    }

    fn dynamic_temperature(
        &mut self,
        options: Resource<Options>,
        temperature: f32,
        range: f32,
        exponent: f32,
    ) -> Answer<()> {
        let sampler = Sampler::DynamicTemperature {
            temperature,
            range,
            exponent,
        };
        self.sampler(&options, sampler)
    }

    fn typical(&mut self, options: Resource<Options>, mass: f32) -> Answer<()> {
        self.sampler(&options, Sampler::Typical(mass))
    }

    fn top_n_sigma(&mut self, options: Resource<Options>, count: f32) -> Answer<()> {
        self.sampler(&options, Sampler::TopNSigma(count))
    }

    fn xtc(&mut self, options: Resource<Options>, probability: f32, threshold: f32) -> Answer<()> {
        let sampler = Sampler::Xtc {
            probability,
            threshold,
        };
        self.sampler(&options, sampler)
    }

    fn dry(&mut self, options: Resource<Options>, settings: guest::Dry) -> Answer<()> {
        if let Err(error) = Breakers::check(&settings.breakers) {
            return Ok(Err(error.into()));
        }
        let sampler = Sampler::Dry(Dry {
            multiplier: settings.multiplier,
            base: settings.base,
            allowed_length: settings.allowed_length,
            range: settings.range,
            breakers: Arc::default(),
        });
        let taken = self.sampler(&options, sampler)?;
        if taken.is_ok() {
            let options = self.table.get_mut(&options)?;
            let place = options.engine.samplers.len() - 1;
            options.breakers.push((place, settings.breakers));
        }
        Ok(taken)
    }

    fn penalties(&mut self, options: Resource<Options>, settings: guest::Penalties) -> Answer<()> {
        let sampler = Sampler::Penalties(Penalties {
            last: settings.last,
            repeat: settings.repeat,
            frequency: settings.frequency,
            presence: settings.presence,
        });
        self.sampler(&options, sampler)
    }

    fn logit_bias(&mut self, options: Resource<Options>, biases: Vec<(Token, f32)>) -> Answer<()> {
        self.sampler(&options, Sampler::LogitBias(biases))
    }

    fn mirostat(&mut self, options: Resource<Options>, tau: f32, eta: f32) -> Answer<()> {
        self.sampler(&options, Sampler::Mirostat { tau, eta })
    }

    fn constrain(
        &mut self,
        options: Resource<Options>,
        constraint: Resource<Constraint>,
    ) -> wasmtime::Result<()> {
        let constraint = self.table.get(&constraint)?.0.clone();
        self.table.get_mut(&options)?.engine.constraint = Some(constraint);
        Ok(())
    }

    fn logprobs(&mut self, options: Resource<Options>, top: u8) -> Answer<()> {
        if usize::from(top) > MAX_TOP_LOGPROBS {
            return invalid(format!(
                "the {top} likeliest tokens were asked for; at most {MAX_TOP_LOGPROBS} can be"
            ));
        }
        self.table.get_mut(&options)?.engine.logprobs = Some(top);
        Ok(Ok(()))
    }

    fn speculate(&mut self, options: Resource<Options>, most: u8) -> Answer<()> {
        if most > MAX_DRAFTS {
            return invalid(format!(
                "{most} tokens were to be guessed at once; at most {MAX_DRAFTS} can be"
            ));
        }
        self.table.get_mut(&options)?.engine.speculate = most;
        Ok(Ok(()))
    }

    fn adapter(&mut self, options: Resource<Options>, name: String) -> wasmtime::Result<()> {
        // Longer ones there are none: what is cut short is just as unknown.
        let name = name.chars().take(ADAPTER_BYTES).collect();
        self.table.get_mut(&options)?.engine.adapter = Some(name);
        Ok(())
    }

    fn drop(&mut self, options: Resource<Options>) -> wasmtime::Result<()> {
        self.table.delete(options)?;
        self.handles.options -= 1;
        Ok(())
    }
}

impl HostSequence for State {
    fn create(&mut self, model: Resource<Model>) -> Answer<Resource<Sequence>> {
        let engine = self.table.get(&model)?.0.clone();
        if let Err(error) = take(&mut self.handles.sequences, "sequences") {
            return Ok(Err(error));
        }
        Ok(Ok(self.table.push(Sequence {
            engine,
            tokens: Tokens::default(),
            claim: Claim::default(),
            appended: 0,
            uncounted: 0,
            run: None,
        })?))
    }

    fn append(&mut self, sequence: Resource<Sequence>, tokens: Vec<Token>) -> Answer<()> {
        let sequence = self.table.get_mut(&sequence)?;
        let info = sequence.engine.info();
        if sequence.runs() {
            return invalid(
                "a generation runs on this sequence: wait for its end or drop its stream",
            );
        }
        let mut held = lock(&sequence.tokens);
        let needed = held.len().saturating_add(tokens.len());
        if needed > info.context as usize {
            return Ok(Err(wit::Error::ContextFull(wit::ContextLimit {
                needed: u32::try_from(needed).unwrap_or(u32::MAX),
                limit: info.context,
            })));
        }
        if let Some(token) = tokens.iter().find(|token| **token >= info.vocabulary) {
            return invalid(format!(
                "there is no token {token}; the vocabulary ends at {}",
                info.vocabulary.saturating_sub(1)
            ));
        }
        if self.handles.tokens.saturating_add(tokens.len()) > TOKENS {
            return invalid(format!(
                "the plugin's sequences would hold more than {TOKENS} tokens; drop some"
            ));
        }
        held.extend_from_slice(&tokens);
        drop(held);
        sequence.appended += tokens.len();
        sequence.uncounted += tokens.len();
        self.handles.tokens += tokens.len();
        Ok(Ok(()))
    }

    fn length(&mut self, sequence: Resource<Sequence>) -> wasmtime::Result<u32> {
        let length = lock(&self.table.get(&sequence)?.tokens).len();
        Ok(u32::try_from(length)?)
    }

    fn tokens(&mut self, sequence: Resource<Sequence>, start: u32) -> wasmtime::Result<Vec<Token>> {
        let tokens = lock(&self.table.get(&sequence)?.tokens);
        Ok(tokens.get(start as usize..).unwrap_or_default().to_vec())
    }

    fn drop(&mut self, sequence: Resource<Sequence>) -> wasmtime::Result<()> {
        let sequence = self.table.delete(sequence)?;
        self.handles.sequences -= 1;
        self.handles.tokens -= sequence.appended;
        Ok(())
    }
}

/// Reserves what a generation may come to: what was appended since the last one, each token once, and
/// all that it may generate.
fn reserve(
    visit: &Arc<Visit>,
    sequence: &Sequence,
    length: usize,
    max_tokens: u32,
) -> Result<Reservation, wit::Error> {
    let (appended, room) = (sequence.uncounted as u64, sequence.engine.info().context);
    let generated = u64::from(max_tokens).min(u64::from(room).saturating_sub(length as u64));
    Ok(visit.reserve(appended + generated)?)
}

impl From<Unreserved> for wit::Error {
    fn from(no: Unreserved) -> Self {
        match no {
            Unreserved::Later(refusal) => {
                let wait = refusal.retry_after.unwrap_or_default();
                Self::Refused(wit::Refusal {
                    reason: refusal.to_string(),
                    retry_after_ms: u32::try_from(wait.as_nanos().div_ceil(1_000_000))
                        .unwrap_or(u32::MAX),
                })
            }
            Unreserved::Never(text) => Self::NotGranted(text),
        }
    }
}

type Generated = (
    StreamReader<Chunk>,
    FutureReader<Result<Outcome, wit::Error>>,
);

impl HostSequenceWithStore<State> for HasSelf<State> {
    fn generate(
        mut store: Access<'_, State, Self>,
        sequence: Resource<Sequence>,
        options: Resource<Options>,
    ) -> Answer<Generated> {
        let state = store.get();
        let (caller, visit, table) = (state.caller, &state.visit, &mut state.table);
        let max_tokens = table.get(&options)?.engine.max_tokens;
        let of_sequence = table.get(&sequence)?;
        if of_sequence.runs() {
            return invalid("a generation already runs on this sequence");
        }
        let prompt = lock(&of_sequence.tokens).clone();
        if prompt.is_empty() {
            return invalid("the sequence is empty; append at least one token");
        }
        if max_tokens == 0 {
            return invalid("max-tokens is 0; it must be at least 1");
        }
        let mut reservation = match visit {
            None => None,
            Some(visit) => match reserve(visit, of_sequence, prompt.len(), max_tokens) {
                Ok(reservation) => Some(reservation),
                Err(error) => return Ok(Err(error)),
            },
        };
        let engine = of_sequence.engine.clone();
        let began = thread_nanos();
        let options = match table.get(&options)?.of(&engine) {
            Ok(options) => options,
            Err(error) => return Ok(Err(error.into())),
        };
        let spent = thread_nanos().saturating_sub(began);
        state.meter.charge(Duration::from_nanos(spent));
        let turn = Turn::begin(caller.queue_time, &state.tally);
        let sequence = table.get_mut(&sequence)?;
        let claim = Claim::default();
        let (engine, before) = (&sequence.engine, Some(sequence.claim.clone()));
        let run = match engine.generate_claimed(prompt, options, caller, claim.watch(), before) {
            Ok(generation) => {
                // Only what was taken is used.
                if let Some(reservation) = &mut reservation {
                    reservation.used(sequence.uncounted as u64);
                }
                Run::new(generation, turn, reservation)
            }
            Err(error) => return Ok(Err(error.into())),
        };
        sequence.claim = claim;
        sequence.uncounted = 0;
        let (chunks, ending) = (run.chunks(Tokens::clone(&sequence.tokens)), run.ending());
        sequence.run = Some(run);
        let stream = StreamReader::new(&mut store, chunks)?;
        let future = FutureReader::new(&mut store, ending)?;
        Ok(Ok((stream, future)))
    }
}
