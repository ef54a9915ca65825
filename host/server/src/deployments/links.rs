//! `[links]`: the components that a deployment's handler is linked with.

use super::digest::{Digest, DigestError};
use super::manifest::ManifestError;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Visitor};
use serde::ser::SerializeStruct;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;

/// Most sampling components of a deployment.
const SAMPLING: usize = 16;
/// Longest name of one, in bytes.
const NAME: usize = 64;

/// The components that a handler is linked with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Links {
    /// What answers the handler's import of 'corral:plugin/templating': from a chat to a prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub templating: Option<Link>,
    /// What chooses tokens, by the names under which the handler's generations ask for it. Where the handler
    /// imports 'corral:plugin/sampling' itself there has to be one, which answers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sampling: BTreeMap<String, Link>,
}

/// A component that a handler is linked with: a file or a digest, or a table with that as 'component'.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The component: a file beside the manifest, or the digest of one that the server has.
    pub component: String,
    /// It gets what the handler has of the deployment, its models and its environment. Else it sees
    /// nothing of either.
    pub inherit: bool,
}

impl Links {
    pub(crate) fn is_none(&self) -> bool {
        *self == Links::default()
    }

    /// All of them, each with its field of the table.
    pub fn all(&self) -> impl Iterator<Item = (String, &Link)> {
        let templating = self.templating.iter();
        let templating = templating.map(|link| ("templating".to_owned(), link));
        let sampling = self.sampling.iter();
        templating.chain(sampling.map(|(name, link)| (format!("sampling.{name}"), link)))
    }

    /// All of them, to be changed.
    pub fn all_mut(&mut self) -> impl Iterator<Item = (String, &mut Link)> {
        let templating = self.templating.iter_mut();
        let templating = templating.map(|link| ("templating".to_owned(), link));
        let sampling = self.sampling.iter_mut();
        templating.chain(sampling.map(|(name, link)| (format!("sampling.{name}"), link)))
    }

    /// The components' digests, where they are named by these.
    pub(super) fn digests(&self) -> Result<Vec<Digest>, DigestError> {
        self.all().map(|(_, link)| link.component.parse()).collect()
    }

    /// What reading alone does not find.
    pub(super) fn check(&self) -> Result<(), ManifestError> {
        let refuse = |field: &str, problem: String| {
            Err(ManifestError::Field {
                field: format!("links.{field}"),
                problem,
            })
        };
        if self.sampling.len() > SAMPLING {
            let problem = format!(
                "has {} entries; at most {SAMPLING} are taken",
                self.sampling.len()
            );
            return refuse("sampling", problem);
        }
        for (name, link) in &self.sampling {
            if let Err(problem) = check_sampler(name) {
                let name: String = name.chars().take(NAME).collect();
                return refuse(&format!("sampling.{}", name.escape_debug()), problem);
            }
            if link.inherit {
                let problem = "cannot be true: a sampler is handed distributions and sees nothing \
                               else of a deployment; leave it away";
                return refuse(&format!("sampling.{name}.inherit"), problem.to_owned());
            }
        }
        match self.all().find(|(_, link)| link.component.is_empty()) {
            Some((field, _)) => refuse(&field, "is empty; name a .wasm file".to_owned()),
            None => Ok(()),
        }
    }
}

/// Whether a sampler may be called so.
///
/// # Errors
/// What is wrong, and what to do; to be read after the name.
pub fn check_sampler(name: &str) -> Result<(), String> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if (1..=NAME).contains(&name.len()) && name.chars().all(fits) {
        return Ok(());
    }
    Err(format!(
        "is no name for a sampler; use 1 to {NAME} lower-case letters, digits and '-'"
    ))
}

impl Serialize for Link {
    fn serialize<S: Serializer>(&self, output: S) -> Result<S::Ok, S::Error> {
        if !self.inherit {
            return self.component.serialize(output);
        }
        let mut table = output.serialize_struct("Link", 2)?;
        table.serialize_field("component", &self.component)?;
        table.serialize_field("inherit", &self.inherit)?;
        table.end()
    }
}

impl<'de> Deserialize<'de> for Link {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        input.deserialize_any(EitherForm)
    }
}

/// Reads a text or a table.
struct EitherForm;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    component: String,
    #[serde(default)]
    inherit: bool,
}

impl<'de> Visitor<'de> for EitherForm {
    type Value = Link;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a component, or a table with 'component' and 'inherit'")
    }

    fn visit_str<E: de::Error>(self, component: &str) -> Result<Link, E> {
        Ok(Link {
            component: component.to_owned(),
            inherit: false,
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<Link, A::Error> {
        let table = Table::deserialize(MapAccessDeserializer::new(table))?;
        Ok(Link {
            component: table.component,
            inherit: table.inherit,
        })
    }
}

#[cfg(test)]
impl schemars::JsonSchema for Link {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Link".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let component =
            "The component: a file beside the manifest, or the digest of one that the server has.";
        schemars::json_schema!({
            "description": "A component that a handler is linked with.",
            "oneOf": [
                {"type": "string", "description": component},
                {
                    "type": "object",
                    "additionalProperties": false,
                    "required": ["component"],
                    "properties": {
                        "component": {"type": "string", "description": component},
                        "inherit": {
                            "type": "boolean",
                            "default": false,
                            "description": "It gets what the handler has of the deployment, its models and its environment. A sampler never does.",
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
    use crate::deployments::Manifest;

    const HEAD: &str = "name = 'a'\ncomponent = 'a.wasm'\nroutes = ['/a']\n";

    fn read(links: &str) -> Result<Links, String> {
        let manifest = Manifest::from_toml(&format!("{HEAD}{links}"));
        manifest
            .map(|manifest| manifest.links)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn both_forms_are_read_and_travel_as_json() {
        let links = read(
            "[links]\ntemplating = { component = 't.wasm', inherit = true }\n\
             [links.sampling]\nmin-p = 'm.wasm'\nb2 = { component = 'b.wasm' }\n",
        )
        .expect("good");
        let all = links.all().map(|(field, link)| {
            let Link { component, inherit } = link;
            format!("{field} {component} {inherit}")
        });
        assert_eq!(
            Vec::from_iter(all),
            [
                "templating t.wasm true",
                "sampling.b2 b.wasm false",
                "sampling.min-p m.wasm false"
            ]
        );
        let json = serde_json::json!({
            "templating": {"component": "t.wasm", "inherit": true},
            "sampling": {"min-p": "m.wasm", "b2": "b.wasm"},
        });
        assert_eq!(serde_json::to_value(&links).expect("serialisable"), json);
        assert_eq!(
            serde_json::from_value::<Links>(json).expect("its own"),
            links
        );
        assert!(links.digests().is_err());
        assert!(read("").expect("good").is_none());
        let templating = "[links]\ntemplating = 't.wasm'\n";
        assert!(!read(templating).expect("good").is_none());
    }

    #[test]
    fn mistakes_are_told_where_they_are() {
        let many: String = (0..17).map(|name| format!("s{name} = 'a'\n")).collect();
        let long = "x".repeat(65);
        for (links, expected) in [
            ("templating = 1", "line 5, column 14: "),
            ("templating = 1", "expected a component, or a table"),
            (
                "templating = { inherit = true }",
                "missing field `component`",
            ),
            (
                "templating = { component = 'a', grants = 1 }",
                "unknown field `grants`",
            ),
            ("templating = ''", "'links.templating' is empty; name a"),
            ("handler = 'a'", "unknown field `handler`"),
            (
                "sampling = { a = { component = 'a', inherit = true } }",
                "'links.sampling.a.inherit' cannot be true: a sampler",
            ),
            (
                "sampling = { a = { component = '' } }",
                "'links.sampling.a' is empty",
            ),
            (
                "sampling = { A = 'a' }",
                "'links.sampling.A' is no name for",
            ),
            ("sampling = { '' = 'a' }", "'links.sampling.' is no name"),
            (
                &format!("sampling = {{ {long} = 'a' }}"),
                "is no name for a sampler; use 1 to 64",
            ),
            (
                &format!("[links.sampling]\n{many}"),
                "'links.sampling' has 17 entries; at most 16",
            ),
        ] {
            let error = read(&format!("[links]\n{links}\n")).expect_err(links);
            assert!(error.contains(expected), "{links}\n{error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }
}
