//! Generation settings.

use std::fmt;

use crate::backend;
use crate::bindings::inference::{Dry, Penalties};
use crate::{Constraint, Error, Token};

/// Generation settings. The default is greedy sampling (always the most likely token). Each sampler
/// is appended to a chain; the host applies them in this order and draws a token from the remaining
/// ones.
///
/// [`Sequence::generate`](crate::Sequence::generate) reports a number outside its range, so that
/// calls can be chained.
///
/// ```
/// use corral_sdk::{Error, GenerateOptions, Model, testing::Script};
///
/// let script = Script::new().answers("Once", " upon a time");
/// let options = || GenerateOptions::new(64).top_p(0.9).temperature(0.7).seed(1).stop("\n");
/// let text = script.run(async {
///     let sequence = Model::open_default().await?.sequence()?;
///     sequence.append("Once")?;
///     sequence.generate(&options())?.text().await
/// });
/// assert_eq!(text.unwrap(), " upon a time");
/// ```
pub struct GenerateOptions {
    options: backend::Options,
    /// The first invalid setting.
    error: Option<Error>,
}

/// Setters that pass their arguments on to the host, and keep its first error.
macro_rules! setters {
    ($($(#[$doc:meta])* $function:ident($($argument:ident: $type:ty),*);)*) => {
        $(
            $(#[$doc])*
            pub fn $function(mut self, $($argument: $type),*) -> Self {
                if let (Err(error), None) = (self.options.$function($($argument),*), &self.error) {
                    self.error = Some(error.into());
                }
                self
            }
        )*
    };
}

impl GenerateOptions {
    /// Generates at most `max_tokens` tokens, 1 or more.
    pub fn new(max_tokens: u32) -> Self {
        GenerateOptions {
            options: backend::Options::new(max_tokens),
            error: None,
        }
    }

    /// Sets the random seed. The same sequence, settings and seed draw the same tokens.
    pub fn seed(self, seed: u64) -> Self {
        self.options.seed(seed);
        self
    }

    setters! {
        /// Adds a stop string: the generation ends when it appears. 1 to 256 bytes; at most 16 stop
        /// strings.
        stop(text: &str);
    }

    /// Calls [`stop`](GenerateOptions::stop) for each text.
    pub fn stops(self, texts: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let mut options = self;
        for text in texts {
            options = options.stop(text.as_ref());
        }
        options
    }

    /// Continues after end-of-generation tokens.
    pub fn ignore_eos(self) -> Self {
        self.options.ignore_eos();
        self
    }

    setters! {
        /// Sampler: divides the logits by `value`; with 0 only the most likely token remains.
        temperature(value: f32);

        /// Sampler: keeps the `count` most likely tokens; 0 keeps all.
        top_k(count: u32);

        /// Sampler: keeps the smallest set of most likely tokens whose probabilities sum to at least
        /// `mass`, from 0 to 1.
        top_p(mass: f32);

        /// Sampler: keeps tokens at least `ratio` times as likely as the most likely one, from 0 to 1.
        min_p(ratio: f32);

        /// Sampler: divides the logits by a temperature that rises with the distribution's entropy.
        dynamic_temperature(temperature: f32, delta: f32, exponent: f32);

        /// Sampler: locally typical sampling up to the probability `mass`.
        typical_p(mass: f32);

        /// Sampler: keeps tokens whose logit is at most `count` standard deviations below the highest.
        top_n_sigma(count: f32);

        /// Sampler: exclude top choices. With the given probability, removes every token at least as
        /// likely as `threshold` except the least likely of them.
        xtc(probability: f32, threshold: f32);

        /// Sampler: DRY. Penalizes tokens that would extend a repetition.
        dry(settings: &Dry);

        /// Sampler: penalizes tokens that occur among the last tokens of the sequence.
        penalties(settings: Penalties);

        /// Sampler: like [`penalties`](GenerateOptions::penalties), but counts generated tokens only,
        /// not the prompt.
        output_penalties(settings: Penalties);

        /// Sampler: adds a bias to the logits of tokens; minus infinity bans a token.
        logit_bias(biases: &[(Token, f32)]);

        /// Sampler: Mirostat 2, which must be the last. Keeps the text's surprise near `tau` bits with
        /// the learning rate `eta`.
        mirostat(tau: f32, eta: f32);
    }

    /// Constrains the generated text.
    pub fn constrain(self, constraint: &Constraint) -> Self {
        self.options.constrain(constraint.host());
        self
    }

    setters! {
        /// Returns the log probability of each generated token and of the `top` most likely ones, at
        /// most 20.
        logprobs(top: u8);

        /// Allows speculative decoding with up to `max_tokens` drafted tokens, at most 16. The text stays the
        /// same.
        speculate(max_tokens: u8);
    }

    /// Generates with this LoRA adapter, one of `info().adapters`.
    pub fn adapter(self, name: &str) -> Self {
        self.options.adapter(name);
        self
    }

    /// Samples with a linked sampling plugin instead of the samplers above. Wrong `settings` are
    /// [`Error::Invalid`] with the plugin's message; an unknown name is [`Error::NotFound`].
    pub async fn sample_with(self, name: &str, settings: &str) -> Result<Self, Error> {
        let result = backend::sample_with(&self.options, name.to_owned(), settings.to_owned());
        result.await?;
        Ok(self)
    }

    pub(crate) fn host(&self) -> Result<&backend::Options, Error> {
        match &self.error {
            Some(error) => Err(error.clone()),
            None => Ok(&self.options),
        }
    }
}

impl fmt::Debug for GenerateOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GenerateOptions")
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}
