//! Renders a chat with the linked template and generates the answer.

use serde_json::{Value, json};

use crate::bindings::corral::inference::inference::Options;
use crate::bindings::corral::inference::inference_async::generate;
use crate::error::GuestError;
use crate::linked::corral::plugin::templating::{Chat, Message, ModelFacts, render};
use crate::model::{OpenModel, list, max_tokens, text};

pub async fn chat(request: &Value) -> Result<Value, GuestError> {
    let model = OpenModel::new().await?;
    let message = |message: &Value| Message {
        role: text(message, "role").to_owned(),
        content: text(message, "content").to_owned(),
        other: message["other"].as_str().map(str::to_owned),
    };
    let tools = list(request, "tools").iter().map(Value::to_string);
    let chat = Chat {
        messages: list(request, "messages").iter().map(message).collect(),
        tools: tools.collect(),
        add_generation_prompt: true,
        settings: request["settings"].as_str().map(str::to_owned),
    };
    let info = &model.info;
    let facts = ModelFacts {
        name: info.name.clone(),
        bos: model.control_token_text(info.bos)?,
        eos: model.control_token_text(info.eos)?,
        chat_template: info.chat_template.clone(),
    };
    let prompt = render(&chat, &facts).map_err(|error| GuestError::other("render", error))?;
    let mut tokens = Vec::new();
    for piece in &prompt.pieces {
        tokens.extend(model.tokens(&piece.text, piece.special)?);
    }
    let sequence = model.sequence(&tokens)?;
    let options = Options::new(max_tokens(request));
    for stop in &prompt.stop {
        options.stop(stop).map_err(GuestError::at("stop"))?;
    }
    let generation = generate(&sequence, &options);
    let (mut chunks, outcome) = generation.map_err(GuestError::at("generate"))?;
    let mut answer = String::new();
    while let Some(chunk) = chunks.next().await {
        answer += &chunk.text;
    }
    outcome.await.map_err(GuestError::at("outcome"))?;
    let pieces = prompt.pieces.iter();
    let pieces = pieces.map(|piece| json!([piece.text, piece.special]));
    let pieces: Vec<_> = pieces.collect();
    Ok(json!({ "pieces": pieces, "stop": prompt.stop, "text": answer }))
}
