//! `options` of `inference`.

use session_protocol::{Call, Kind, Setting};

use crate::bindings::exports::corral::inference::constraints::ConstraintBorrow;
use crate::bindings::exports::corral::inference::inference::{Dry, GuestOptions, Penalties};
use crate::bindings::exports::corral::inference::types::{Error, Token};
use crate::models::RemoteConstraint;
use crate::session::{OwnedHandle, call, post};

pub(crate) struct RemoteOptions(pub(crate) OwnedHandle);

impl RemoteOptions {
    /// Applies a setting that the host may refuse.
    fn set(&self, setting: Setting) -> Result<(), Error> {
        let options = self.0.number;
        call(Call::Set { options, setting })
    }

    /// Applies a setting that cannot fail.
    fn post(&self, call: Call) {
        // Without a session, `generate` fails.
        let _ = post(Kind::Options, self.0.number, call);
    }

    fn post_setting(&self, setting: Setting) {
        let options = self.0.number;
        self.post(Call::Set { options, setting });
    }
}

/// JSON has no infinity, and the host accepts none of these numbers.
fn finite<const N: usize>(name: &str, numbers: [f32; N]) -> Result<(), Error> {
    match numbers.iter().find(|number| !number.is_finite()) {
        Some(number) => Err(Error::Invalid(format!(
            "{} has the value {number}; expected a finite number",
            name.replace('_', "-")
        ))),
        None => Ok(()),
    }
}

/// Setters whose arguments are the setting's, numbers that must be finite.
macro_rules! numbers {
    ($($function:ident = $setting:ident($($argument:ident),*);)*) => {
        $(
            fn $function(&self, $($argument: f32),*) -> Result<(), Error> {
                finite(stringify!($function), [$($argument),*])?;
                self.set(Setting::$setting($($argument),*))
            }
        )*
    };
}

impl GuestOptions for RemoteOptions {
    fn new(max_tokens: u32) -> Self {
        let options = RemoteOptions(OwnedHandle::new(Kind::Options));
        options.post(Call::CreateOptions {
            options: options.0.number,
            max_tokens,
        });
        options
    }

    fn seed(&self, seed: u64) {
        self.post_setting(Setting::Seed(seed));
    }

    fn stop(&self, text: String) -> Result<(), Error> {
        self.set(Setting::Stop(text))
    }

    fn ignore_eos(&self) {
        self.post_setting(Setting::IgnoreEos);
    }

    numbers! {
        temperature = Temperature(value);
        top_p = TopP(mass);
        min_p = MinP(ratio);
        dynamic_temperature = DynamicTemperature(temperature, delta, exponent);
        typical_p = TypicalP(mass);
        top_n_sigma = TopNSigma(count);
        xtc = Xtc(probability, threshold);
        mirostat = Mirostat(tau, eta);
    }

    fn top_k(&self, count: u32) -> Result<(), Error> {
        self.set(Setting::TopK(count))
    }

    fn dry(&self, settings: Dry) -> Result<(), Error> {
        finite("dry", [settings.multiplier, settings.base])?;
        self.set(Setting::Dry(session_protocol::Dry {
            multiplier: settings.multiplier,
            base: settings.base,
            allowed_length: settings.allowed_length,
            last_n: settings.last_n,
            breakers: settings.breakers,
        }))
    }

    fn penalties(&self, settings: Penalties) -> Result<(), Error> {
        self.set(Setting::Penalties(penalties("penalties", settings)?))
    }

    fn output_penalties(&self, settings: Penalties) -> Result<(), Error> {
        self.set(Setting::OutputPenalties(penalties(
            "output-penalties",
            settings,
        )?))
    }

    fn logit_bias(&self, biases: Vec<(Token, f32)>) -> Result<(), Error> {
        let biases = biases.into_iter().map(|(token, bias)| {
            if bias == f32::NEG_INFINITY {
                return Ok((token, None));
            }
            finite("logit-bias", [bias])?;
            Ok((token, Some(bias)))
        });
        self.set(Setting::LogitBias(biases.collect::<Result<_, _>>()?))
    }

    fn constrain(&self, constraint: ConstraintBorrow<'_>) {
        let options = self.0.number;
        let constraint = constraint.get::<RemoteConstraint>().handle.number;
        self.post(Call::Constrain {
            options,
            constraint,
        });
    }

    fn logprobs(&self, top: u8) -> Result<(), Error> {
        self.set(Setting::Logprobs(top))
    }

    fn speculate(&self, max_tokens: u8) -> Result<(), Error> {
        self.set(Setting::Speculate(max_tokens))
    }

    fn adapter(&self, name: String) {
        self.post_setting(Setting::Adapter(name));
    }
}

fn penalties(name: &str, settings: Penalties) -> Result<session_protocol::Penalties, Error> {
    let Penalties {
        last_n,
        repeat,
        frequency,
        presence,
    } = settings;
    finite(name, [repeat, frequency, presence])?;
    Ok(session_protocol::Penalties {
        last_n,
        repeat,
        frequency,
        presence,
    })
}
