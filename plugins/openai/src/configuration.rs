//! The deployment's configuration of this plugin: `[configuration]` in `corral.toml`.

use corral_sdk::Error;
use serde_json::{Map, Value};

/// The configuration.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Configuration {
    /// Whether to refuse request fields that have no effect, instead of naming them in the response.
    pub strict: bool,
    /// Further names of models, each with the model's own name.
    pub aliases: Vec<(String, String)>,
    /// Labels of the models in `/v1/models`, for clients that choose by them.
    pub tags: Vec<String>,
    /// Whether a request for an unknown model gets the default model.
    pub accept_unknown_models: bool,
    /// The number of slots of `/props` and `/slots`, at most as many as requests may run at a time. With 0, `/slots` is an
    /// error.
    pub slots: Option<u32>,
    /// How long responses of the Responses API are stored, in seconds, if at all.
    pub store_seconds: Option<u64>,
    /// Fields for requests that generate and lack them: `temperature`, `seed`, `max_tokens`.
    pub defaults: Map<String, Value>,
}

/// How long responses are stored unless the configuration says so: 30 days, as in the API's own service.
const STORE_SECONDS: u64 = 30 * 24 * 3600;

/// The variables with fields for requests that lack them.
const DEFAULTS: [&str; 3] = ["temperature", "seed", "max_tokens"];

impl Configuration {
    /// Reads the environment variables of the deployment.
    pub fn from_environment() -> Result<Self, Error> {
        Self::read(|name| std::env::var(name).ok())
    }

    fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let word = |name: &str, words: [&str; 2]| match variable(name).as_deref() {
            None => Ok(false),
            Some(found) if found == words[0] => Ok(false),
            Some(found) if found == words[1] => Ok(true),
            Some(other) => Err(wrong(
                name,
                other,
                &format!("{:?} or {:?}", words[1], words[0]),
            )),
        };
        let strict = word("strict", ["false", "true"])?;
        let accept_unknown_models = word("unknown_models", ["refuse", "default"])?;
        let stores = word("store", ["false", "true"])?;
        let store_seconds = match variable("store_seconds") {
            None => STORE_SECONDS,
            Some(text) => match text.parse() {
                Ok(seconds @ 1..) => seconds,
                _ => return Err(wrong("store_seconds", &text, "a number from 1")),
            },
        };
        let aliases = match variable("aliases") {
            None => Vec::new(),
            Some(text) => aliases(&text)?,
        };
        let tags = variable("tags").unwrap_or_default();
        let tags = tags.split(',').map(str::trim).filter(|tag| !tag.is_empty());
        let slots = match variable("slots") {
            None => None,
            Some(text) => match text.parse() {
                Ok(count) => Some(count),
                Err(_) => return Err(wrong("slots", &text, "a number")),
            },
        };
        let mut defaults = Map::new();
        for name in DEFAULTS {
            if let Some(text) = variable(name) {
                let number = serde_json::from_str(&text).ok().filter(Value::is_number);
                let number = number.ok_or_else(|| wrong(name, &text, "a number"))?;
                defaults.insert(name.to_owned(), number);
            }
        }
        Ok(Configuration {
            strict,
            aliases,
            tags: tags.map(str::to_owned).collect(),
            accept_unknown_models,
            slots,
            store_seconds: stores.then_some(store_seconds),
            defaults,
        })
    }
}

/// Reads `ALIAS=MODEL, ALIAS=MODEL`.
fn aliases(text: &str) -> Result<Vec<(String, String)>, Error> {
    let entries = text.split(',').map(str::trim).filter(|one| !one.is_empty());
    entries
        .map(|entry| match entry.split_once('=') {
            Some((alias, model)) if !alias.trim().is_empty() && !model.trim().is_empty() => {
                Ok((alias.trim().to_owned(), model.trim().to_owned()))
            }
            _ => Err(wrong("aliases", text, "\"ALIAS=MODEL, ALIAS=MODEL\"")),
        })
        .collect()
}

fn wrong(name: &str, found: &str, expected: &str) -> Error {
    Error::Failed(format!(
        "the deployment's configuration has {name} = {found:?}; expected {expected}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, value: &str) -> Result<Configuration, Error> {
        Configuration::read(|asked| (asked == name).then(|| value.to_owned()))
    }

    #[test]
    fn variables_are_read() {
        let none = Configuration::read(|_| None);
        assert_eq!(none, Ok(Configuration::default()));
        assert_eq!(read("strict", "false"), none);
        assert!(read("strict", "true").unwrap().strict);
        assert_eq!(read("unknown_models", "refuse"), none);
        assert!(
            read("unknown_models", "default")
                .unwrap()
                .accept_unknown_models
        );
        let pair = |alias: &str, model: &str| (alias.to_owned(), model.to_owned());
        assert_eq!(
            read("aliases", "gpt-4o = tiny,a=b=c, ").unwrap().aliases,
            [pair("gpt-4o", "tiny"), pair("a", "b=c")]
        );
        let expected = ["chat", "small"];
        assert_eq!(read("tags", "chat, small,").unwrap().tags, expected);
        assert_eq!(read("slots", "4").unwrap().slots, Some(4));
        assert_eq!(read("slots", "0").unwrap().slots, Some(0));
        let stored = read("store", "true").unwrap().store_seconds;
        assert_eq!(stored, Some(STORE_SECONDS));
        assert_eq!(read("store_seconds", "9").unwrap().store_seconds, None);
        let found = &read("temperature", "0.5").unwrap().defaults["temperature"];
        assert_eq!(*found, 0.5);
    }

    #[test]
    fn wrong_variables_are_errors() {
        for (name, value) in [
            ("strict", "yes"),
            ("unknown_models", "true"),
            ("aliases", "gpt-4o"),
            ("aliases", "=tiny"),
            ("slots", "-1"),
            ("store", "yes"),
            ("store_seconds", "0"),
            ("seed", "\"1\""),
            ("max_tokens", "many"),
        ] {
            let error = read(name, value).unwrap_err();
            assert_eq!(error.status(), 500);
            let text = error.to_string();
            assert!(text.contains(&format!("{name} = {value:?}")), "{text}");
        }
    }
}
