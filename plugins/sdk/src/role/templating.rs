//! Templating plugins.

use crate::raw::templating_plugin::exports::corral::plugin::templating as exported;
use crate::template::{Chat, ModelFacts, Prompt};

#[doc(hidden)]
pub use exported::Guest;

#[doc(hidden)]
pub fn render(
    render: impl FnOnce(Chat, ModelFacts) -> Result<Prompt, String>,
    chat: exported::Chat,
    model: exported::ModelFacts,
) -> Result<exported::Prompt, String> {
    let messages = chat.messages.into_iter();
    let messages = messages.map(|message| (message.role, message.content, message.other));
    let chat = Chat::from_plugin(messages, &chat.tools, chat.begin_answer, chat.settings)?;
    let facts = ModelFacts {
        name: model.name,
        begin: model.begin,
        end: model.end,
        chat_template: model.chat_template,
    };
    let prompt = render(chat, facts)?;
    let pieces = prompt.pieces.into_iter();
    Ok(exported::Prompt {
        pieces: pieces
            .map(|piece| exported::Piece {
                text: piece.text,
                special: piece.trusted,
            })
            .collect(),
        stop: prompt.stop,
    })
}

#[doc(hidden)]
pub use exported::{Chat as RawChat, ModelFacts as RawFacts, Prompt as RawPrompt};

/// Makes a function from a chat to a prompt a templating plugin, which a deployment links:
/// [`template::linked`](crate::template::linked).
///
/// The error says what of the chat can't be written, to whoever sent it.
///
/// ```standalone_crate
/// use corral_sdk::role::{Chat, ModelFacts, Prompt};
///
/// fn render(chat: Chat, _: ModelFacts) -> Result<Prompt, String> {
///     let mut prompt = Prompt::default();
///     for turn in chat.turns() {
///         prompt = prompt.trusted("<|turn|>").text(&turn.content);
///     }
///     Ok(prompt)
/// }
///
/// corral_sdk::templating!(render);
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! templating {
    ($render:path) => {
        #[allow(unsafe_code)]
        const _: () = {
            struct Exported;
            impl $crate::role::templating::Guest for Exported {
                fn render(
                    chat: $crate::role::templating::RawChat,
                    model: $crate::role::templating::RawFacts,
                ) -> ::core::result::Result<
                    $crate::role::templating::RawPrompt,
                    ::std::string::String,
                > {
                    $crate::role::templating::render($render, chat, model)
                }
            }
            $crate::raw::templating_plugin::export!(
                Exported with_types_in $crate::raw::templating_plugin
            );
        };
    };
}
