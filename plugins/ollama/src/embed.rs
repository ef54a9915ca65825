//! `/api/embed`, and the older `/api/embeddings`.

use std::time::Instant;

use corral_sdk::fields::{Fields, out_of_range, wrong_type};
use corral_sdk::{Error, Model, Response, Token};
use serde::Serialize;
use serde_json::Value;

use crate::answer::nanoseconds;
use crate::models;

/// The host's limit for inputs of a call.
const INPUT_LIMIT: usize = 2048;

/// Not a JSON value, in which each number would take many times its memory.
#[derive(Serialize)]
struct Embeddings {
    model: String,
    embeddings: Vec<Vec<f32>>,
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: usize,
}

/// The response of the older route.
#[derive(Serialize)]
struct Embedding {
    embedding: Vec<f32>,
}

/// Embeds one text or several.
pub async fn respond(mut fields: Fields) -> Result<Response, Error> {
    let start = Instant::now();
    let name = models::read_name(&mut fields)?;
    let input = fields.required("input", "a string or a list of strings")?;
    let truncate = fields.boolean("truncate")?.unwrap_or(true);
    let dimensions = fields.integer("dimensions", 1..=u32::MAX)?;
    ignore_rest(fields)?;
    let model = Model::open(&models::resolve(&name)?).await?;
    let load = start.elapsed();
    let length = model.info().embedding_length;
    if let Some(dimensions) = dimensions.filter(|dimensions| *dimensions != length) {
        let expected = format!("{length}, the length of the model's vectors");
        return Err(out_of_range("dimensions", &dimensions.into(), &expected));
    }
    let inputs = texts(input)?;
    let inputs: Vec<_> = inputs
        .iter()
        .map(|(path, text)| tokens(path, text, truncate, &model))
        .collect::<Result<_, _>>()?;
    let count: usize = inputs.iter().map(Vec::len).sum();
    let embeddings = match inputs.is_empty() {
        true => Vec::new(),
        false => model.embed_tokens(inputs, None, None).await?,
    };
    Ok(Response::json(&Embeddings {
        model: name,
        embeddings,
        total_duration: nanoseconds(start.elapsed()),
        load_duration: nanoseconds(load),
        prompt_eval_count: count,
    }))
}

/// Embeds `prompt`.
pub async fn respond_one(mut fields: Fields) -> Result<Response, Error> {
    let name = models::read_name(&mut fields)?;
    let prompt = fields.required_text("prompt")?;
    ignore_rest(fields)?;
    let model = Model::open(&models::resolve(&name)?).await?;
    let inputs = vec![tokens("prompt", &prompt, true, &model)?];
    let embedding = model.embed_tokens(inputs, None, None).await?.pop();
    Ok(Response::json(&Embedding {
        embedding: embedding.unwrap_or_default(),
    }))
}

/// Names the fields without effect. `keep_alive` needs none: the host keeps its models.
fn ignore_rest(mut fields: Fields) -> Result<(), Error> {
    fields.take("keep_alive");
    fields.ignore_unknown(&[])
}

fn texts(input: Value) -> Result<Vec<(String, String)>, Error> {
    let list = match input {
        Value::String(text) => return Ok(vec![("input".to_owned(), text)]),
        Value::Array(list) => list,
        other => return Err(wrong_type("input", "a string or a list of strings", &other)),
    };
    if list.len() > INPUT_LIMIT {
        let text = format!(
            "`input` has {} entries; expected at most {INPUT_LIMIT}",
            list.len()
        );
        return Err(Error::bad_request("out-of-range", text).with_field("input"));
    }
    let list = list.into_iter().enumerate();
    list.map(|(index, value)| {
        let path = format!("input[{index}]");
        match value {
            Value::String(text) => Ok((path, text)),
            other => Err(wrong_type(&path, "a string", &other)),
        }
    })
    .collect()
}

/// The tokens of a text, cut to the context if `truncate` allows it.
fn tokens(path: &str, text: &str, truncate: bool, model: &Model) -> Result<Vec<Token>, Error> {
    let mut tokens = model.tokenize(text)?;
    model.add_begin_token(&mut tokens);
    if tokens.is_empty() {
        let text = format!("`{path}` is empty; expected at least one token");
        return Err(Error::bad_request("empty-input", text).with_field(path));
    }
    if truncate {
        tokens.truncate(model.info().context as usize);
    }
    Ok(tokens)
}
