//! Scripted generation options.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::constraint::Constraint;
use super::installed::script;
use super::script_state::{ScriptState, invalid};
use crate::Token;
use crate::bindings::inference::{Dry, Penalties};
use crate::bindings::types::Error;

/// The options that affect the script, and all options as text.
pub struct Options {
    pub(super) max_tokens: u32,
    pub(super) settings: RefCell<Vec<String>>,
    pub(super) seed: Cell<Option<u64>>,
    pub(super) stops: RefCell<Vec<String>>,
    pub(super) ignore_eos: Cell<bool>,
    pub(super) constraint: RefCell<Option<Rc<Vec<Vec<u8>>>>>,
    pub(super) logprobs: Cell<Option<u8>>,
    pub(super) sampler: RefCell<Option<(String, String)>>,
    script: Rc<ScriptState>,
}

/// Setters that only record their arguments.
macro_rules! recorded {
    ($($function:ident($($argument:ident: $type:ty),*) $text:literal;)*) => {
        $(
            pub fn $function(&self $(, $argument: $type)*) -> Result<(), Error> {
                self.record(format!($text));
                Ok(())
            }
        )*
    };
}

impl Options {
    pub fn new(max_tokens: u32) -> Self {
        Options {
            max_tokens,
            settings: RefCell::new(vec![format!("max-tokens {max_tokens}")]),
            seed: Cell::default(),
            stops: RefCell::default(),
            ignore_eos: Cell::default(),
            constraint: RefCell::default(),
            logprobs: Cell::default(),
            sampler: RefCell::default(),
            script: script(),
        }
    }

    fn record(&self, text: String) {
        self.settings.borrow_mut().push(text);
    }

    pub fn seed(&self, seed: u64) {
        self.seed.set(Some(seed));
        self.record(format!("seed {seed}"));
    }

    pub fn stop(&self, text: &str) -> Result<(), Error> {
        if text.is_empty() || text.len() > 256 {
            return invalid("a stop string must have 1 to 256 bytes");
        }
        self.stops.borrow_mut().push(text.to_owned());
        self.record(format!("stop {text:?}"));
        Ok(())
    }

    pub fn ignore_eos(&self) {
        self.ignore_eos.set(true);
        self.record("ignore-eos".to_owned());
    }

    pub fn temperature(&self, value: f32) -> Result<(), Error> {
        non_negative("temperature", value)?;
        self.record(format!("temperature {value}"));
        Ok(())
    }

    pub fn top_p(&self, mass: f32) -> Result<(), Error> {
        probability("top-p", mass)?;
        self.record(format!("top-p {mass}"));
        Ok(())
    }

    pub fn min_p(&self, ratio: f32) -> Result<(), Error> {
        probability("min-p", ratio)?;
        self.record(format!("min-p {ratio}"));
        Ok(())
    }

    recorded! {
        top_k(count: u32) "top-k {count}";
        dynamic_temperature(temperature: f32, delta: f32, exponent: f32)
            "dynamic-temperature {temperature} {delta} {exponent}";
        typical_p(mass: f32) "typical-p {mass}";
        top_n_sigma(count: f32) "top-n-sigma {count}";
        xtc(probability: f32, threshold: f32) "xtc {probability} {threshold}";
        dry(settings: &Dry) "dry {settings:?}";
        penalties(settings: Penalties) "penalties {settings:?}";
        output_penalties(settings: Penalties) "output-penalties {settings:?}";
        logit_bias(biases: &[(Token, f32)]) "logit-bias {biases:?}";
        mirostat(tau: f32, eta: f32) "mirostat {tau} {eta}";
        speculate(max_tokens: u8) "speculate {max_tokens}";
    }

    pub fn constrain(&self, constraint: &Constraint) {
        self.constraint.replace(Some(Rc::clone(&constraint.texts)));
        self.record("constrain".to_owned());
    }

    pub fn logprobs(&self, top: u8) -> Result<(), Error> {
        if top > 20 {
            return invalid("logprobs returns at most 20 tokens");
        }
        self.logprobs.set(Some(top));
        self.record(format!("logprobs {top}"));
        Ok(())
    }

    pub fn adapter(&self, name: &str) {
        self.record(format!("adapter {name}"));
    }
}

pub async fn sample_with(options: &Options, name: String, settings: String) -> Result<(), Error> {
    options.script.scripted_error("sample-with")?;
    options.script.start_sampler(&name, &settings, 0)?;
    options.record(format!("sample-with {name} {settings}"));
    options.sampler.replace(Some((name, settings)));
    Ok(())
}

fn non_negative(name: &str, value: f32) -> Result<(), Error> {
    if value.is_finite() && value >= 0.0 {
        return Ok(());
    }
    invalid(&format!("{name} is {value}; expected at least 0"))
}

fn probability(name: &str, value: f32) -> Result<(), Error> {
    if (0.0..=1.0).contains(&value) {
        return Ok(());
    }
    invalid(&format!("{name} is {value}; expected a number from 0 to 1"))
}
