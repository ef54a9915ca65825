//! Sampling plugins.

use std::cell::RefCell;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::raw::sampling_plugin::exports::corral::plugin::sampling as exported;
use crate::{Candidate, Statistics, Token};

/// What chooses the tokens of one text; [`sampling!`](crate::sampling!) makes a plugin of it.
///
/// A call may take 50 ms of processor time. What ends with an error ends the generation, and no other.
///
/// ```standalone_crate
/// use corral_sdk::role::{Beginning, Needs, Sampler, Told};
/// use corral_sdk::{Token, testing::Bench};
///
/// /// Never the likeliest.
/// struct Second;
///
/// impl Sampler for Second {
///     fn start(_: Beginning) -> Result<Self, String> {
///         Ok(Second)
///     }
///
///     fn needs(&self) -> Needs {
///         Needs::candidates(2)
///     }
///
///     fn sample(&mut self, told: Told) -> Result<Token, String> {
///         Ok(told.candidates[told.candidates.len() - 1].token)
///     }
/// }
///
/// corral_sdk::sampling!(Second);
///
/// # fn main() {
/// let mut bench = Bench::<Second>::start("", 1).unwrap();
/// assert_eq!(bench.sample(&[(10, 2.0), (11, 1.0), (12, 0.0)]), Ok(11));
/// # }
/// ```
pub trait Sampler: Sized + 'static {
    /// At the beginning of a text. The error says what the settings should have been.
    fn start(beginning: Beginning) -> Result<Self, String>;

    /// What it wants to be shown: asked once, before the first token.
    fn needs(&self) -> Needs;

    /// Chooses one of the candidates.
    fn sample(&mut self, told: Told) -> Result<Token, String>;
}

/// What is known when a text begins.
#[derive(Debug, Clone, PartialEq)]
pub struct Beginning {
    /// What the caller wrote for the sampler; empty if nothing.
    pub settings: String,
    /// For random numbers: the same seed, settings and distributions have to choose the same tokens.
    pub seed: u64,
    /// Number of tokens of the model's vocabulary.
    pub vocabulary: u32,
}

impl Beginning {
    /// The settings, read from a JSON object. None at all are those of `{}`.
    pub fn settings<T: DeserializeOwned>(&self) -> Result<T, String> {
        let text = match self.settings.trim() {
            "" => "{}",
            text => text,
        };
        // Not at once: a list would do for a structure.
        serde_json::from_str::<Map<String, Value>>(text)
            .and_then(|members| serde_json::from_value(Value::from(members)))
            .map_err(|error| format!("the settings {text}: {error}"))
    }
}

/// What a sampler wants to be shown. Less is quicker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// So many of the likeliest tokens, from 1 to 4,096.
    pub candidates: u32,
    /// With [`Told::statistics`], for which the host reads the whole distribution.
    pub statistics: bool,
    /// So many tokens of the text that the generation goes on with, its last ones, at most 65,536.
    pub history: u32,
}

impl Needs {
    /// So many of the likeliest tokens, and nothing else.
    pub fn candidates(count: u32) -> Self {
        Needs {
            candidates: count,
            statistics: false,
            history: 0,
        }
    }
}

/// What may come next, as a sampler is shown it.
#[derive(Debug, Clone, PartialEq)]
pub struct Told {
    /// The likeliest tokens, falling by logit. At least one, and all are finite.
    pub candidates: Vec<Candidate>,
    /// Of the whole distribution, if asked for.
    pub statistics: Option<Statistics>,
    /// What was added to the text since the last call; before the first one, as much as was asked for.
    pub since: Vec<Token>,
    /// Length of the text.
    pub position: u32,
}

/// The plugin that [`sampling!`](crate::sampling!) exports for a sampler.
#[doc(hidden)]
pub struct Plugin<S>(std::marker::PhantomData<S>);

/// One text's sampler, as the host holds it.
#[doc(hidden)]
pub struct Held<S>(RefCell<S>);

impl<S: Sampler> exported::Guest for Plugin<S> {
    type Sampler = Held<S>;
}

impl<S: Sampler> exported::GuestSampler for Held<S> {
    fn start(beginning: exported::Beginning) -> Result<exported::Sampler, String> {
        let sampler = S::start(Beginning {
            settings: beginning.settings,
            seed: beginning.seed,
            vocabulary: beginning.vocabulary,
        })?;
        Ok(exported::Sampler::new(Held(RefCell::new(sampler))))
    }

    fn needs(&self) -> exported::Needs {
        let needs = self.0.borrow().needs();
        exported::Needs {
            candidates: needs.candidates,
            statistics: needs.statistics,
            history: needs.history,
        }
    }

    fn sample(&self, told: exported::Distribution) -> Result<Token, String> {
        let candidates = told.candidates.into_iter();
        let told = Told {
            candidates: candidates
                .map(|exported::Candidate { token, logit }| Candidate { token, logit })
                .collect(),
            statistics: told.statistics.map(|statistics| Statistics {
                log_normalizer: statistics.log_normalizer,
                entropy: statistics.entropy,
            }),
            since: told.since,
            position: told.position,
        };
        self.0.borrow_mut().sample(told)
    }
}

/// Makes a [`Sampler`] a sampling plugin, which deployments link under a name:
/// [`Generate::sample_with`](crate::Generate::sample_with).
#[macro_export]
macro_rules! sampling {
    ($sampler:ty) => {
        #[allow(unsafe_code)]
        const _: () = {
            type Exported = $crate::role::sampling::Plugin<$sampler>;
            $crate::raw::sampling_plugin::export!(
                Exported with_types_in $crate::raw::sampling_plugin
            );
        };
    };
}
