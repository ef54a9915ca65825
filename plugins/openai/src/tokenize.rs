//! `/tokenize` and `/detokenize`, as in llama.cpp's server and vLLM.

use corral_sdk::fields::{Fields, integer, wrong_type};
use corral_sdk::{Error, EventWriter, Model, Response, Token};
use serde_json::{Value, json};

/// Most bytes of a text, or of all in a list: the host's limit for one text. A plugin has memory for their tokens, even if
/// each byte is one.
const TEXT_BYTES: usize = 4 << 20;

/// Least bytes of a piece of a response, but for the last one.
const PIECE_BYTES: usize = 16 << 10;

/// Converts `content`, or vLLM's `prompt`, to `tokens`.
pub async fn tokenize(mut fields: Fields) -> Result<Response, Error> {
    if fields.peek("content").is_none() && fields.peek("prompt").is_some() {
        return tokenize_prompt(fields).await;
    }
    let model = model(&mut fields).await?;
    let content = fields.required("content", "a string, or a list of strings and tokens")?;
    let add_begin = fields.flag("add_special")?;
    let parse_control = fields.boolean("parse_special")?.unwrap_or(true);
    let with_pieces = fields.flag("with_pieces")?;
    fields.ignore_unknown(&[
        "model",
        "content",
        "add_special",
        "parse_special",
        "with_pieces",
    ])?;
    let tokenize = |text: &str| match parse_control {
        true => model.tokenize_trusted(text),
        false => model.tokenize(text),
    };
    let mut tokens = match &content {
        Value::Array(parts) => {
            let texts = parts.iter().filter_map(Value::as_str);
            check_length("content", texts.map(str::len).sum())?;
            let mut tokens = Vec::new();
            for (index, part) in parts.iter().enumerate() {
                match part {
                    Value::String(text) => tokens.extend(tokenize(text)?),
                    token => tokens.push(read_token(&format!("content[{index}]"), token, &model)?),
                }
            }
            tokens
        }
        Value::String(text) => {
            check_length("content", text.len())?;
            tokenize(text)?
        }
        other => {
            return Err(wrong_type(
                "content",
                "a string, or a list of strings and tokens",
                other,
            ));
        }
    };
    if let (true, Some(begin)) = (add_begin, model.info().bos) {
        tokens.insert(0, begin);
    }
    Ok(respond(async move |body| {
        let start = String::from("{\"tokens\":");
        let item = |token: Token| -> Result<Value, Error> {
            Ok(match with_pieces {
                true => json!({"id": token, "piece": piece(&model, token)?}),
                false => token.into(),
            })
        };
        let rest = write_list(body, start, &tokens, item).await?;
        body.bytes(rest + "}").await
    }))
}

/// vLLM's form of the request.
async fn tokenize_prompt(mut fields: Fields) -> Result<Response, Error> {
    let model = model(&mut fields).await?;
    let prompt = fields.required_text("prompt")?;
    let add_begin = fields.boolean("add_special_tokens")?.unwrap_or(true);
    let with_texts = fields.flag("return_token_strs")?;
    fields.ignore_unknown(&[])?;
    check_length("prompt", prompt.len())?;
    let mut tokens = model.tokenize_trusted(&prompt)?;
    if add_begin {
        model.add_begin_token(&mut tokens);
    }
    Ok(respond(async move |body| {
        let (count, context) = (tokens.len(), model.info().context);
        let start = format!("{{\"count\":{count},\"max_model_len\":{context},\"tokens\":");
        let rest = write_list(body, start, &tokens, |token| Ok(token.into())).await?;
        let start = rest + ",\"token_strs\":";
        let item = |token: Token| -> Result<Value, Error> {
            Ok(model.detokenize_with_control(&[token])?.into())
        };
        let rest = match with_texts {
            true => write_list(body, start, &tokens, item).await?,
            false => start + "null",
        };
        body.bytes(rest + "}").await
    }))
}

fn check_length(field: &str, bytes: usize) -> Result<(), Error> {
    if bytes <= TEXT_BYTES {
        return Ok(());
    }
    let text = format!("`{field}` has {bytes} bytes of text; expected at most {TEXT_BYTES}");
    Err(Error::new(413, "request-too-large", text).with_field(field))
}

/// A response that is written in pieces: a plugin has no memory for all tokens of a long text as JSON.
fn respond(write: impl AsyncFnOnce(&mut EventWriter) -> Result<(), Error> + 'static) -> Response {
    Response::bytes("application/json", Vec::new()).with_stream(write)
}

/// Writes `text` and a JSON list with an item for each token, and returns what is not written yet.
async fn write_list(
    body: &mut EventWriter,
    mut text: String,
    tokens: &[Token],
    item: impl Fn(Token) -> Result<Value, Error>,
) -> Result<String, Error> {
    text.push('[');
    for (at, &token) in tokens.iter().enumerate() {
        if at > 0 {
            text.push(',');
        }
        text += &item(token)?.to_string();
        if text.len() >= PIECE_BYTES {
            body.bytes(std::mem::take(&mut text)).await?;
        }
    }
    text.push(']');
    Ok(text)
}

/// A token's text, or its bytes if they are part of a character.
fn piece(model: &Model, token: Token) -> Result<Value, Error> {
    let bytes = model.detokenize_bytes(&[token])?;
    if bytes.is_empty() {
        return Ok(model.detokenize_with_control(&[token])?.into());
    }
    Ok(match String::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(error) => error.into_bytes().into(),
    })
}

/// Converts `tokens` to `content`, which vLLM calls `prompt`.
pub async fn detokenize(mut fields: Fields) -> Result<Response, Error> {
    let model = model(&mut fields).await?;
    let tokens = fields.required_list("tokens", "a list of integers")?;
    fields.ignore_unknown(&["model", "tokens"])?;
    let tokens = read_tokens("tokens", &tokens, &model)?;
    let content = model.detokenize_with_control(&tokens)?;
    Ok(Response::json(
        &json!({"content": content, "prompt": content}),
    ))
}

async fn model(fields: &mut Fields) -> Result<Model, Error> {
    Model::open_requested(fields.text("model")?.as_deref()).await
}

/// Reads a list of the model's tokens.
fn read_tokens(path: &str, values: &[Value], model: &Model) -> Result<Vec<Token>, Error> {
    let values = values.iter().enumerate();
    values
        .map(|(index, value)| read_token(&format!("{path}[{index}]"), value, model))
        .collect()
}

/// Reads one of the model's tokens.
fn read_token(path: &str, value: &Value, model: &Model) -> Result<Token, Error> {
    integer(path, value, 0..=model.info().vocabulary.saturating_sub(1))
}
