//! `/api/generate`.

use std::time::Instant;

use corral_sdk::fields::Fields;
use corral_sdk::template::Chat;
use corral_sdk::{Error, EventWriter, Model, Response, Token};
use serde_json::json;

use conversation::generation::Choices;
use conversation::{AnswerStream, ChatRequest, OutputPart, Tools, infill, unsupported};

use crate::answer::{self, Frame, with_logprobs};
use crate::options::{SharedMembers, reasoning_variables};
use crate::{messages, models};

pub async fn respond(mut fields: Fields) -> Result<Response, Error> {
    let start = Instant::now();
    let shared = SharedMembers::read(&mut fields)?;
    let prompt = fields.text("prompt")?.unwrap_or_default();
    let suffix = fields.text("suffix")?.filter(|suffix| !suffix.is_empty());
    let system = fields.text("system")?.filter(|system| !system.is_empty());
    let raw = fields.flag("raw")?;
    let images = messages::images(&mut fields)?;
    if fields
        .text("template")?
        .is_some_and(|text| !text.is_empty())
    {
        return Err(unsupported("template", "the model's own template is used"));
    }
    if fields.list("context")?.is_some_and(|list| !list.is_empty()) {
        let why = "it is deprecated; expected the earlier messages in `/api/chat`";
        return Err(unsupported("context", why));
    }
    fields.ignore_unknown(&[])?;
    let model = Model::open(&models::resolve(&shared.name)?).await?;
    let frame = Frame::new(shared.name.clone(), start);
    if prompt.is_empty() && images.is_empty() {
        return Ok(frame.loaded(json!({"response": ""})));
    }
    if !images.is_empty() && (suffix.is_some() || raw) {
        let why = "they need the model's template; omit `suffix` and `raw`";
        return Err(unsupported("images", why));
    }
    let prompt = images + &prompt;
    let text = match (&suffix, raw) {
        (Some(suffix), _) => Some(infill::tokens(&prompt, suffix, &model)?),
        (None, true) => Some(model.tokenize_trusted(&prompt)?),
        (None, false) => None,
    };
    let streamed = shared.stream;
    let answers = match text {
        Some(mut tokens) => {
            model.add_begin_token(&mut tokens);
            start_raw(tokens, &shared, &model).await?
        }
        None => start_chat(prompt, system, shared, &model).await?,
    };
    match streamed {
        true => Ok(answer::lines(async move |lines| {
            stream(answers, &frame, lines).await
        })),
        false => whole(answers, &frame).await,
    }
}

/// Starts the answer to a prompt in the model's chat template.
async fn start_chat(
    prompt: String,
    system: Option<String>,
    shared: SharedMembers,
    model: &Model,
) -> Result<AnswerStream, Error> {
    let mut chat = Chat::new();
    if let Some(system) = system {
        chat = chat.message("system", &system);
    }
    let request = ChatRequest {
        model: Some(model.name().to_owned()),
        chat: chat.message("user", &prompt),
        template_kwargs: reasoning_variables(shared.think.as_ref(), model.name(), model)?,
        tools: Tools::default(),
        format: shared.format,
        settings: shared.settings,
        prefill: None,
        messages_field: "prompt",
        format_field: "format",
    };
    request.start().await
}

/// Continues tokens without a template.
async fn start_raw(
    tokens: Vec<Token>,
    shared: &SharedMembers,
    model: &Model,
) -> Result<AnswerStream, Error> {
    let constraint = shared.format.constraint(model, "format").await?;
    let choices = Choices::start(
        model,
        "prompt",
        &[tokens],
        &shared.settings,
        constraint.as_ref(),
    )?;
    Ok(AnswerStream::plain(choices))
}

async fn whole(mut answers: AnswerStream, frame: &Frame) -> Result<Response, Error> {
    let collected = answers.collect().await?;
    let found = collected.into_iter().next().unwrap_or_default();
    let mut part = json!({"response": found.content});
    if !found.reasoning.is_empty() {
        part["thinking"] = found.reasoning.into();
    }
    let last = frame.last(part, &answers.outcome(0)?);
    Ok(Response::json(&with_logprobs(last, &found.logprobs)))
}

async fn stream(
    mut answers: AnswerStream,
    frame: &Frame,
    lines: &mut EventWriter,
) -> Result<(), Error> {
    // Those of the next line.
    let mut logprobs = Vec::new();
    while let Some(delta) = answers.next().await? {
        logprobs.extend(delta.logprobs);
        for part in delta.parts {
            let part = match part {
                OutputPart::Content(text) => json!({"response": text}),
                OutputPart::Reasoning(text) => json!({"response": "", "thinking": text}),
                OutputPart::ToolCall(_) | OutputPart::Arguments(_) => continue,
            };
            let line = frame.object(part, false);
            lines.json_line(&with_logprobs(line, &logprobs)).await?;
            logprobs.clear();
        }
    }
    let last = frame.last(json!({"response": ""}), &answers.outcome(0)?);
    lines.json_line(&with_logprobs(last, &logprobs)).await
}
