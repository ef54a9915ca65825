use super::*;
use serde_json::json;

fn read(body: Value) -> Result<Vec<Sampler>, Error> {
    chain(&mut Fields::at(String::new(), body)?)
}

#[test]
fn common_samplers_have_a_fixed_order() {
    assert_eq!(read(json!({})).unwrap(), []);
    assert_eq!(read(json!({"samplers": null})).unwrap(), []);
    assert_eq!(
        read(json!({"temperature": 0.5, "min_p": 0.125, "top_p": 0.25, "top_k": 40})).unwrap(),
        [
            Sampler::TopK(40),
            Sampler::TopP(0.25),
            Sampler::MinP(0.125),
            Sampler::Temperature(0.5),
        ]
    );
}

#[test]
fn samplers_keep_their_order() {
    let samplers = json!([
        {"logit_bias": [[65, 1.5], [66, "-inf"]]},
        {"penalties": {"last_n": 10, "repeat": 1.5, "frequency": 0.25, "presence": -0.5}},
        {"output_penalties": {"presence": 0.5}},
        {"dry": {"multiplier": 0.5, "base": 2, "allowed_length": 3, "last_n": 9, "breakers": ["x"]}},
        {"temperature": 0.5},
        {"top_k": 40},
        {"typical_p": 0.5},
        {"temperature": 2, "top_k": null},
        {"top_p": 0.25},
        {"min_p": 0.125},
        {"top_n_sigma": -1},
        {"dynamic_temperature": {"temperature": 1, "range": 0.5, "exponent": 2}},
        {"xtc": {"probability": 0.5, "threshold": 0.125}},
        {"mirostat": {"tau": 5, "eta": 0.5}},
    ]);
    assert_eq!(
        read(json!({"samplers": samplers})).unwrap(),
        [
            Sampler::LogitBias(vec![(65, 1.5), (66, f32::NEG_INFINITY)]),
            Sampler::Penalties(Penalties {
                last_n: 10,
                repeat: 1.5,
                frequency: 0.25,
                presence: -0.5,
            }),
            Sampler::OutputPenalties(Penalties {
                last_n: 64,
                repeat: 1.0,
                frequency: 0.0,
                presence: 0.5,
            }),
            Sampler::Dry(Dry {
                multiplier: 0.5,
                base: 2.0,
                allowed_length: 3,
                last_n: 9,
                breakers: vec!["x".to_owned()],
            }),
            Sampler::Temperature(0.5),
            Sampler::TopK(40),
            Sampler::TypicalP(0.5),
            Sampler::Temperature(2.0),
            Sampler::TopP(0.25),
            Sampler::MinP(0.125),
            Sampler::TopNSigma(-1.0),
            Sampler::DynamicTemperature {
                temperature: 1.0,
                range: 0.5,
                exponent: 2.0,
            },
            Sampler::Xtc {
                probability: 0.5,
                threshold: 0.125,
            },
            Sampler::Mirostat { tau: 5.0, eta: 0.5 },
        ]
    );
    assert_eq!(read(json!({"samplers": []})).unwrap(), []);
}

#[test]
fn defaults_are_those_of_llama_cpp() {
    let samplers = json!([
        {"penalties": {}},
        {"dry": {"multiplier": 1}},
        {"dynamic_temperature": {"temperature": 1, "range": 0}},
        {"logit_bias": []},
    ]);
    let chain = read(json!({"samplers": samplers})).unwrap();
    assert_eq!(
        chain[0],
        Sampler::Penalties(Penalties {
            last_n: 64,
            repeat: 1.0,
            frequency: 0.0,
            presence: 0.0,
        })
    );
    let Sampler::Dry(dry) = &chain[1] else {
        panic!("{chain:?}")
    };
    assert_eq!(dry.base, 1.75);
    assert_eq!(dry.allowed_length, 2);
    assert_eq!(dry.last_n, 65_536);
    assert_eq!(dry.breakers, ["\n", ":", "\"", "*"]);
    let Sampler::DynamicTemperature { exponent, .. } = chain[2] else {
        panic!("{chain:?}")
    };
    assert_eq!(exponent, 1.0);
}

/// A chain of samplers, and the code and text of its error.
const ERRORS: &str = r#"
{} => wrong-type: `samplers` is an object
["top_k"] => wrong-type: `samplers[0]` is a string
[{}] => not-one-field: `samplers[0]` has 0 fields
[{"top_k": 1}, {"top_k": 1, "top_p": 1}] => not-one-field: `samplers[1]` has 2 fields; expected exactly one of `temperature`
[{"beam": 4}] => unknown-field: `samplers[0].beam` is unknown
[{"temperature": -1}] => out-of-range: `samplers[0].temperature` is -1; expected a number of at least 0
[{"temperature": 1e300}] => out-of-range: `samplers[0].temperature`
[{"top_k": 1.5}] => out-of-range: `samplers[0].top_k` is 1.5
[{"typical_p": 2}] => out-of-range: from 0 to 1
[{"top_n_sigma": "2"}] => wrong-type: `samplers[0].top_n_sigma` is a string
[{"dry": 1}] => wrong-type: `samplers[0].dry` is a number; expected an object
[{"dry": {}}] => missing-field: `samplers[0].dry.multiplier` is missing; expected a number of at least 0
[{"dry": {"multiplier": 1, "base": 0.5}}] => out-of-range: `samplers[0].dry.base` is 0.5; expected a number of at least 1
[{"dry": {"multiplier": 1, "last_n": 65537}}] => out-of-range: `samplers[0].dry.last_n` is 65537; expected an integer from 0 to 65536
[{"dry": {"multiplier": 1, "breakers": ["a", 1]}}] => wrong-type: `samplers[0].dry.breakers[1]` is a number
[{"dry": {"multiplier": 1, "breaker": []}}] => unknown-field: `samplers[0].dry.breaker` is unknown; expected `multiplier`
[{"penalties": {"repeat": 0}}] => out-of-range: `samplers[0].penalties.repeat` is 0; expected a number greater than 0
[{"penalties": {"last_n": -1}}] => out-of-range: `samplers[0].penalties.last_n` is -1
[{"xtc": {"probability": 0.5}}] => missing-field: `samplers[0].xtc.threshold` is missing
[{"dynamic_temperature": {"temperature": 1}}] => missing-field: `samplers[0].dynamic_temperature.range`
[{"mirostat": {"tau": 5}}] => missing-field: `samplers[0].mirostat.eta`
[{"mirostat": {"tau": 5, "eta": 1}}, {"top_k": 1}] => ambiguous-samplers: `samplers[0]` is mirostat
[{"logit_bias": {"65": 1}}] => wrong-type: `samplers[0].logit_bias` is an object; expected a list of pairs
[{"logit_bias": [[65, 1], 66]}] => wrong-type: `samplers[0].logit_bias[1]` is a number; expected a pair
[{"logit_bias": [[65]]}] => wrong-type: `samplers[0].logit_bias[0]` has 1 entries; expected a pair
[{"logit_bias": [["A", 1]]}] => wrong-type: `samplers[0].logit_bias[0][0]` is a string
[{"logit_bias": [[65, null]]}] => wrong-type: `samplers[0].logit_bias[0][1]` is null; expected a number, or "-inf"
[{"logit_bias": [[65, "inf"]]}] => wrong-type: "-inf"
"#;

#[test]
fn errors_name_the_path() {
    for line in ERRORS.trim().lines() {
        let (samplers, error) = line.split_once(" => ").unwrap();
        let (code, detail) = error.split_once(": ").unwrap();
        let samplers: Value = serde_json::from_str(samplers).unwrap();
        let problem = read(json!({"samplers": samplers})).unwrap_err();
        assert_eq!((problem.status(), problem.code()), (400, code), "{line}");
        assert!(problem.to_string().contains(detail), "{line}: {problem}");
    }
    let problem = read(json!({"samplers": vec![json!({"top_k": 1}); 33]})).unwrap_err();
    let detail = "`samplers` has 33 entries; expected at most 32";
    let expected = ("out-of-range", detail);
    assert_eq!((problem.code(), &*problem.to_string()), expected);
}

#[test]
fn samplers_exclude_common_fields() {
    for name in ["temperature", "top_k", "top_p", "min_p"] {
        let mut body = json!({"samplers": []});
        body[name] = json!(1);
        let problem = read(body).unwrap_err();
        assert_eq!(problem.status(), 400);
        assert_eq!(problem.code(), "ambiguous-samplers");
    }
}
