//! Templating plugins.

use crate::bindings::templating_plugin::exports::corral::plugin::templating as exported;
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
    let chat = Chat::from_plugin(
        messages,
        &chat.tools,
        chat.add_generation_prompt,
        chat.settings,
    )?;
    let facts = ModelFacts {
        name: model.name,
        bos: model.bos,
        eos: model.eos,
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

/// Exports a function from a chat to a prompt as a templating plugin. Handlers call it with
/// [`template::render_linked`](crate::template::render_linked).
///
/// The error says, for the sender of the chat, what can't be rendered.
///
/// ```standalone_crate
/// use corral_sdk::linked::{Chat, ModelFacts, Prompt};
///
/// fn render(chat: Chat, _: ModelFacts) -> Result<Prompt, String> {
///     let mut prompt = Prompt::default();
///     for message in chat.parsed_messages() {
///         prompt = prompt.trusted("<|message|>").text(&message.content);
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
            impl $crate::linked::templating::Guest for Exported {
                fn render(
                    chat: $crate::linked::templating::RawChat,
                    model: $crate::linked::templating::RawFacts,
                ) -> ::core::result::Result<
                    $crate::linked::templating::RawPrompt,
                    ::std::string::String,
                > {
                    $crate::linked::templating::render($render, chat, model)
                }
            }
            $crate::bindings::templating_plugin::export!(
                Exported with_types_in $crate::bindings::templating_plugin
            );
        };
    };
}
