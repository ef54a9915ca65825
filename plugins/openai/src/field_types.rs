//! Rewrites fields of requests to the types and values that the APIs read.
//!
//! Clients write some fields differently, such as `2.0` for `2`, or an empty `model` for none. The field `samplers` of
//! llama.cpp's server becomes fields of single samplers.

mod samplers;

use corral_sdk::Error;
use serde_json::{Map, Value, json};

/// The integers up to here have a `f64` of their own.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// Rewrites the fields of a request's body.
pub fn rewrite(request_fields: &mut Map<String, Value>) -> Result<(), Error> {
    for value in request_fields.values_mut() {
        whole_number(value);
    }
    // No model, no format and no stop strings, as some clients write them.
    for (name, none) in [("model", json!("")), ("response_format", json!({}))] {
        if request_fields.get(name) == Some(&none) {
            request_fields.remove(name);
        }
    }
    for name in ["stop", "stop_sequences"] {
        match request_fields.get_mut(name) {
            Some(Value::Array(list)) => list.retain(|stop| stop != ""),
            Some(stop) if stop == "" => {
                request_fields.remove(name);
            }
            _ => {}
        }
    }
    samplers::apply(request_fields)
}

/// JSON has one kind of number, so `1.0` is an integer, too.
fn whole_number(value: &mut Value) {
    let float = value.as_f64().filter(|_| value.is_f64());
    if let Some(number) = float.filter(|number| number.fract() == 0.0 && number.abs() < EXACT) {
        *value = json!(number as i64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_get_one_type() {
        for (request_fields, expected) in [
            (
                json!({"max_tokens": 2.0, "seed": -1.0}),
                json!({"max_tokens": 2, "seed": -1}),
            ),
            (
                json!({"top_p": 0.5, "n": 1e300}),
                json!({"top_p": 0.5, "n": 1e300}),
            ),
            (json!({"model": "", "response_format": {}}), json!({})),
            (
                json!({"model": "m", "stop": ["", "a"]}),
                json!({"model": "m", "stop": ["a"]}),
            ),
            (json!({"stop": ""}), json!({})),
            (
                json!({"stop": null, "stop_sequences": [""]}),
                json!({"stop": null, "stop_sequences": []}),
            ),
        ] {
            let mut rewritten = request_fields.as_object().cloned().unwrap();
            rewrite(&mut rewritten).unwrap();
            assert_eq!(Value::from(rewritten), expected, "{request_fields}");
        }
    }
}
