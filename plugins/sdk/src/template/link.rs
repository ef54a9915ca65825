//! The templating plugin that the deployment links.

use super::{Chat, ModelFacts, Piece, Prompt};
use crate::raw::templated::corral::plugin::templating as link;
use crate::{Error, Model, backend};

/// Has the templating plugin that the deployment links write a chat. A handler that calls this can't be
/// deployed without one.
///
/// The chat is checked first ([`Chat::check`]). What the plugin refuses is 400 with the code
/// `template-error`.
///
/// ```
/// use corral_sdk::template::{Chat, Prompt, linked};
/// use corral_sdk::{Generate, Model, testing::Script};
///
/// let script = Script::new()
///     .templating(|chat, _| {
///         let said = chat.turns().last().map(|turn| turn.content).unwrap_or_default();
///         Ok(Prompt::default().text(said).trusted("<|im_end|>"))
///     })
///     .answers("12+7=<|im_end|>", "19");
/// let text = script.run(async {
///     let model = Model::first().await?;
///     let prompt = linked(&Chat::new().message("user", "12+7="), &model)?;
///     let how = Generate::new(8).stops(&prompt.stop);
///     prompt.sequence(&model)?.generate(&how)?.text().await
/// });
/// assert_eq!(text.unwrap(), "19");
/// ```
pub fn linked(chat: &Chat, model: &Model) -> Result<Prompt, Error> {
    chat.check()?;
    let messages = chat.turns().map(|turn| link::Message {
        role: turn.role,
        content: turn.content,
        other: (!turn.other.is_empty()).then(|| serde_json::Value::from(turn.other).to_string()),
    });
    let settings = serde_json::Value::from(chat.arguments.clone());
    let chat = link::Chat {
        messages: messages.collect(),
        tools: chat.tools.iter().map(ToString::to_string).collect(),
        begin_answer: chat.begin_answer,
        settings: (!chat.arguments.is_empty()).then(|| settings.to_string()),
    };
    let facts = ModelFacts::of(model)?;
    let facts = link::ModelFacts {
        name: facts.name,
        begin: facts.begin,
        end: facts.end,
        chat_template: facts.chat_template,
    };
    let prompt = backend::render(&chat, &facts)
        .map_err(|words| Error::bad_request("template-error", words))?;
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
    fn a_chat_is_checked_before_the_plugin_has_it() {
        let script = Script::new().templating(|_, _| panic!("it was asked"));
        let refused = script.run(async {
            let model = Model::first().await?;
            let chat = Chat::new().message("user|>", "12+7=");
            Ok::<_, Error>(linked(&chat, &model).unwrap_err())
        });
        let refused = refused.unwrap();
        assert_eq!(
            (refused.status(), refused.code()),
            (400, "invalid-messages")
        );
    }
}
