//! `/v1/embeddings`.

use corral_sdk::fields::{Fields, out_of_range, wrong_type};
use corral_sdk::{Error, Model, Response, Token};
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::models;
use crate::tokenize::read_tokens;
use crate::written::{self, List};

/// As many inputs as the host takes in a call.
const INPUT_LIMIT: usize = 2048;

pub async fn answer(mut fields: Fields) -> Result<Response, Error> {
    let name = fields.text("model")?;
    let input = fields.take("input");
    let input = input.ok_or_else(|| fields.missing("input", INPUT))?;
    let format = fields.text("encoding_format")?;
    let dimensions = fields.integer("dimensions", 1..=u32::MAX)?;
    // Names the client's own user to nobody else.
    fields.text("user")?;
    fields.refuse_unknown(&["model", "input", "encoding_format", "dimensions", "user"])?;
    let encode = match format.as_deref() {
        None | Some("float") => Vector::Floats,
        Some("base64") => Vector::Base64,
        Some(other) => {
            let value = other.into();
            return Err(out_of_range("encoding_format", &value, "float or base64"));
        }
    };

    let model = models::open(name.as_deref()).await?;
    let length = model.info().embedding_length;
    if let Some(dimensions) = dimensions
        && dimensions != length
    {
        let expected = format!("{length}, which is what the model {} has", model.name());
        return Err(out_of_range("dimensions", &dimensions.into(), &expected));
    }
    let inputs = read(&input, &model)?;
    let tokens: usize = inputs.iter().map(Vec::len).sum();
    let vectors = model.embed_tokens(inputs, None, None).await?;
    let entry = |(index, vector)| Entry {
        object: "embedding",
        index,
        embedding: encode(vector),
    };
    written::answer(&Answer {
        object: "list",
        data: List(|| vectors.iter().map(Vec::as_slice).enumerate().map(entry)),
        model: model.name(),
        usage: Usage {
            prompt_tokens: tokens,
            total_tokens: tokens,
        },
    })
}

/// Written vector by vector, since they are large.
#[derive(Serialize)]
struct Answer<'a, D> {
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
struct Entry<'a> {
    object: &'static str,
    index: usize,
    embedding: Vector<'a>,
}

/// A vector and how it is written.
enum Vector<'a> {
    /// As numbers, each as short as it can be without being another `f32`.
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

const INPUT: &str = "a string, a list of tokens, or a list of either";

/// One input or several, each as text or as tokens.
fn read(input: &Value, model: &Model) -> Result<Vec<Vec<Token>>, Error> {
    let Value::Array(list) = input else {
        return Ok(vec![one("input", input, model)?]);
    };
    if list.is_empty() || list.len() > INPUT_LIMIT && !list[0].is_number() {
        let text = format!(
            "`input` has {} entries; expected 1 to {INPUT_LIMIT}",
            list.len()
        );
        return Err(Error::bad_request("out-of-range", text).about("input"));
    }
    if list[0].is_number() {
        return Ok(vec![one("input", input, model)?]);
    }
    let list = list.iter().enumerate();
    list.map(|(index, value)| one(&format!("input[{index}]"), value, model))
        .collect()
}

fn one(path: &str, value: &Value, model: &Model) -> Result<Vec<Token>, Error> {
    let tokens = match value {
        Value::String(text) => {
            let mut tokens = model.tokenize(text)?;
            if let Some(begin) = model.info().begin {
                tokens.insert(0, begin);
            }
            tokens
        }
        Value::Array(tokens) => read_tokens(path, tokens, model)?,
        other => return Err(wrong_type(path, INPUT, other)),
    };
    if tokens.is_empty() {
        let text = format!("`{path}` is empty; expected at least one token");
        return Err(Error::bad_request("empty-input", text).about(path));
    }
    Ok(tokens)
}

/// The numbers' bytes, the lowest first, in base64 (RFC 4648), as OpenAI's Python client asks for them.
fn base64(vector: &[f32]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bytes: Vec<u8> = vector
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let bits = (0..3).fold(0, |bits, at| {
            bits << 8 | u32::from(three.get(at).copied().unwrap_or(0))
        });
        for at in 0..4 {
            text.push(match at <= three.len() {
                true => char::from(LETTERS[(bits >> (18 - 6 * at) & 63) as usize]),
                false => '=',
            });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_in_base64() {
        // As Python's base64.b64encode(struct.pack("<ff", 1.0, -2.5)) and of their beginning write it.
        assert_eq!(base64(&[1.0, -2.5]), "AACAPwAAIMA=");
        assert_eq!(base64(&[1.0]), "AACAPw==");
        assert_eq!(base64(&[]), "");
    }
}
