//! A template that imports the deployment's models, which requires inheritance.
// Not `forbid`: the generated bindings contain unsafe code.
#![deny(unsafe_code)]

use bindings::corral::inference::models::available;
use bindings::exports::corral::plugin::templating::{Chat, Guest, ModelFacts, Piece, Prompt};

#[allow(unsafe_code)]
mod bindings {
    use super::ModelLister;
    wit_bindgen::generate!({
        inline: "
            package test:linked-models;
            world models-template {
                import corral:inference/models@0.1.0;
                export corral:plugin/templating@0.1.0;
            }
        ",
        path: "../../../wit",
        world: "test:linked-models/models-template",
        generate_all,
    });
    export!(ModelLister);
}

struct ModelLister;

impl Guest for ModelLister {
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
