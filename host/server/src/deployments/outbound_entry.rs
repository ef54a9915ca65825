//! An entry of `grants.outbound`: where a deployment may send HTTP requests to.

use corral_runtime::OutboundGrant;
use http::Method;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Visitor};
use serde::ser::SerializeStruct;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// Most methods of an entry.
const MAX_METHODS: usize = 16;

/// Where a deployment may send requests to: a URL without a path, or a table with that as 'url' and with 'methods'.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboundEntry(pub OutboundGrant);

impl Serialize for OutboundEntry {
    fn serialize<S: Serializer>(&self, output: S) -> Result<S::Ok, S::Error> {
        let OutboundGrant { url, methods } = &self.0;
        if methods.is_empty() {
            return output.collect_str(url);
        }
        let names = methods.iter().map(Method::as_str);
        let mut table = output.serialize_struct("OutboundEntry", 2)?;
        table.serialize_field("url", &url.to_string())?;
        table.serialize_field("methods", &names.collect::<Vec<_>>())?;
        table.end()
    }
}

impl<'de> Deserialize<'de> for OutboundEntry {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        input.deserialize_any(EitherForm)
    }
}

/// Deserializes a string or a table.
struct EitherForm;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    url: String,
    #[serde(default)]
    methods: Vec<String>,
}

impl<'de> Visitor<'de> for EitherForm {
    type Value = OutboundEntry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a URL, or a table with 'url' and 'methods'")
    }

    fn visit_str<E: de::Error>(self, url: &str) -> Result<OutboundEntry, E> {
        Ok(OutboundEntry(OutboundGrant {
            url: url.parse().map_err(E::custom)?,
            methods: Vec::new(),
        }))
    }

    fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<OutboundEntry, A::Error> {
        let Table { url, methods } = Table::deserialize(MapAccessDeserializer::new(table))?;
        if methods.len() > MAX_METHODS {
            let problem = format!("'methods' has more than {MAX_METHODS} entries");
            return Err(de::Error::custom(problem));
        }
        let methods = methods.iter().map(|name| method(name));
        Ok(OutboundEntry(OutboundGrant {
            url: url.parse().map_err(de::Error::custom)?,
            methods: methods
                .collect::<Result<_, _>>()
                .map_err(de::Error::custom)?,
        }))
    }
}

fn method(name: &str) -> Result<Method, String> {
    let upper = !name.chars().any(|c| c.is_ascii_lowercase());
    match Method::from_bytes(name.as_bytes()) {
        Ok(Method::CONNECT) => Err("'CONNECT' cannot be granted; remove it".to_owned()),
        Ok(method) if upper => Ok(method),
        _ => Err(format!(
            "'{}' is not a method; write it in upper case, e.g. \"GET\"",
            name.chars().take(32).collect::<String>()
        )),
    }
}

#[cfg(test)]
impl schemars::JsonSchema for OutboundEntry {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "OutboundEntry".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let url = "SCHEME://HOST or SCHEME://HOST:PORT, without a path. HOST is a name, an IP address, '*.NAME' for \
                   the names below one, or '*'; PORT may be '*'. Addresses that are not public must be named, or \
                   'localhost'.";
        schemars::json_schema!({
            "description": "Where a deployment may send HTTP requests to.",
            "oneOf": [
                {"type": "string", "description": url},
                {
                    "type": "object",
                    "additionalProperties": false,
                    "required": ["url"],
                    "properties": {
                        "url": {"type": "string", "description": url},
                        "methods": {
                            "type": "array",
                            "maxItems": MAX_METHODS,
                            "items": {"type": "string"},
                            "description": "Methods in upper case. If omitted, all but CONNECT.",
                        },
                    },
                },
            ],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn entries_keep_their_form() {
        for value in [
            json!("https://api.example.com"),
            json!({"url": "http://127.0.0.1:9000", "methods": ["GET", "POST"]}),
            json!("https://*:*"),
        ] {
            let entry: OutboundEntry = serde_json::from_value(value.clone()).expect("valid");
            assert_eq!(serde_json::to_value(&entry).expect("serializable"), value);
        }
        for value in [
            json!({"url": "https://a.example", "methods": ["CONNECT"]}),
            json!({"url": "https://a.example", "methods": ["A B"]}),
            json!({"url": "https://a.example", "methods": vec!["GET"; 17]}),
            json!({"methods": ["GET"]}),
            json!("a.example"),
            json!(1),
        ] {
            let entry = serde_json::from_value::<OutboundEntry>(value.clone());
            assert!(entry.is_err(), "{value}");
        }
    }
}
