//! llama.cpp's samplers for ours.

use super::ReferenceChain;
use corral_sampling::Sampler;

/// llama.cpp's chain of the same samplers. DRY has no breakers.
pub fn reference_chain(samplers: &[Sampler], vocabulary: usize, seed: u32) -> ReferenceChain {
    let chain = ReferenceChain::new(vocabulary);
    samplers
        .iter()
        .fold(chain, |chain, sampler| append(chain, sampler, seed))
}

fn append(chain: ReferenceChain, sampler: &Sampler, seed: u32) -> ReferenceChain {
    match sampler {
        Sampler::Temperature(value) => chain.temperature(*value),
        Sampler::DynamicTemperature {
            temperature,
            range,
            exponent,
        } => chain.dynamic_temperature(*temperature, *range, *exponent),
        Sampler::TopK(count) => chain.top_k(*count),
        Sampler::TopP(mass) => chain.top_p(*mass),
        Sampler::MinP(ratio) => chain.min_p(*ratio),
        Sampler::TypicalP(mass) => chain.typical(*mass),
        Sampler::TopNSigma(count) => chain.top_n_sigma(*count),
        Sampler::Xtc {
            probability,
            threshold,
        } => chain.xtc(*probability, *threshold, seed),
        Sampler::Dry(dry) => chain.dry(
            dry.multiplier,
            dry.base,
            dry.allowed_length,
            dry.last_n,
            None,
        ),
        Sampler::Penalties(set) | Sampler::OutputPenalties(set) => {
            chain.penalties(set.last_n, set.repeat, set.frequency, set.presence)
        }
        Sampler::Mirostat { tau, eta } => chain.mirostat(*tau, *eta, seed),
        Sampler::LogitBias(biases) => chain.logit_bias(biases),
    }
}
