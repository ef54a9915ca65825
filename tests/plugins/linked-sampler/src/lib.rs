//! A sampler that asks for three candidates and takes the least likely of them.
// Not forbid: the bindings are generated, with unsafe code.
#![deny(unsafe_code)]

use bindings::exports::corral::plugin::sampling::{
    Beginning, Distribution, Guest, GuestSampler, Needs, Sampler, Token,
};

#[allow(unsafe_code)]
mod bindings {
    use super::Chooser;
    wit_bindgen::generate!({ world: "corral:plugin/sampling-plugin", path: "../../../wit" });
    export!(Chooser);
}

struct Chooser;

impl Guest for Chooser {
    type Sampler = Chooser;
}

impl GuestSampler for Chooser {
    fn start(_: Beginning) -> Result<Sampler, String> {
        Ok(Sampler::new(Chooser))
    }

    fn needs(&self) -> Needs {
        Needs {
            candidates: 3,
            statistics: false,
            history: 0,
        }
    }

    fn sample(&self, distribution: Distribution) -> Result<Token, String> {
        let least = distribution.candidates.last().ok_or("there are none")?;
        Ok(least.token)
    }
}
