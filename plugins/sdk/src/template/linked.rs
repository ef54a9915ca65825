//! Renders chats with the linked templating plugin.

use super::{Chat, ModelFacts, Piece, Prompt};
use crate::bindings::templated::corral::plugin::templating as bindings;
use crate::{Error, Model, backend};

/// Renders a chat with the deployment's linked templating plugin. A handler that calls this can't
/// be deployed without one.
///
/// Checks the chat first ([`Chat::check`]). A chat that the plugin rejects is a 400 with the code
/// `template-error`.
///
/// ```
/// use corral_sdk::template::{Chat, Prompt, render_linked};
/// use corral_sdk::{GenerateOptions, Model, testing::Script};
///
/// let script = Script::new()
///     .templating(|chat, _| {
///         let last = chat.parsed_messages().last().map(|message| message.content).unwrap_or_default();
///         Ok(Prompt::default().text(last).trusted("<|im_end|>"))
///     })
///     .answers("12+7=<|im_end|>", "19");
/// let text = script.run(async {
///     let model = Model::open_default().await?;
///     let prompt = render_linked(&Chat::new().message("user", "12+7="), &model)?;
///     let options = GenerateOptions::new(8).stops(&prompt.stop);
///     prompt.sequence(&model)?.generate(&options)?.text().await
/// });
/// assert_eq!(text.unwrap(), "19");
/// ```
pub fn render_linked(chat: &Chat, model: &Model) -> Result<Prompt, Error> {
    chat.check()?;
    let messages = chat.parsed_messages().map(|message| bindings::Message {
        role: message.role,
        content: message.content,
        other: (!message.other.is_empty())
            .then(|| serde_json::Value::from(message.other).to_string()),
    });
    let settings = serde_json::Value::from(chat.variables.clone());
    let chat = bindings::Chat {
        messages: messages.collect(),
        tools: chat.tools.iter().map(ToString::to_string).collect(),
        add_generation_prompt: chat.add_generation_prompt,
        settings: (!chat.variables.is_empty()).then(|| settings.to_string()),
    };
    let facts = ModelFacts::new(model)?;
    let facts = bindings::ModelFacts {
        name: facts.name,
        bos: facts.bos,
        eos: facts.eos,
        chat_template: facts.chat_template,
    };
    let prompt = backend::render(&chat, &facts)
        .map_err(|error| Error::bad_request("template-error", error))?;
    let pieces = prompt.pieces.into_iter();
    Ok(Prompt {
        pieces: pieces
            .map(|piece| Piece {
                text: piece.text,
                trusted: piece.special,
            })
            .collect(),
        stop: prompt.stop,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Script;

    #[test]
    fn chat_is_checked_before_the_plugin_runs() {
        let script = Script::new().templating(|_, _| panic!("the plugin was called"));
        let error = script.run(async {
            let model = Model::open_default().await?;
            let chat = Chat::new().message("user|>", "12+7=");
            Ok::<_, Error>(render_linked(&chat, &model).unwrap_err())
        });
        let error = error.unwrap();
        assert_eq!((error.status(), error.code()), (400, "invalid-messages"));
    }
}
