//! A chat as the linked template writes it, and its answer.

use serde_json::{Value, json};

use crate::bindings::corral::inference::inference::Options;
use crate::failed::Failed;
use crate::linked::corral::plugin::templating::{Chat, Message, ModelFacts, render};
use crate::opened::{Opened, list, most, text};

pub async fn chat(asked: &Value) -> Result<Value, Failed> {
    let opened = Opened::new().await?;
    let message = |message: &Value| Message {
        role: text(message, "role").to_owned(),
        content: text(message, "content").to_owned(),
        other: message["other"].as_str().map(str::to_owned),
    };
    let tools = list(asked, "tools").iter().map(Value::to_string);
    let chat = Chat {
        messages: list(asked, "messages").iter().map(message).collect(),
        tools: tools.collect(),
        begin_answer: true,
        settings: asked["settings"].as_str().map(str::to_owned),
    };
    let info = &opened.info;
    let facts = ModelFacts {
        name: info.name.clone(),
        begin: opened.written(info.begin)?,
        end: opened.written(info.end)?,
        chat_template: info.chat_template.clone(),
    };
    let prompt = render(&chat, &facts).map_err(|told| Failed::other("render", told))?;
    let mut tokens = Vec::new();
    for piece in &prompt.pieces {
        tokens.extend(opened.tokens(&piece.text, piece.special)?);
    }
    let sequence = opened.sequence(&tokens)?;
    let options = Options::new(most(asked));
    for stop in &prompt.stop {
        options.stop(stop).map_err(Failed::at("stop"))?;
    }
    let generation = sequence.generate(&options);
    let (mut chunks, outcome) = generation.map_err(Failed::at("generate"))?;
    let mut answer = String::new();
    while let Some(chunk) = chunks.next().await {
        answer += &chunk.text;
    }
    outcome.await.map_err(Failed::at("outcome"))?;
    let pieces = prompt.pieces.iter();
    let pieces: Vec<_> = pieces
        .map(|piece| json!([piece.text, piece.special]))
        .collect();
    Ok(json!({ "pieces": pieces, "stop": prompt.stop, "text": answer }))
}
