//! `[linked]`: components that are composed with a deployment's handler.

use super::digest::{Digest, DigestError};
use super::manifest_error::ManifestError;
use corral_runtime::MAX_MIDDLEWARE;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Visitor};
use serde::ser::SerializeStruct;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;

/// Most sampling plugins of a deployment.
const MAX_SAMPLING: usize = 16;
/// Longest name of a sampling plugin, in bytes.
const MAX_NAME: usize = 64;

/// Components that are composed with the handler.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct LinkedComponents {
    /// Provides the handler's import 'corral:plugin/templating', which turns a chat into a prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub templating: Option<LinkedComponent>,
    /// Sampling components, by the name that the handler's generations select. If the handler imports
    /// 'corral:plugin/sampling' itself, exactly one must be given.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sampling: BTreeMap<String, LinkedComponent>,
    /// Components through which requests reach the handler, the outermost first. Each imports and exports
    /// 'wasi:http/handler'.
    #[cfg_attr(test, schemars(length(max = 8)))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub middleware: Vec<LinkedComponent>,
}

/// A component that is composed with the handler: a file or a digest, or a table with that as 'component'.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkedComponent {
    /// The component: a file beside the manifest, or the digest of an uploaded component.
    pub component: String,
    /// Gives it the models, the environment and the grants of the deployment, like the handler. Otherwise it has none.
    pub inherit: bool,
}

impl LinkedComponents {
    pub(crate) fn is_none(&self) -> bool {
        *self == LinkedComponents::default()
    }

    /// All components, each with its field of the table. Middleware is numbered from 1, the outermost.
    pub fn all(&self) -> impl Iterator<Item = (String, &LinkedComponent)> {
        let Self {
            templating,
            sampling,
            middleware,
        } = self;
        with_fields(templating.iter(), sampling.iter(), middleware.iter())
    }

    /// All components, mutably.
    pub fn all_mut(&mut self) -> impl Iterator<Item = (String, &mut LinkedComponent)> {
        let Self {
            templating,
            sampling,
            middleware,
        } = self;
        with_fields(
            templating.iter_mut(),
            sampling.iter_mut(),
            middleware.iter_mut(),
        )
    }

    /// The digests of all components.
    ///
    /// # Errors
    /// If one is named by its file.
    pub(super) fn digests(&self) -> Result<Vec<Digest>, DigestError> {
        self.all()
            .map(|(_, linked)| linked.component.parse())
            .collect()
    }

    /// Checks what deserialization does not.
    pub(super) fn check(&self) -> Result<(), ManifestError> {
        let refuse = |field: &str, problem: String| {
            Err(ManifestError::field(format!("linked.{field}"), problem))
        };
        let (sampling, middleware) = (self.sampling.len(), self.middleware.len());
        ManifestError::check_count("linked.sampling", sampling, MAX_SAMPLING)?;
        ManifestError::check_count("linked.middleware", middleware, MAX_MIDDLEWARE)?;
        for (name, linked) in &self.sampling {
            if let Err(problem) = check_sampler_name(name) {
                let name: String = name.chars().take(MAX_NAME).collect();
                return refuse(&format!("sampling.{}", name.escape_debug()), problem);
            }
            if linked.inherit {
                let problem = "cannot be true: a sampler receives distributions and nothing else \
                               of a deployment; remove it";
                return refuse(&format!("sampling.{name}.inherit"), problem.to_owned());
            }
        }
        match self.all().find(|(_, linked)| linked.component.is_empty()) {
            Some((field, _)) => refuse(&field, "is empty; name a .wasm file".to_owned()),
            None => Ok(()),
        }
    }
}

/// Components, each with its field of the table.
fn with_fields<'a, T>(
    templating: impl Iterator<Item = T>,
    sampling: impl Iterator<Item = (&'a String, T)>,
    middleware: impl Iterator<Item = T>,
) -> impl Iterator<Item = (String, T)> {
    let templating = templating.map(|component| ("templating".to_owned(), component));
    let sampling = sampling.map(|(name, component)| (format!("sampling.{name}"), component));
    let middleware = middleware.zip(1_usize..);
    let middleware = middleware.map(|(component, n)| (format!("middleware.{n}"), component));
    templating.chain(sampling).chain(middleware)
}

/// Checks the name of a sampling component.
///
/// # Errors
/// A message to append to the name.
pub fn check_sampler_name(name: &str) -> Result<(), String> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if (1..=MAX_NAME).contains(&name.len()) && name.chars().all(fits) {
        return Ok(());
    }
    Err(format!(
        "is not a valid name of a sampler; use 1 to {MAX_NAME} lower-case letters, digits and '-'"
    ))
}

impl Serialize for LinkedComponent {
    fn serialize<S: Serializer>(&self, output: S) -> Result<S::Ok, S::Error> {
        if !self.inherit {
            return self.component.serialize(output);
        }
        let mut table = output.serialize_struct("LinkedComponent", 2)?;
        table.serialize_field("component", &self.component)?;
        table.serialize_field("inherit", &self.inherit)?;
        table.end()
    }
}

impl<'de> Deserialize<'de> for LinkedComponent {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        input.deserialize_any(EitherForm)
    }
}

/// Deserializes a string or a table.
struct EitherForm;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    component: String,
    #[serde(default)]
    inherit: bool,
}

impl<'de> Visitor<'de> for EitherForm {
    type Value = LinkedComponent;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a component, or a table with 'component' and 'inherit'")
    }

    fn visit_str<E: de::Error>(self, component: &str) -> Result<LinkedComponent, E> {
        Ok(LinkedComponent {
            component: component.to_owned(),
            inherit: false,
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<LinkedComponent, A::Error> {
        let table = Table::deserialize(MapAccessDeserializer::new(table))?;
        Ok(LinkedComponent {
            component: table.component,
            inherit: table.inherit,
        })
    }
}

#[cfg(test)]
impl schemars::JsonSchema for LinkedComponent {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "LinkedComponent".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let component =
            "The component: a file beside the manifest, or the digest of an uploaded component.";
        schemars::json_schema!({
            "description": "A component that is composed with the handler.",
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
                            "description": "Gives it the models, the environment and the grants of the deployment, like the handler. Not allowed for samplers.",
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

    fn read(linked: &str) -> Result<LinkedComponents, String> {
        let manifest = Manifest::from_toml(&format!("{HEAD}{linked}"));
        manifest
            .map(|manifest| manifest.linked)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn both_forms_are_read_and_round_trip() {
        let linked = read(
            "[linked]\ntemplating = { component = 't.wasm', inherit = true }\n\
             middleware = ['x.wasm', { component = 'c.wasm', inherit = true }]\n\
             [linked.sampling]\nmin-p = 'm.wasm'\nb2 = { component = 'b.wasm' }\n",
        )
        .expect("good");
        let all = linked.all().map(|(field, component)| {
            let LinkedComponent { component, inherit } = component;
            format!("{field} {component} {inherit}")
        });
        assert_eq!(
            Vec::from_iter(all),
            [
                "templating t.wasm true",
                "sampling.b2 b.wasm false",
                "sampling.min-p m.wasm false",
                "middleware.1 x.wasm false",
                "middleware.2 c.wasm true",
            ]
        );
        let json = serde_json::json!({
            "templating": {"component": "t.wasm", "inherit": true},
            "sampling": {"min-p": "m.wasm", "b2": "b.wasm"},
            "middleware": ["x.wasm", {"component": "c.wasm", "inherit": true}],
        });
        assert_eq!(serde_json::to_value(&linked).expect("serializable"), json);
        assert_eq!(
            serde_json::from_value::<LinkedComponents>(json).expect("its own"),
            linked
        );
        assert!(linked.digests().is_err());
        assert!(read("").expect("good").is_none());
        let templating = "[linked]\ntemplating = 't.wasm'\n";
        assert!(!read(templating).expect("good").is_none());
    }

    #[test]
    fn mistakes_name_their_position() {
        let many: String = (0..17).map(|name| format!("s{name} = 'a'\n")).collect();
        let long = "x".repeat(65);
        let nine = "'a', ".repeat(9);
        for (linked, expected) in [
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
            ("templating = ''", "'linked.templating' is empty; name a"),
            ("handler = 'a'", "unknown field `handler`"),
            (
                &format!("middleware = [{nine}]"),
                "'linked.middleware' has 9 entries; at most 8",
            ),
            (
                "middleware = ['a', '']",
                "'linked.middleware.2' is empty; name a",
            ),
            (
                "sampling = { a = { component = 'a', inherit = true } }",
                "'linked.sampling.a.inherit' cannot be true: a sampler",
            ),
            (
                "sampling = { a = { component = '' } }",
                "'linked.sampling.a' is empty",
            ),
            (
                "sampling = { A = 'a' }",
                "'linked.sampling.A' is not a valid",
            ),
            (
                "sampling = { '' = 'a' }",
                "'linked.sampling.' is not a valid name",
            ),
            (
                &format!("sampling = {{ {long} = 'a' }}"),
                "is not a valid name of a sampler; use 1 to 64",
            ),
            (
                &format!("[linked.sampling]\n{many}"),
                "'linked.sampling' has 17 entries; at most 16",
            ),
        ] {
            let error = read(&format!("[linked]\n{linked}\n")).expect_err(linked);
            assert!(error.contains(expected), "{linked}\n{error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }
}
