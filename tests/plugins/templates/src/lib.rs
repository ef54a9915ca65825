//! A templating plugin with correct and faulty behavior. Without settings it renders ChatML;
//! `{"do":"WORD"}` selects another behavior:
//!
//! | word | behavior |
//! |---|---|
//! | `stop` | renders ChatML, and stops answers at a "9" |
//! | `facts` | fails with all that it received about the model and the chat |
//! | `environment` | renders its environment variables and arguments, then ChatML |
//! | `allowed` | renders ChatML, and uses the clocks, random numbers and the log |
//! | `refuse` | fails |
//! | `trap` | traps |
//! | `spin` | loops forever |
//! | `hog` | allocates memory without end |
//! | `giant` | renders a prompt of 33 MiB |
// Not `forbid`: the generated bindings contain unsafe code.
#![deny(unsafe_code)]

#[path = "../../misbehave/src/faults.rs"]
mod faults;

use std::collections::HashMap;
use std::time::{Instant, SystemTime};

use bindings::exports::corral::plugin::templating::{Chat, Guest, ModelFacts, Piece, Prompt};
use faults::{hog, spin, trap};

#[allow(unsafe_code)]
mod bindings {
    use super::Templates;
    wit_bindgen::generate!({ world: "corral:inference/templating", path: "../../../wit" });
    export!(Templates);
}

struct Templates;

impl Guest for Templates {
    fn render(chat: Chat, model: ModelFacts) -> Result<Prompt, String> {
        let settings = chat.settings.clone().unwrap_or_default();
        let word = settings.strip_prefix("{\"do\":\"");
        let word = word.and_then(|word| word.strip_suffix("\"}"));
        let mut prompt = chatml(&chat);
        match word.unwrap_or(&settings) {
            "" => {}
            "stop" => prompt.stop.push("9".to_owned()),
            "facts" => return Err(format!("{model:?} {chat:?}")),
            "environment" => prompt.pieces.insert(0, plain(environment())),
            "allowed" => allowed()?,
            "refuse" => return Err("this chat is refused on request".to_owned()),
            "trap" => trap(),
            "spin" => spin(),
            "hog" => hog(),
            "giant" => prompt.pieces.push(plain("x".repeat(33 << 20))),
            other => return Err(format!("there is no behavior {other}")),
        }
        Ok(prompt)
    }
}

fn plain(text: String) -> Piece {
    Piece {
        text,
        special: false,
    }
}

fn special(text: &str) -> Piece {
    Piece {
        text: text.to_owned(),
        special: true,
    }
}

fn chatml(chat: &Chat) -> Prompt {
    let mut pieces = Vec::new();
    for message in &chat.messages {
        pieces.push(special("<|im_start|>"));
        pieces.push(plain(format!("{}\n{}", message.role, message.content)));
        pieces.push(special("<|im_end|>\n"));
    }
    if chat.add_generation_prompt {
        pieces.push(special("<|im_start|>assistant\n"));
    }
    Prompt {
        pieces,
        stop: Vec::new(),
    }
}

fn environment() -> String {
    let variables: Vec<_> = std::env::vars().collect();
    let arguments: Vec<_> = std::env::args().collect();
    format!("variables {variables:?}, arguments {arguments:?}")
}

/// Uses everything that a linked plugin may use. The error gives an unexpected result.
fn allowed() -> Result<(), String> {
    println!("a line of a template");
    let began = Instant::now();
    while began.elapsed().is_zero() {}
    if let Err(error) = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH) {
        return Err(error.to_string());
    }
    // The hash seeds are random.
    let map = HashMap::from([(1, 1)]);
    match map.get(&1) {
        Some(1) => Ok(()),
        other => Err(format!("{other:?}")),
    }
}
