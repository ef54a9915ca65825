//! How to generate.

use std::fmt;

use crate::backend;
use crate::raw::inference::{Dry, Penalties};
use crate::{Constraint, Error, Token};

/// How the host shall generate. A fresh one always takes the likeliest token; each sampler adds a link to
/// a chain, applied in the order in which they were added, and what is left at the end is drawn from.
///
/// A number out of its range is told by [`Sequence::generate`](crate::Sequence::generate), so that calls
/// can be chained.
///
/// ```
/// use corral_sdk::{Error, Generate, Model, testing::Script};
///
/// let script = Script::new().answers("Once", " upon a time");
/// let how = || Generate::new(64).top_p(0.9).temperature(0.7).seed(1).stop("\n");
/// let text = script.run(async {
///     let sequence = Model::first().await?.sequence()?;
///     sequence.append("Once")?;
///     sequence.generate(&how())?.text().await
/// });
/// assert_eq!(text.unwrap(), " upon a time");
/// ```
pub struct Generate {
    options: backend::Options,
    /// The first thing that was wrong.
    wrong: Option<Error>,
}

impl Generate {
    /// At most so many tokens, 1 or more.
    pub fn new(max_tokens: u32) -> Self {
        Generate {
            options: backend::Options::new(max_tokens),
            wrong: None,
        }
    }

    fn checked(mut self, result: Result<(), crate::raw::types::Error>) -> Self {
        if let (Err(error), None) = (result, &self.wrong) {
            self.wrong = Some(error.into());
        }
        self
    }

    /// Fixes the random numbers: the same sequence, settings and seed draw the same tokens.
    pub fn seed(self, seed: u64) -> Self {
        self.options.seed(seed);
        self
    }

    /// Ends the generation when this text appears in it: 1 to 256 bytes, at most 16 of them.
    pub fn stop(self, text: &str) -> Self {
        let result = self.options.stop(text);
        self.checked(result)
    }

    /// [`stop`](Generate::stop) for each of these.
    pub fn stops(self, texts: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let mut how = self;
        for text in texts {
            how = how.stop(text.as_ref());
        }
        how
    }

    /// Goes on after a token that ends a generation.
    pub fn ignore_end(self) -> Self {
        self.options.ignore_end();
        self
    }

    /// Sampler: divides the logits; at 0 only the likeliest token is left.
    pub fn temperature(self, value: f32) -> Self {
        let result = self.options.temperature(value);
        self.checked(result)
    }

    /// Sampler: keeps so many of the likeliest tokens; 0 keeps all.
    pub fn top_k(self, count: u32) -> Self {
        let result = self.options.top_k(count);
        self.checked(result)
    }

    /// Sampler: keeps the likeliest tokens that have so much probability together, from 0 to 1.
    pub fn top_p(self, mass: f32) -> Self {
        let result = self.options.top_p(mass);
        self.checked(result)
    }

    /// Sampler: keeps the tokens at least so many times as likely as the likeliest, from 0 to 1.
    pub fn min_p(self, ratio: f32) -> Self {
        let result = self.options.min_p(ratio);
        self.checked(result)
    }

    /// Sampler: a temperature that is higher where the distribution is more even.
    pub fn dynamic_temperature(self, temperature: f32, range: f32, exponent: f32) -> Self {
        let result = self
            .options
            .dynamic_temperature(temperature, range, exponent);
        self.checked(result)
    }

    /// Sampler: keeps the tokens whose surprise is nearest to the expected one, up to this probability.
    pub fn typical(self, mass: f32) -> Self {
        let result = self.options.typical(mass);
        self.checked(result)
    }

    /// Sampler: keeps the tokens at most so many standard deviations below the highest logit.
    pub fn top_n_sigma(self, count: f32) -> Self {
        let result = self.options.top_n_sigma(count);
        self.checked(result)
    }

    /// Sampler: with this probability, leaves out the tokens at least as likely as `threshold` but the
    /// least likely of them.
    pub fn xtc(self, probability: f32, threshold: f32) -> Self {
        let result = self.options.xtc(probability, threshold);
        self.checked(result)
    }

    /// Sampler: makes tokens less likely that go on with a repetition.
    pub fn dry(self, settings: &Dry) -> Self {
        let result = self.options.dry(settings);
        self.checked(result)
    }

    /// Sampler: makes tokens less likely that stand among the last ones.
    pub fn penalties(self, settings: Penalties) -> Self {
        let result = self.options.penalties(settings);
        self.checked(result)
    }

    /// Sampler: as [`penalties`](Generate::penalties), but looks back over the tokens of this generation
    /// alone.
    pub fn answer_penalties(self, settings: Penalties) -> Self {
        let result = self.options.answer_penalties(settings);
        self.checked(result)
    }

    /// Sampler: adds to the logits of tokens; minus infinity bans one.
    pub fn logit_bias(self, biases: &[(Token, f32)]) -> Self {
        let result = self.options.logit_bias(biases);
        self.checked(result)
    }

    /// Sampler, the last of its chain: keeps the surprise near `tau` bits, learning at the rate `eta`.
    pub fn mirostat(self, tau: f32, eta: f32) -> Self {
        let result = self.options.mirostat(tau, eta);
        self.checked(result)
    }

    /// Holds the text to a grammar.
    pub fn constrain(self, constraint: &Constraint) -> Self {
        self.options.constrain(constraint.host());
        self
    }

    /// Tells with each token how likely it was, and so many of the likeliest, at most 20.
    pub fn logprobs(self, top: u8) -> Self {
        let result = self.options.logprobs(top);
        self.checked(result)
    }

    /// Lets the host guess up to so many tokens at once, at most 16. The text stays the same.
    pub fn speculate(self, most: u8) -> Self {
        let result = self.options.speculate(most);
        self.checked(result)
    }

    /// Generates with this adapter, one of `info().adapters`.
    pub fn adapter(self, name: &str) -> Self {
        self.options.adapter(name);
        self
    }

    /// Lets a sampling plugin that the deployment links choose the tokens, by its name there, in place of
    /// the samplers above. Wrong `settings` are [`Error::Invalid`], in the plugin's own words, and an
    /// unknown name is [`Error::NotFound`].
    pub async fn sample_with(self, name: &str, settings: &str) -> Result<Self, Error> {
        let result = self
            .options
            .sample_with(name.to_owned(), settings.to_owned());
        result.await?;
        Ok(self)
    }

    pub(crate) fn host(&self) -> Result<&backend::Options, Error> {
        match &self.wrong {
            Some(error) => Err(error.clone()),
            None => Ok(&self.options),
        }
    }
}

impl fmt::Debug for Generate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generate")
            .field("wrong", &self.wrong)
            .finish_non_exhaustive()
    }
}
