//! A template that reports what it sees of the deployment: a piece for each message, one with the
//! environment variable `SECRET`, and one with the number of variables and arguments.
// Not `forbid`: the generated bindings contain unsafe code.
#![deny(unsafe_code)]

use bindings::exports::corral::plugin::templating::{Chat, Guest, ModelFacts, Piece, Prompt};

#[allow(unsafe_code)]
mod bindings {
    use super::Template;
    wit_bindgen::generate!({ world: "corral:plugin/templating-plugin", path: "../../../wit" });
    export!(Template);
}

struct Template;

impl Guest for Template {
    fn render(chat: Chat, _: ModelFacts) -> Result<Prompt, String> {
        let mut pieces = Vec::new();
        let mut say = |text, special| pieces.push(Piece { text, special });
        for message in chat.messages {
            say(format!("template read {}", message.content), false);
        }
        let secret = std::env::var("SECRET").unwrap_or_default();
        say(format!("template sees {secret}"), true);
        let (variables, arguments) = (std::env::vars().count(), std::env::args().count());
        say(
            format!("{variables} variables, {arguments} arguments"),
            true,
        );
        Ok(Prompt {
            pieces,
            stop: Vec::new(),
        })
    }
}
