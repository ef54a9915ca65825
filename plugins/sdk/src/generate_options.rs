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

impl GenerateOptions {
    /// Generates at most `max_tokens` tokens, 1 or more.
    pub fn new(max_tokens: u32) -> Self {
        GenerateOptions {
            options: backend::Options::new(max_tokens),
            error: None,
        }
    }

    fn checked(mut self, result: Result<(), crate::bindings::types::Error>) -> Self {
        if let (Err(error), None) = (result, &self.error) {
            self.error = Some(error.into());
        }
        self
    }

    /// Sets the random seed. The same sequence, settings and seed draw the same tokens.
    pub fn seed(self, seed: u64) -> Self {
        self.options.seed(seed);
        self
    }

    /// Adds a stop string: the generation ends when it appears. 1 to 256 bytes; at most 16 stop
    /// strings.
    pub fn stop(self, text: &str) -> Self {
        let result = self.options.stop(text);
        self.checked(result)
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

    /// Sampler: divides the logits by `value`; with 0 only the most likely token remains.
    pub fn temperature(self, value: f32) -> Self {
        let result = self.options.temperature(value);
        self.checked(result)
    }

    /// Sampler: keeps the `count` most likely tokens; 0 keeps all.
    pub fn top_k(self, count: u32) -> Self {
        let result = self.options.top_k(count);
        self.checked(result)
    }

    /// Sampler: keeps the smallest set of most likely tokens whose probabilities sum to at least
    /// `mass`, from 0 to 1.
    pub fn top_p(self, mass: f32) -> Self {
        let result = self.options.top_p(mass);
        self.checked(result)
    }

    /// Sampler: keeps tokens at least `ratio` times as likely as the most likely one, from 0 to 1.
    pub fn min_p(self, ratio: f32) -> Self {
        let result = self.options.min_p(ratio);
        self.checked(result)
    }

    /// Sampler: divides the logits by a temperature that rises with the distribution's entropy.
    pub fn dynamic_temperature(self, temperature: f32, delta: f32, exponent: f32) -> Self {
        let result = self
            .options
            .dynamic_temperature(temperature, delta, exponent);
        self.checked(result)
    }

    /// Sampler: locally typical sampling up to the probability `mass`.
    pub fn typical_p(self, mass: f32) -> Self {
        let result = self.options.typical_p(mass);
        self.checked(result)
    }

    /// Sampler: keeps tokens whose logit is at most `count` standard deviations below the highest.
    pub fn top_n_sigma(self, count: f32) -> Self {
        let result = self.options.top_n_sigma(count);
        self.checked(result)
    }

    /// Sampler: exclude top choices. With the given probability, removes every token at least as
    /// likely as `threshold` except the least likely of them.
    pub fn xtc(self, probability: f32, threshold: f32) -> Self {
        let result = self.options.xtc(probability, threshold);
        self.checked(result)
    }

    /// Sampler: DRY. Penalizes tokens that would extend a repetition.
    pub fn dry(self, settings: &Dry) -> Self {
        let result = self.options.dry(settings);
        self.checked(result)
    }

    /// Sampler: penalizes tokens that occur among the last tokens of the sequence.
    pub fn penalties(self, settings: Penalties) -> Self {
        let result = self.options.penalties(settings);
        self.checked(result)
    }

    /// Sampler: like [`penalties`](GenerateOptions::penalties), but counts generated tokens only,
    /// not the prompt.
    pub fn output_penalties(self, settings: Penalties) -> Self {
        let result = self.options.output_penalties(settings);
        self.checked(result)
    }

    /// Sampler: adds a bias to the logits of tokens; minus infinity bans a token.
    pub fn logit_bias(self, biases: &[(Token, f32)]) -> Self {
        let result = self.options.logit_bias(biases);
        self.checked(result)
    }

    /// Sampler: Mirostat 2, which must be the last. Keeps the text's surprise near `tau` bits with
    /// the learning rate `eta`.
    pub fn mirostat(self, tau: f32, eta: f32) -> Self {
        let result = self.options.mirostat(tau, eta);
        self.checked(result)
    }

    /// Constrains the generated text.
    pub fn constrain(self, constraint: &Constraint) -> Self {
        self.options.constrain(constraint.host());
        self
    }

    /// Returns the log probability of each generated token and of the `top` most likely ones, at
    /// most 20.
    pub fn logprobs(self, top: u8) -> Self {
        let result = self.options.logprobs(top);
        self.checked(result)
    }

    /// Allows speculative decoding with up to `max_tokens` drafted tokens, at most 16. The text stays the
    /// same.
    pub fn speculate(self, max_tokens: u8) -> Self {
        let result = self.options.speculate(max_tokens);
        self.checked(result)
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
