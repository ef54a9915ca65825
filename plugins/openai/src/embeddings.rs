//! `/v1/embeddings`.

use base64::prelude::{BASE64_STANDARD, Engine};
use conversation::silently_ignored;
use corral_sdk::fields::{Fields, out_of_range};
use corral_sdk::{Error, Model, Response, Token};
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::prompt_input::{self, Texts};
use crate::serialize::{self, JsonArray};
use crate::shared_fields::reject_fields_of_other_servers;

/// The host's limit for inputs of a call.
const INPUT_LIMIT: usize = 2048;

pub async fn respond(mut fields: Fields) -> Result<Response, Error> {
    let name = fields.text("model")?;
    let input_name = input_name(&fields);
    let input = fields.required(input_name, prompt_input::EXPECTED)?;
    let format = fields.text("encoding_format")?;
    let dimensions = fields.integer("dimensions", 1..=u32::MAX)?;
    silently_ignored::drop(&mut fields, &silently_ignored::OF_REQUEST);
    reject_fields_of_other_servers(&mut fields)?;
    fields.ignore_unknown(&["model", "encoding_format", "dimensions"])?;
    let encoding = match format.as_deref() {
        None | Some("float") => Vector::Floats,
        Some("base64") => Vector::Base64,
        Some(other) => {
            let value = other.into();
            return Err(out_of_range("encoding_format", &value, "float or base64"));
        }
    };

    let model = Model::open_requested(name.as_deref()).await?;
    let length = model.info().embedding_length;
    if let Some(dimensions) = dimensions
        && dimensions != length
    {
        let expected = format!(
            "{length}, the length of the vectors of the model {}",
            model.name()
        );
        return Err(out_of_range("dimensions", &dimensions.into(), &expected));
    }
    let inputs = read(input_name, &input, &model)?;
    let tokens: usize = inputs.iter().map(Vec::len).sum();
    let vectors = model.embed_tokens(inputs, None, None).await?;
    let entry = |(index, vector)| EmbeddingEntry {
        object: "embedding",
        index,
        embedding: encoding(vector),
    };
    serialize::respond(&EmbeddingsResponse {
        object: "list",
        data: JsonArray(|| vectors.iter().map(Vec::as_slice).enumerate().map(entry)),
        model: model.name(),
        usage: Usage {
            prompt_tokens: tokens,
            total_tokens: tokens,
        },
    })
}

/// Serialized vector by vector, since vectors are large.
#[derive(Serialize)]
struct EmbeddingsResponse<'a, D> {
    object: &'static str,
    data: D,
    model: &'a str,
    usage: Usage,
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
}

#[derive(Serialize)]
struct EmbeddingEntry<'a> {
    object: &'static str,
    index: usize,
    embedding: Vector<'a>,
}

/// A vector and its encoding.
enum Vector<'a> {
    /// Numbers, each as short as possible without changing the `f32`.
    Floats(&'a [f32]),
    Base64(&'a [f32]),
}

impl Serialize for Vector<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Vector::Floats(vector) => serializer.collect_seq(vector.iter()),
            Vector::Base64(vector) => serializer.serialize_str(&base64(vector)),
        }
    }
}

/// Reads one input or several, each as text or tokens.
fn read(name: &str, input: &Value, model: &Model) -> Result<Vec<Vec<Token>>, Error> {
    if let Value::Array(list) = input
        && (list.is_empty() || list.len() > INPUT_LIMIT && prompt_input::is_list(input))
    {
        let text = format!(
            "`{name}` has {} entries; expected 1 to {INPUT_LIMIT}",
            list.len()
        );
        return Err(Error::bad_request("out-of-range", text).with_field(name));
    }
    let inputs = prompt_input::read_all(name, input, Texts::Plain, model)?;
    if let Some(index) = inputs.iter().position(Vec::is_empty) {
        let path = match prompt_input::is_list(input) {
            true => format!("{name}[{index}]"),
            false => name.to_owned(),
        };
        let text = format!("`{path}` is empty; expected at least one token");
        return Err(Error::bad_request("empty-input", text).with_field(&path));
    }
    Ok(inputs)
}

/// llama.cpp's server has two names for the input.
fn input_name(fields: &Fields) -> &'static str {
    match (fields.peek("input"), fields.peek("content")) {
        (None, Some(_)) => "content",
        _ => "input",
    }
}

/// `/embeddings` and `/embedding` of llama.cpp's server: a list of vectors, each in a list.
pub async fn respond_native(mut fields: Fields) -> Result<Response, Error> {
    let model = fields.text("model")?;
    let name = input_name(&fields);
    let input = fields.required(name, prompt_input::EXPECTED)?;
    silently_ignored::drop(&mut fields, &silently_ignored::OF_REQUEST);
    reject_fields_of_other_servers(&mut fields)?;
    fields.ignore_unknown(&[])?;
    let model = Model::open_requested(model.as_deref()).await?;
    let vectors = model
        .embed_tokens(read(name, &input, &model)?, None, None)
        .await?;
    let entry = |(index, vector)| NativeEntry {
        index,
        embedding: [Vector::Floats(vector)],
    };
    serialize::respond(&JsonArray(|| {
        vectors.iter().map(Vec::as_slice).enumerate().map(entry)
    }))
}

#[derive(Serialize)]
struct NativeEntry<'a> {
    index: usize,
    embedding: [Vector<'a>; 1],
}

/// Encodes the numbers' little-endian bytes in base64, as OpenAI's Python client requests them.
fn base64(vector: &[f32]) -> String {
    let bytes = vector.iter().flat_map(|value| value.to_le_bytes());
    BASE64_STANDARD.encode(bytes.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_encoded_in_base64() {
        // As Python's base64.b64encode(struct.pack("<ff", 1.0, -2.5)) writes it.
        assert_eq!(base64(&[1.0, -2.5]), "AACAPwAAIMA=");
        assert_eq!(base64(&[1.0]), "AACAPw==");
        assert_eq!(base64(&[]), "");
    }
}
