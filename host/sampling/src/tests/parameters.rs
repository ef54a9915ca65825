//! Ranges of parameters.

use super::*;

#[test]
fn parameters_out_of_range_are_refused() {
    let bad_dry = |change: fn(&mut Dry)| {
        let Sampler::Dry(mut settings) = dry(1.0, 2, &[]) else {
            unreachable!()
        };
        change(&mut settings);
        Sampler::Dry(settings)
    };
    for sampler in [
        Sampler::Temperature(-1.0),
        Sampler::Temperature(f32::NAN),
        Sampler::DynamicTemperature {
            temperature: 1.0,
            range: -0.5,
            exponent: 1.0,
        },
        Sampler::DynamicTemperature {
            temperature: 1.0,
            range: 0.5,
            exponent: f32::INFINITY,
        },
        Sampler::TopP(1.1),
        Sampler::TopP(f32::NAN),
        Sampler::MinP(-0.1),
        Sampler::TypicalP(2.0),
        Sampler::TopNSigma(f32::NAN),
        Sampler::Xtc {
            probability: 1.5,
            threshold: 0.1,
        },
        Sampler::Xtc {
            probability: 0.5,
            threshold: -0.1,
        },
        penalties(0.0, 0.0, 0.0),
        penalties(1.0, f32::NAN, 0.0),
        penalties(1.0, 0.0, f32::INFINITY),
        Sampler::Penalties(Penalties {
            last_n: MAX_LOOK_BACK + 1,
            repeat: 1.0,
            frequency: 0.0,
            presence: 0.0,
        }),
        bad_dry(|dry| dry.multiplier = -1.0),
        bad_dry(|dry| dry.base = 0.9),
        bad_dry(|dry| dry.last_n = MAX_LOOK_BACK + 1),
        bad_dry(|dry| dry.allowed_length = MAX_LOOK_BACK + 1),
        Sampler::Mirostat {
            tau: -1.0,
            eta: 0.1,
        },
        Sampler::Mirostat {
            tau: 5.0,
            eta: f32::NAN,
        },
        Sampler::LogitBias(vec![(0, f32::NAN)]),
        Sampler::LogitBias(vec![(0, f32::INFINITY)]),
        Sampler::LogitBias(vec![(4, 1.0), (4, 2.0)]),
        Sampler::LogitBias(
            (0..=MAX_BIASES as Token)
                .map(|token| (token, 1.0))
                .collect(),
        ),
    ] {
        let refused = sampler.check().unwrap_err().to_string();
        assert!(
            refused.contains("must be")
                || refused.contains("must have")
                || refused.contains("at most"),
            "{refused}"
        );
    }
    let mirostat = Sampler::Mirostat { tau: 5.0, eta: 0.1 };
    let good = [
        Sampler::Temperature(0.0),
        dry(0.8, 2, &[]),
        penalties(1.1, -0.5, 0.5),
        Sampler::LogitBias(vec![(9, f32::NEG_INFINITY)]),
        mirostat.clone(),
    ];
    assert_eq!(check_samplers(&good, 10), Ok(()));
    assert!(check_samplers(&good, 9).is_err());
    assert!(check_samplers(&[mirostat, Sampler::TopK(1)], 10).is_err());
    assert!(check_samplers(&vec![Sampler::TopK(1); MAX_SAMPLERS + 1], 10).is_err());
    let penalties = Penalties {
        last_n: 1,
        repeat: 1.0,
        frequency: 0.0,
        presence: 0.0,
    };
    let kinds = [Sampler::Penalties, Sampler::OutputPenalties];
    let mut chain: Vec<_> = (0..MAX_PENALTIES)
        .map(|n| kinds[n % 2](penalties))
        .collect();
    assert_eq!(check_samplers(&chain, 10), Ok(()));
    chain.push(Sampler::Penalties(penalties));
    assert!(check_samplers(&chain, 10).is_err());
}
