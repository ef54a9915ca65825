//! The description of the admin API, and the JSON Schema of a manifest, which is a part of it.

use serde_json::{Map, Value, json};

/// The description, in OpenAPI's format. A test of `admin/openapi.rs` compares it with the types.
pub(crate) const OPENAPI: &str = include_str!("../openapi.json");

/// The JSON Schema of a manifest, draft 2020-12, for editors.
pub fn manifest_schema() -> Value {
    let document = OPENAPI.replace("#/components/schemas/", "#/$defs/");
    let document: Value = serde_json::from_str(&document).expect("the description is JSON");
    let schemas = document["components"]["schemas"].as_object();
    let schemas = schemas.expect("the description has schemas");
    let mut schema = schemas["Manifest"].clone();
    let mut text = schema.to_string();
    let mut definitions = Map::new();
    while let Some((name, definition)) = schemas.iter().find(|(name, _)| {
        !definitions.contains_key(*name) && text.contains(&format!("\"#/$defs/{name}\""))
    }) {
        text.push_str(&definition.to_string());
        definitions.insert(name.clone(), definition.clone());
    }
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!("Manifest");
    schema["$defs"] = Value::Object(definitions);
    schema
}
