//! How to generate, written down.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::engine::{invalid, script};
use super::generating;
use super::grammar::Constraint;
use super::state::State;
use crate::Token;
use crate::raw::inference::{Dry, Penalties};
use crate::raw::types::Error;

/// How to generate: what matters to the script, and all of it in words.
pub(crate) struct Options {
    pub(super) max_tokens: u32,
    pub(super) settings: RefCell<Vec<String>>,
    pub(super) seed: Cell<Option<u64>>,
    pub(super) stops: RefCell<Vec<String>>,
    pub(super) ignore_end: Cell<bool>,
    pub(super) constraint: RefCell<Option<Rc<Vec<Vec<u8>>>>>,
    pub(super) logprobs: Cell<Option<u8>>,
    pub(super) sampler: RefCell<Option<(String, String)>>,
    script: Rc<State>,
}

/// Setters that the script only writes down.
macro_rules! written {
    ($($function:ident($($argument:ident: $type:ty),*) $text:literal;)*) => {
        $(
            pub(crate) fn $function(&self $(, $argument: $type)*) -> Result<(), Error> {
                self.written(format!($text));
                Ok(())
            }
        )*
    };
}

impl Options {
    pub(crate) fn new(max_tokens: u32) -> Self {
        Options {
            max_tokens,
            settings: RefCell::new(vec![format!("max-tokens {max_tokens}")]),
            seed: Cell::default(),
            stops: RefCell::default(),
            ignore_end: Cell::default(),
            constraint: RefCell::default(),
            logprobs: Cell::default(),
            sampler: RefCell::default(),
            script: script(),
        }
    }

    fn written(&self, text: String) {
        self.settings.borrow_mut().push(text);
    }

    pub(crate) fn seed(&self, seed: u64) {
        self.seed.set(Some(seed));
        self.written(format!("seed {seed}"));
    }

    pub(crate) fn stop(&self, text: &str) -> Result<(), Error> {
        if text.is_empty() || text.len() > 256 {
            return invalid("a stop string has 1 to 256 bytes");
        }
        self.stops.borrow_mut().push(text.to_owned());
        self.written(format!("stop {text:?}"));
        Ok(())
    }

    pub(crate) fn ignore_end(&self) {
        self.ignore_end.set(true);
        self.written("ignore-end".to_owned());
    }

    pub(crate) fn temperature(&self, value: f32) -> Result<(), Error> {
        at_least_0("temperature", value)?;
        self.written(format!("temperature {value}"));
        Ok(())
    }

    pub(crate) fn top_p(&self, mass: f32) -> Result<(), Error> {
        share("top-p", mass)?;
        self.written(format!("top-p {mass}"));
        Ok(())
    }

    pub(crate) fn min_p(&self, ratio: f32) -> Result<(), Error> {
        share("min-p", ratio)?;
        self.written(format!("min-p {ratio}"));
        Ok(())
    }

    written! {
        top_k(count: u32) "top-k {count}";
        dynamic_temperature(temperature: f32, range: f32, exponent: f32)
            "dynamic-temperature {temperature} {range} {exponent}";
        typical(mass: f32) "typical {mass}";
        top_n_sigma(count: f32) "top-n-sigma {count}";
        xtc(probability: f32, threshold: f32) "xtc {probability} {threshold}";
        dry(settings: &Dry) "dry {settings:?}";
        penalties(settings: Penalties) "penalties {settings:?}";
        answer_penalties(settings: Penalties) "answer-penalties {settings:?}";
        logit_bias(biases: &[(Token, f32)]) "logit-bias {biases:?}";
        mirostat(tau: f32, eta: f32) "mirostat {tau} {eta}";
        speculate(most: u8) "speculate {most}";
    }

    pub(crate) fn constrain(&self, constraint: &Constraint) {
        self.constraint.replace(Some(Rc::clone(&constraint.0)));
        self.written("constrain".to_owned());
    }

    pub(crate) fn logprobs(&self, top: u8) -> Result<(), Error> {
        if top > 20 {
            return invalid("at most 20 of the likeliest tokens are told");
        }
        self.logprobs.set(Some(top));
        self.written(format!("logprobs {top}"));
        Ok(())
    }

    pub(crate) fn adapter(&self, name: &str) {
        self.written(format!("adapter {name}"));
    }

    pub(crate) async fn sample_with(&self, name: String, settings: String) -> Result<(), Error> {
        self.script.fails("sample-with")?;
        generating::start(&self.script, &name, &settings, 0)?;
        self.written(format!("sample-with {name} {settings}"));
        self.sampler.replace(Some((name, settings)));
        Ok(())
    }
}

fn at_least_0(name: &str, value: f32) -> Result<(), Error> {
    if value.is_finite() && value >= 0.0 {
        return Ok(());
    }
    invalid(&format!("the {name} is {value}; it must be 0 or more"))
}

fn share(name: &str, value: f32) -> Result<(), Error> {
    if (0.0..=1.0).contains(&value) {
        return Ok(());
    }
    invalid(&format!("{name} is {value}; it must be between 0 and 1"))
}
