//! The JSON Schema of the file, made of the options' definitions.

use super::fields::{ValueKind, fields};
use crate::args::SECONDS;
use clap::error::ErrorKind;
use clap::{Arg, Command};
use serde_json::{Map, Value, json};

/// Makes the schema. The command defines the keys.
pub(super) fn schema(command: Command) -> Value {
    // Values of the environment may be invalid, which `bounds` would take for errors of its own numbers.
    let command = command.mut_args(|option| option.env(None::<&'static str>));
    let property = |(key, option): (&str, &Arg)| (key.to_owned(), property(&command, key, option));
    let properties = Map::from_iter(fields(&command).map(property));
    json!({
        "type": "object",
        "additionalProperties": false,
        "properties": properties,
        "description": "Options of 'corral serve --config FILE': flags replace these values.",
    })
}

fn property(command: &Command, key: &str, option: &Arg) -> Value {
    let kind = ValueKind::of(option);
    let mut property = match kind {
        ValueKind::Switch => json!({ "type": "boolean", "default": false }),
        ValueKind::Integer => {
            let (minimum, maximum) = bounds(command, key);
            json!({ "type": "integer", "minimum": minimum, "maximum": maximum })
        }
        ValueKind::Number => {
            json!({ "type": "number", "minimum": SECONDS.start(), "maximum": SECONDS.end() })
        }
        ValueKind::Text => json!({ "type": "string" }),
        ValueKind::List => {
            let names = option.get_value_names().unwrap_or_default();
            let form = names.first().map(|name| name.as_str());
            json!({ "type": "array", "items": { "type": "string", "description": form } })
        }
    };
    let choices = option.get_possible_values();
    if kind == ValueKind::Text && !choices.is_empty() {
        property["enum"] = choices.iter().map(|choice| choice.get_name()).collect();
    }
    if let ([default], true) = (option.get_default_values(), kind != ValueKind::Switch) {
        let text = default.to_string_lossy();
        property["default"] = match kind {
            ValueKind::Integer | ValueKind::Number => {
                serde_json::from_str(&text).expect("a number")
            }
            _ => Value::from(&*text),
        };
    }
    let help = option.get_help().map(ToString::to_string);
    property["description"] = help.expect("every option has a help text").into();
    property
}

/// The numbers that the option's parser accepts.
fn bounds(command: &Command, key: &str) -> (u64, u64) {
    let is_valid = |number: u64| {
        let argument = format!("--{key}={number}");
        // Other errors, such as a missing model, are found after this one.
        let parsed = command.clone().try_get_matches_from(["serve", &argument]);
        !parsed.is_err_and(|error| error.kind() == ErrorKind::ValueValidation)
    };
    let minimum = (0..=2).find(|number| is_valid(*number));
    let minimum = minimum.unwrap_or_else(|| panic!("{key} accepts none of 0, 1 and 2"));
    let (mut valid, mut invalid) = (minimum, u64::MAX);
    assert!(
        !is_valid(invalid),
        "{key} accepts any number; give it a bound"
    );
    while invalid - valid > 1 {
        let middle = valid + (invalid - valid) / 2;
        match is_valid(middle) {
            true => valid = middle,
            false => invalid = middle,
        }
    }
    (minimum, valid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command_line::CommandLine;
    use crate::config::fields::field;

    #[test]
    fn schema_has_types_bounds_defaults_and_choices() {
        let command = CommandLine::serve_command();
        let schema = schema(command.clone());
        let property = |key: &str| {
            let mut property = schema["properties"][key].clone();
            let members = property.as_object_mut().expect(key);
            assert!(members.remove("description").is_some(), "{key}");
            property
        };
        let running = json!({ "type": "integer", "minimum": 1, "maximum": 256 });
        assert_eq!(property("max-running"), running);
        let cells = json!({ "type": "integer", "minimum": 1, "maximum": u32::MAX });
        assert_eq!(property("kv-cells"), cells);
        let grace =
            json!({ "type": "number", "minimum": 0.001, "maximum": 2_678_400.0, "default": 10 });
        assert_eq!(property("grace-period"), grace);
        let preload =
            json!({ "type": "string", "default": "first", "enum": ["all", "first", "none"] });
        assert_eq!(property("preload"), preload);
        assert_eq!(
            property("mmap"),
            json!({ "type": "boolean", "default": false })
        );
        let keys = fields(&command).count();
        assert_eq!(schema["properties"].as_object().expect("keys").len(), keys);
        assert!(field(&command, "model").is_some());
        assert_eq!(property("model")["items"]["description"], "[NAME=]FILE");
    }
}
