//! A sampler that requests three candidates and chooses the least likely of them.
// Not `forbid`: the generated bindings contain unsafe code.
#![deny(unsafe_code)]

use bindings::exports::corral::plugin::sampling::{
    Beginning, Distribution, Guest, GuestSampler, Needs, Sampler, Token,
};

#[allow(unsafe_code)]
mod bindings {
    use super::LeastLikely;
    wit_bindgen::generate!({ world: "corral:plugin/sampling-plugin", path: "../../../wit" });
    export!(LeastLikely);
}

struct LeastLikely;

impl Guest for LeastLikely {
    type Sampler = LeastLikely;
}

impl GuestSampler for LeastLikely {
    fn start(_: Beginning) -> Result<Sampler, String> {
        Ok(Sampler::new(LeastLikely))
    }

    fn needs(&self) -> Needs {
        Needs {
            candidates: 3,
            statistics: false,
            history: 0,
        }
    }

    fn sample(&self, distribution: Distribution) -> Result<Token, String> {
        let least = distribution
            .candidates
            .last()
            .ok_or("there are no candidates")?;
        Ok(least.token)
    }
}
