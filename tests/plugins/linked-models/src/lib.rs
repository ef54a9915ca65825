//! A template that wants to know the deployment's models, which only one that inherits may.
// Not forbid: the bindings are generated, with unsafe code.
#![deny(unsafe_code)]

use bindings::corral::inference::models::available;
use bindings::exports::corral::plugin::templating::{Chat, Guest, ModelFacts, Piece, Prompt};

#[allow(unsafe_code)]
mod bindings {
    use super::Nosy;
    wit_bindgen::generate!({
        inline: "
            package test:linked-nosy;
            world nosy {
                import corral:inference/models@0.1.0;
                export corral:plugin/templating@0.1.0;
            }
        ",
        path: "../../../wit",
        world: "test:linked-nosy/nosy",
        generate_all,
    });
    export!(Nosy);
}

struct Nosy;

impl Guest for Nosy {
    fn render(_: Chat, _: ModelFacts) -> Result<Prompt, String> {
        let text = format!("template knows {}", available().join(","));
        Ok(Prompt {
            pieces: vec![Piece {
                text,
                special: true,
            }],
            stop: Vec::new(),
        })
    }
}
