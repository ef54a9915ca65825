//! Sampling plugins.

use std::cell::RefCell;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::bindings::sampling_plugin::exports::corral::plugin::sampling as exported;
use crate::{Candidate, Statistics, Token};

/// Samples the tokens of one generation. [`sampling!`](crate::sampling!) exports it as a plugin.
///
/// A call may take 50 ms of CPU time. An error ends this generation and no other.
///
/// ```standalone_crate
/// use corral_sdk::linked::{SamplerContext, SamplerNeeds, Sampler, SamplerInput};
/// use corral_sdk::{Token, testing::SamplerHarness};
///
/// /// Chooses the second most likely token.
/// struct Second;
///
/// impl Sampler for Second {
///     fn start(_: SamplerContext) -> Result<Self, String> {
///         Ok(Second)
///     }
///
///     fn needs(&self) -> SamplerNeeds {
///         SamplerNeeds::candidates(2)
///     }
///
///     fn sample(&mut self, input: SamplerInput) -> Result<Token, String> {
///         Ok(input.candidates[input.candidates.len() - 1].token)
///     }
/// }
///
/// corral_sdk::sampling!(Second);
///
/// # fn main() {
/// let mut harness = SamplerHarness::<Second>::start("", 1).unwrap();
/// assert_eq!(harness.sample(&[(10, 2.0), (11, 1.0), (12, 0.0)]), Ok(11));
/// # }
/// ```
pub trait Sampler: Sized + 'static {
    /// Starts a generation. The error says what is wrong with the settings.
    fn start(context: SamplerContext) -> Result<Self, String>;

    /// Returns the input that the sampler needs. Called once, before the first token.
    fn needs(&self) -> SamplerNeeds;

    /// Chooses one of the candidates.
    fn sample(&mut self, input: SamplerInput) -> Result<Token, String>;
}

/// The input of [`Sampler::start`].
#[derive(Debug, Clone, PartialEq)]
pub struct SamplerContext {
    /// The caller's settings for the sampler; empty if there are none.
    pub settings: String,
    /// The random seed: the same seed, settings and distributions must give the same tokens.
    pub seed: u64,
    /// Size of the model's vocabulary.
    pub vocabulary: u32,
}

impl SamplerContext {
    /// Parses the settings from a JSON object; empty settings are `{}`.
    pub fn parse_settings<T: DeserializeOwned>(&self) -> Result<T, String> {
        let text = match self.settings.trim() {
            "" => "{}",
            text => text,
        };
        // In two steps, since serde also accepts an array for a struct.
        serde_json::from_str::<Map<String, Value>>(text)
            .and_then(|members| serde_json::from_value(Value::from(members)))
            .map_err(|error| format!("invalid settings {text}: {error}"))
    }
}

/// The input that a sampler needs for each token. Less is faster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SamplerNeeds {
    /// Number of most likely tokens, from 1 to 4,096.
    pub candidates: u32,
    /// Whether [`SamplerInput::statistics`] is needed. The host then reads the whole distribution.
    pub statistics: bool,
    /// Number of tokens before the generation to pass to the first call, at most 65,536.
    pub history: u32,
}

impl SamplerNeeds {
    /// The `count` most likely tokens, and nothing else.
    pub fn candidates(count: u32) -> Self {
        SamplerNeeds {
            candidates: count,
            statistics: false,
            history: 0,
        }
    }
}

/// The input of [`Sampler::sample`].
#[derive(Debug, Clone, PartialEq)]
pub struct SamplerInput {
    /// The most likely tokens in descending order of logit. There is at least one, and all logits
    /// are finite.
    pub candidates: Vec<Candidate>,
    /// Statistics of the whole distribution, if requested.
    pub statistics: Option<Statistics>,
    /// Tokens appended since the previous call; in the first call, the requested history.
    pub new_tokens: Vec<Token>,
    /// Length of the sequence.
    pub position: u32,
}

#[doc(hidden)]
pub struct ExportedPlugin<S>(std::marker::PhantomData<S>);

#[doc(hidden)]
pub struct ExportedSampler<S>(RefCell<S>);

impl<S: Sampler> exported::Guest for ExportedPlugin<S> {
    type Sampler = ExportedSampler<S>;
}

impl<S: Sampler> exported::GuestSampler for ExportedSampler<S> {
    fn start(context: exported::SamplerContext) -> Result<exported::Sampler, String> {
        let sampler = S::start(SamplerContext {
            settings: context.settings,
            seed: context.seed,
            vocabulary: context.vocabulary,
        })?;
        Ok(exported::Sampler::new(ExportedSampler(RefCell::new(
            sampler,
        ))))
    }

    fn needs(&self) -> exported::Needs {
        let needs = self.0.borrow().needs();
        exported::Needs {
            candidates: needs.candidates,
            statistics: needs.statistics,
            history: needs.history,
        }
    }

    fn sample(&self, input: exported::Distribution) -> Result<Token, String> {
        let candidates = input.candidates.into_iter();
        let input = SamplerInput {
            candidates: candidates
                .map(|exported::Candidate { token, logit }| Candidate { token, logit })
                .collect(),
            statistics: input.statistics.map(|statistics| Statistics {
                log_normalizer: statistics.log_normalizer,
                entropy: statistics.entropy,
            }),
            new_tokens: input.new_tokens,
            position: input.position,
        };
        self.0.borrow_mut().sample(input)
    }
}

/// Exports a [`Sampler`] as a sampling plugin. Deployments link it under a name:
/// [`GenerateOptions::sample_with`](crate::GenerateOptions::sample_with).
#[macro_export]
macro_rules! sampling {
    ($sampler:ty) => {
        #[allow(unsafe_code)]
        const _: () = {
            type Exported = $crate::linked::sampling::ExportedPlugin<$sampler>;
            $crate::bindings::sampling_plugin::export!(
                Exported with_types_in $crate::bindings::sampling_plugin
            );
        };
    };
}
