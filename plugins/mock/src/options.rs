//! `options` of `inference`.

use corral_sdk::testing::host;

use crate::bindings::exports::corral::inference::constraints::ConstraintBorrow;
use crate::bindings::exports::corral::inference::inference::{Dry, GuestOptions, Penalties};
use crate::bindings::exports::corral::inference::types::{Error, Token};
use crate::models::MockConstraint;
use crate::{Mock, convert};

pub(crate) struct MockOptions(pub(crate) host::Options);

/// Functions that pass their arguments on.
macro_rules! passed_on {
    ($($function:ident($($argument:ident: $type:ty),*);)*) => {
        $(
            fn $function(&self, $($argument: $type),*) -> Result<(), Error> {
                self.0.$function($($argument),*).map_err(convert::error)
            }
        )*
    };
}

impl GuestOptions for MockOptions {
    fn new(max_tokens: u32) -> Self {
        Mock::start();
        MockOptions(host::Options::new(max_tokens))
    }

    fn seed(&self, seed: u64) {
        self.0.seed(seed);
    }

    fn stop(&self, text: String) -> Result<(), Error> {
        self.0.stop(&text).map_err(convert::error)
    }

    fn ignore_eos(&self) {
        self.0.ignore_eos();
    }

    passed_on! {
        temperature(value: f32);
        top_k(count: u32);
        top_p(mass: f32);
        min_p(ratio: f32);
        dynamic_temperature(temperature: f32, delta: f32, exponent: f32);
        typical_p(mass: f32);
        top_n_sigma(count: f32);
        xtc(probability: f32, threshold: f32);
        mirostat(tau: f32, eta: f32);
        logprobs(top: u8);
        speculate(max_tokens: u8);
    }

    fn dry(&self, settings: Dry) -> Result<(), Error> {
        self.0.dry(&convert::dry(settings)).map_err(convert::error)
    }

    fn penalties(&self, settings: Penalties) -> Result<(), Error> {
        let settings = convert::penalties(settings);
        self.0.penalties(settings).map_err(convert::error)
    }

    fn output_penalties(&self, settings: Penalties) -> Result<(), Error> {
        let settings = convert::penalties(settings);
        self.0.output_penalties(settings).map_err(convert::error)
    }

    fn logit_bias(&self, biases: Vec<(Token, f32)>) -> Result<(), Error> {
        self.0.logit_bias(&biases).map_err(convert::error)
    }

    fn constrain(&self, constraint: ConstraintBorrow<'_>) {
        self.0.constrain(&constraint.get::<MockConstraint>().0);
    }

    fn adapter(&self, name: String) {
        self.0.adapter(&name);
    }
}
