//! `corral:inference/inference`: how to generate.

use super::bindings::corral::inference::inference as guest;
use super::bindings::corral::inference::inference::{
    Host, HostOptions, HostOptionsWithStore, Token,
};
use super::{Answer, Constraint, HANDLES, invalid, sampling, take, wit};
use crate::sampling::Linked;
use crate::state::State;
use corral_engine::sampling::{Dry, DryBreakers, MAX_SAMPLERS, MAX_TOP_LOGPROBS, Penalties};
use corral_engine::{Engine, Error, MAX_DRAFTS, MAX_STOP_BYTES, MAX_STOPS, Sampler};
use std::sync::Arc;
use wasmtime::component::{Accessor, HasSelf, Resource};

/// Longest name of an adapter, in bytes.
const ADAPTER_BYTES: usize = 256;

/// How to generate, while the guest is still adding to it.
#[derive(Default)]
pub struct Options {
    engine: corral_engine::Options,
    /// Texts where DRY's repetitions end, by the place of its link: they become tokens when the model
    /// is known.
    breakers: Vec<(usize, Vec<String>)>,
    /// Who chooses the tokens in place of samplers.
    linked: Option<Linked>,
}

impl Options {
    /// At most so many tokens.
    pub(super) fn max_tokens(&self) -> u32 {
        self.engine.max_tokens
    }

    /// The options for a model.
    pub(super) fn of(&self, engine: &Engine) -> Result<corral_engine::Options, Error> {
        let mut options = self.engine.clone();
        if let Some(linked) = &self.linked {
            options.chooser = Some(linked.choosers(engine.info().vocabulary));
        }
        for (place, texts) in &self.breakers {
            if let Some(Sampler::Dry(dry)) = options.samplers.get_mut(*place) {
                dry.breakers = engine.breakers(texts)?;
            }
        }
        Ok(options)
    }

    /// Whether a sampling plugin may choose the tokens.
    pub(super) fn check_unsampled(&self) -> Result<(), wit::Error> {
        if self.engine.samplers.is_empty() {
            return Ok(());
        }
        Err(wit::Error::Invalid(
            "these options have samplers, and a sampling plugin takes their place; use others"
                .into(),
        ))
    }

    /// Lets a sampling plugin choose the tokens, in place of what was to choose them before.
    pub(super) fn sample_with(&mut self, linked: Linked) {
        self.linked = Some(linked);
    }
}

/// A guest's settings of penalties as the engine has them.
fn penalties(settings: &guest::Penalties) -> Penalties {
    Penalties {
        last_n: settings.last,
        repeat: settings.repeat,
        frequency: settings.frequency,
        presence: settings.presence,
    }
}

impl Host for State {}

impl State {
    fn sampler(&mut self, options: &Resource<Options>, sampler: Sampler) -> Answer<()> {
        let options = self.table.get_mut(options)?;
        if options.linked.is_some() {
            return invalid(
                "a sampling plugin chooses the tokens of these options; it takes the samplers' place",
            );
        }
        let options = &mut options.engine;
        let second =
            |link: &Sampler| matches!((link, &sampler), (Sampler::Dry(_), Sampler::Dry(_)));
        if options.samplers.iter().any(second) {
            return invalid("a chain may have one DRY sampler");
        }
        if options.samplers.len() >= MAX_SAMPLERS {
            return invalid(format!("a chain may have {MAX_SAMPLERS} samplers"));
        }
        if let Err(error) = sampler.check() {
            return Ok(Err(error.into()));
        }
        options.samplers.push(sampler);
        Ok(Ok(()))
    }
}

impl HostOptionsWithStore<State> for HasSelf<State> {
    async fn sample_with(
        store: &Accessor<State, Self>,
        options: Resource<Options>,
        name: String,
        settings: String,
    ) -> Answer<()> {
        sampling::sample_with(store, options, name, settings).await
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
        if let Err(error) = DryBreakers::check(&settings.breakers) {
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
        self.sampler(&options, Sampler::Penalties(penalties(&settings)))
    }

    fn answer_penalties(
        &mut self,
        options: Resource<Options>,
        settings: guest::Penalties,
    ) -> Answer<()> {
        self.sampler(&options, Sampler::OutputPenalties(penalties(&settings)))
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
