//! `corral:inference/inference`: options of generations.

use super::bindings::corral::inference::inference as guest;
use super::bindings::corral::inference::inference::{Host, HostOptions, Token};
use super::{GuestConstraint, HostResult, MAX_HANDLES, invalid, take_handle, wit};
use crate::counters::ResourceKind;
use crate::sampling::CheckedSampler;
use crate::state::State;
use corral_engine::sampling::{Dry, DryBreakers, MAX_SAMPLERS, MAX_TOP_LOGPROBS, Penalties};
use corral_engine::{Engine, Error, MAX_DRAFTS, MAX_STOP_BYTES, MAX_STOPS, Sampler};
use std::sync::Arc;
use wasmtime::component::Resource;

/// Longest name of an adapter, in characters.
const MAX_ADAPTER_CHARS: usize = 256;

/// Options that a guest is setting.
#[derive(Default)]
pub struct GuestOptions {
    options: corral_engine::GenerateOptions,
    /// Sequence breakers of DRY samplers, by the sampler's index. They are tokenized when the model is known.
    breakers: Vec<(usize, Vec<String>)>,
    /// Samples the tokens instead of a sampler chain.
    sampling_plugin: Option<CheckedSampler>,
    /// Those of [`GuestOptions::bytes`] that are counted.
    counted_bytes: usize,
}

impl GuestOptions {
    pub(super) fn max_tokens(&self) -> u32 {
        self.options.max_tokens
    }

    /// The options for a model.
    pub(super) fn for_engine(
        &self,
        engine: &Engine,
    ) -> Result<corral_engine::GenerateOptions, Error> {
        let mut options = self.options.clone();
        if let Some(sampler) = &self.sampling_plugin {
            options.external_sampler = Some(sampler.factory(engine.info().vocabulary));
        }
        for (index, texts) in &self.breakers {
            if let Some(Sampler::Dry(dry)) = options.samplers.get_mut(*index) {
                dry.breakers = engine.dry_breakers(texts)?;
            }
        }
        Ok(options)
    }

    /// Bytes of texts and biases.
    fn bytes(&self) -> usize {
        let stops = self.options.stop.iter().map(String::len);
        let breakers = self.breakers.iter().flat_map(|(_, texts)| texts);
        let biases = self.options.samplers.iter().map(|sampler| match sampler {
            Sampler::LogitBias(biases) => size_of_val(biases.as_slice()),
            _ => 0,
        });
        let settings = self.sampling_plugin.iter();
        let settings = settings.map(CheckedSampler::settings_bytes);
        let texts = stops.chain(breakers.map(String::len)).chain(settings);
        texts.chain(biases).sum()
    }

    /// Checks that a sampling plugin may be set.
    pub(super) fn check_no_samplers(&self) -> Result<(), wit::Error> {
        if self.options.samplers.is_empty() {
            return Ok(());
        }
        Err(wit::Error::Invalid(
            "these options have samplers, which cannot be combined with a sampling plugin; use new options"
                .into(),
        ))
    }

    /// Sets the sampling plugin, and replaces an earlier one.
    pub(super) fn set_sampling_plugin(&mut self, sampler: CheckedSampler) {
        self.sampling_plugin = Some(sampler);
    }
}

impl From<guest::Penalties> for Penalties {
    fn from(penalties: guest::Penalties) -> Self {
        Self {
            last_n: penalties.last_n,
            repeat: penalties.repeat,
            frequency: penalties.frequency,
            presence: penalties.presence,
        }
    }
}

impl Host for State {}

impl State {
    /// Counts the bytes of options that have changed.
    pub(super) fn count_option_bytes(
        &mut self,
        options: &Resource<GuestOptions>,
    ) -> HostResult<()> {
        let options = self.table.get_mut(options)?;
        let bytes = options.bytes();
        let counted = std::mem::replace(&mut options.counted_bytes, bytes);
        self.handles.counts.add(ResourceKind::OptionBytes, bytes);
        self.handles
            .counts
            .remove(ResourceKind::OptionBytes, counted);
        Ok(())
    }

    fn add_sampler(
        &mut self,
        options: &Resource<GuestOptions>,
        sampler: Sampler,
    ) -> HostResult<()> {
        let options = self.table.get_mut(options)?;
        if options.sampling_plugin.is_some() {
            return invalid(
                "these options have a sampling plugin, which cannot be combined with samplers",
            );
        }
        let samplers = &mut options.options.samplers;
        let is_dry = |sampler: &Sampler| matches!(sampler, Sampler::Dry(_));
        if is_dry(&sampler) && samplers.iter().any(is_dry) {
            return invalid("a sampler chain may have one DRY sampler");
        }
        if samplers.len() >= MAX_SAMPLERS {
            return invalid(format!("a sampler chain may have {MAX_SAMPLERS} samplers"));
        }
        sampler.check()?;
        samplers.push(sampler);
        Ok(())
    }
}

/// Functions that add the sampler of their arguments.
macro_rules! samplers {
    ($($function:ident($($argument:ident: $type:ty),*) => $sampler:expr;)*) => {
        $(
            fn $function(
                &mut self,
                options: Resource<GuestOptions>,
                $($argument: $type),*
            ) -> HostResult<()> {
                self.add_sampler(&options, $sampler)
            }
        )*
    };
}

impl HostOptions for State {
    fn new(&mut self, max_tokens: u32) -> wasmtime::Result<Resource<GuestOptions>> {
        if take_handle(&mut self.handles, ResourceKind::Options, "options").is_err() {
            wasmtime::bail!("the plugin holds the maximum of {MAX_HANDLES} options; drop some");
        }
        let mut options = GuestOptions::default();
        options.options.max_tokens = max_tokens;
        Ok(self.table.push(options)?)
    }

    fn seed(&mut self, options: Resource<GuestOptions>, seed: u64) -> wasmtime::Result<()> {
        self.table.get_mut(&options)?.options.seed = Some(seed);
        Ok(())
    }

    fn stop(&mut self, options: Resource<GuestOptions>, text: String) -> HostResult<()> {
        let changed = &mut self.table.get_mut(&options)?.options;
        if text.is_empty() || text.len() > MAX_STOP_BYTES {
            return invalid(format!(
                "a stop string has {} bytes; it must have 1 to {MAX_STOP_BYTES}",
                text.len()
            ));
        }
        if changed.stop.len() >= MAX_STOPS {
            return invalid(format!("options may have {MAX_STOPS} stop strings"));
        }
        changed.stop.push(text);
        self.count_option_bytes(&options)
    }

    fn ignore_eos(&mut self, options: Resource<GuestOptions>) -> wasmtime::Result<()> {
        self.table.get_mut(&options)?.options.ignore_eos = true;
        Ok(())
    }

    samplers! {
        temperature(value: f32) => Sampler::Temperature(value);
        top_k(count: u32) => Sampler::TopK(count);
        top_p(mass: f32) => Sampler::TopP(mass);
        min_p(ratio: f32) => Sampler::MinP(ratio);
        dynamic_temperature(temperature: f32, range: f32, exponent: f32) =>
            Sampler::DynamicTemperature { temperature, range, exponent };
        typical_p(mass: f32) => Sampler::TypicalP(mass);
        top_n_sigma(count: f32) => Sampler::TopNSigma(count);
        xtc(probability: f32, threshold: f32) => Sampler::Xtc { probability, threshold };
        penalties(settings: guest::Penalties) => Sampler::Penalties(settings.into());
        output_penalties(settings: guest::Penalties) => Sampler::OutputPenalties(settings.into());
        mirostat(tau: f32, eta: f32) => Sampler::Mirostat { tau, eta };
    }

    fn dry(&mut self, options: Resource<GuestOptions>, settings: guest::Dry) -> HostResult<()> {
        DryBreakers::check(&settings.breakers)?;
        let sampler = Sampler::Dry(Dry {
            multiplier: settings.multiplier,
            base: settings.base,
            allowed_length: settings.allowed_length,
            last_n: settings.last_n,
            breakers: Arc::default(),
        });
        self.add_sampler(&options, sampler)?;
        let changed = self.table.get_mut(&options)?;
        let index = changed.options.samplers.len() - 1;
        changed.breakers.push((index, settings.breakers));
        self.count_option_bytes(&options)
    }

    fn logit_bias(
        &mut self,
        options: Resource<GuestOptions>,
        biases: Vec<(Token, f32)>,
    ) -> HostResult<()> {
        self.add_sampler(&options, Sampler::LogitBias(biases))?;
        self.count_option_bytes(&options)
    }

    fn constrain(
        &mut self,
        options: Resource<GuestOptions>,
        constraint: Resource<GuestConstraint>,
    ) -> wasmtime::Result<()> {
        let constraint = self.table.get(&constraint)?.0.clone();
        self.table.get_mut(&options)?.options.constraint = Some(constraint);
        Ok(())
    }

    fn logprobs(&mut self, options: Resource<GuestOptions>, top: u8) -> HostResult<()> {
        if usize::from(top) > MAX_TOP_LOGPROBS {
            return invalid(format!(
                "logprobs of the top {top} tokens are not available; ask for at most {MAX_TOP_LOGPROBS}"
            ));
        }
        self.table.get_mut(&options)?.options.logprobs = Some(top);
        Ok(())
    }

    fn speculate(&mut self, options: Resource<GuestOptions>, max_tokens: u8) -> HostResult<()> {
        if max_tokens > MAX_DRAFTS {
            return invalid(format!(
                "a draft of {max_tokens} tokens is too long; it may have {MAX_DRAFTS}"
            ));
        }
        self.table.get_mut(&options)?.options.max_draft_tokens = Some(max_tokens);
        Ok(())
    }

    fn adapter(&mut self, options: Resource<GuestOptions>, name: String) -> wasmtime::Result<()> {
        // No adapter has a longer name, so a truncated name is as unknown as the whole one.
        let name = name.chars().take(MAX_ADAPTER_CHARS).collect();
        self.table.get_mut(&options)?.options.adapter = Some(name);
        Ok(())
    }

    fn drop(&mut self, options: Resource<GuestOptions>) -> wasmtime::Result<()> {
        let options = self.table.delete(options)?;
        self.handles
            .counts
            .remove(ResourceKind::OptionBytes, options.counted_bytes);
        self.handles.counts.remove(ResourceKind::Options, 1);
        Ok(())
    }
}
