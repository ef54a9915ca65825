//! A templating plugin that is right or wrong in every way. Without settings it writes ChatML; with
//! `{"do":"DEED"}` it does a deed:
//!
//! | deed | what it does |
//! |---|---|
//! | `stop` | writes ChatML, and stops answers at a "9" |
//! | `facts` | answers with an error that says all that it was told of the model and the chat |
//! | `environment` | writes ChatML, and before it its environment variables and arguments |
//! | `allowed` | writes ChatML, and uses the clocks, chance and the log |
//! | `refuse` | answers with an error |
//! | `trap` | traps |
//! | `spin` | never answers |
//! | `hog` | takes memory without end |
//! | `giant` | writes a prompt of 33 MiB |
// Not forbid: the bindings are generated, with unsafe code.
#![deny(unsafe_code)]

use std::collections::HashMap;
use std::time::{Instant, SystemTime};

use bindings::exports::corral::plugin::templating::{Chat, Guest, ModelFacts, Piece, Prompt};

#[allow(unsafe_code)]
mod bindings {
    use super::Templates;
    wit_bindgen::generate!({ world: "corral:plugin/templating-plugin", path: "../../../wit" });
    export!(Templates);
}

struct Templates;

impl Guest for Templates {
    fn render(chat: Chat, model: ModelFacts) -> Result<Prompt, String> {
        let settings = chat.settings.clone().unwrap_or_default();
        let deed = settings.strip_prefix("{\"do\":\"");
        let deed = deed.and_then(|deed| deed.strip_suffix("\"}"));
        let mut prompt = chatml(&chat);
        match deed.unwrap_or(&settings) {
            "" => {}
            "stop" => prompt.stop.push("9".to_owned()),
            "facts" => return Err(format!("{model:?} {chat:?}")),
            "environment" => prompt.pieces.insert(0, plain(environment())),
            "allowed" => allowed()?,
            "refuse" => return Err("this chat can't be written, as it was told to".to_owned()),
            "trap" => std::process::abort(),
            "spin" => loop {
                std::hint::spin_loop();
            },
            "hog" => hog(),
            "giant" => prompt.pieces.push(plain("x".repeat(33 << 20))),
            other => return Err(format!("there is no deed {other}")),
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
    if chat.begin_answer {
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

/// What every linked plugin may use. The error says what it got in place of it.
fn allowed() -> Result<(), String> {
    println!("a line of a template");
    let began = Instant::now();
    while began.elapsed().is_zero() {}
    if let Err(error) = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH) {
        return Err(error.to_string());
    }
    // Its hashes are seeded by chance.
    let map = HashMap::from([(1, 1)]);
    match map.get(&1) {
        Some(1) => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

/// Takes memory in pieces that are written to, so that it is really taken.
fn hog() -> ! {
    let mut pieces = Vec::new();
    loop {
        pieces.push(vec![1_u8; 1024 * 1024]);
        std::hint::black_box(&pieces);
    }
}
