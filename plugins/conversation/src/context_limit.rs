//! Checks that prompts fit into the context, and remembers by how much one did not.
//!
//! An instance serves one call, so there is at most one such error to remember. APIs show its numbers as fields.

use std::cell::Cell;

use corral_sdk::{Error, Model, Token};

/// The tokens of a prompt, and of the context that it exceeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContextExcess {
    pub prompt: usize,
    pub context: u32,
}

thread_local! {
    static EXCESS: Cell<Option<ContextExcess>> = const { Cell::new(None) };
}

/// Checks that a prompt has at least one token and leaves `room` tokens in the context. Errors name the request's
/// `field`.
pub fn check_prompt(model: &Model, prompt: &[Token], room: u32, field: &str) -> Result<(), Error> {
    let context = model.info().context;
    let most = context.saturating_sub(room);
    if prompt.len() <= most as usize {
        let checked = model.check_prompt(prompt, room);
        return checked.map_err(|error| error.with_field(field));
    }
    EXCESS.set(Some(ContextExcess {
        prompt: prompt.len(),
        context,
    }));
    let why = match room {
        0 => "",
        _ => " to leave room for an answer",
    };
    let text = format!(
        "the prompt has {} tokens, which exceeds the available context size of {context} tokens of the model {}; expected \
         at most {most}{why}",
        prompt.len(),
        model.name(),
    );
    Err(Error::bad_request("prompt-too-long", text).with_field(field))
}

/// The numbers of the error `prompt-too-long`.
pub fn excess() -> Option<ContextExcess> {
    EXCESS.get()
}
