//! `samplers` of llama.cpp's server: the samplers that apply, and their order.
//!
//! The host's order is llama.cpp's default one. So a list in this order turns the other samplers off, and another order is
//! an error.

use conversation::{unsupported, without_effect};
use corral_sdk::Error;
use corral_sdk::fields::wrong_type;
use serde_json::{Map, Value};

/// A sampler: its names, its letter, and the fields that turn it off, with their values.
struct Sampler {
    names: &'static [&'static str],
    letter: char,
    off: &'static [(&'static str, i8)],
}

/// The samplers in llama.cpp's default order.
const SAMPLERS: [Sampler; 9] = [
    Sampler {
        names: &["penalties"],
        letter: 'e',
        off: &[
            ("repeat_penalty", 1),
            ("frequency_penalty", 0),
            ("presence_penalty", 0),
        ],
    },
    Sampler {
        names: &["dry"],
        letter: 'd',
        off: &[("dry_multiplier", 0)],
    },
    Sampler {
        names: &["top_n_sigma", "top-n-sigma"],
        letter: 's',
        off: &[("top_n_sigma", -1)],
    },
    Sampler {
        names: &["top_k", "top-k"],
        letter: 'k',
        off: &[("top_k", 0)],
    },
    Sampler {
        names: &["typ_p", "typical_p", "typical-p", "typ-p", "typical"],
        letter: 'y',
        off: &[("typical_p", 1)],
    },
    Sampler {
        names: &["top_p", "top-p", "nucleus"],
        letter: 'p',
        off: &[("top_p", 1)],
    },
    Sampler {
        names: &["min_p", "min-p"],
        letter: 'm',
        off: &[("min_p", 0)],
    },
    Sampler {
        names: &["xtc"],
        letter: 'x',
        off: &[("xtc_probability", 0)],
    },
    Sampler {
        names: &["temperature", "temp"],
        letter: 't',
        off: &[("temperature", 1), ("dynatemp_range", 0)],
    },
];

/// Takes `samplers` and turns off those that it lacks.
pub fn apply(request_fields: &mut Map<String, Value>) -> Result<(), Error> {
    let places = match request_fields.get("samplers") {
        Some(Value::Array(list)) if !list.is_empty() => {
            let mut places = Vec::new();
            for (index, name) in list.iter().enumerate() {
                let path = format!("samplers[{index}]");
                let name = name
                    .as_str()
                    .ok_or_else(|| wrong_type(&path, "a sampler's name", name))?;
                let place = SAMPLERS
                    .iter()
                    .position(|sampler| sampler.names.contains(&name));
                match place {
                    Some(place) => places.push(place),
                    // As in llama.cpp's server.
                    None => without_effect(&path, &format!("there is no sampler {name:?}"))?,
                }
            }
            places
        }
        Some(Value::String(letters)) => {
            let place = |letter| SAMPLERS.iter().position(|sampler| sampler.letter == letter);
            letters.chars().filter_map(place).collect()
        }
        _ => return Ok(()),
    };
    if !places.is_sorted() {
        let order: Vec<_> = SAMPLERS.iter().map(|sampler| sampler.names[0]).collect();
        let why = format!("the order is fixed; expected some of {order:?} in this order");
        return Err(unsupported("samplers", &why));
    }
    request_fields.remove("samplers");
    for (place, sampler) in SAMPLERS.iter().enumerate() {
        if !places.contains(&place) {
            for (name, value) in sampler.off {
                request_fields.insert((*name).to_owned(), (*value).into());
            }
            if sampler.letter == 'e' {
                request_fields.remove("repetition_penalty");
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::fields::ignored;
    use serde_json::json;

    fn applied(request_fields: Value) -> Result<Value, Error> {
        ignored::begin(false);
        let mut request_fields = request_fields.as_object().cloned().unwrap();
        apply(&mut request_fields).map(|()| request_fields.into())
    }

    #[test]
    fn samplers_that_are_not_listed_are_off() {
        let off = json!({
            "repeat_penalty": 1, "frequency_penalty": 0, "presence_penalty": 0, "dry_multiplier": 0, "top_n_sigma": -1,
            "typical_p": 1, "min_p": 0, "xtc_probability": 0, "top_k": 5, "top_p": 1, "temperature": 0.5,
        });
        let values = json!({"top_k": 5, "min_p": 0.1, "temperature": 0.5, "repetition_penalty": 2});
        for samplers in [
            json!(["top_k", "temperature"]),
            json!(["top-k", "nope", "temp"]),
            json!("kt"),
        ] {
            let mut request_fields = values.clone();
            request_fields["samplers"] = samplers.clone();
            assert_eq!(applied(request_fields), Ok(off.clone()), "{samplers}");
        }
    }

    #[test]
    fn other_orders_are_errors() {
        for samplers in [json!(["temperature", "top_k"]), json!("tk")] {
            let error = applied(json!({"samplers": samplers})).unwrap_err();
            assert_eq!(error.field(), Some("samplers"));
            let text = error.to_string();
            assert!(text.contains("\"xtc\", \"temperature\"]"), "{error}");
        }
        let error = applied(json!({"samplers": [1]})).unwrap_err();
        assert_eq!(error.field(), Some("samplers[0]"));
    }
}
