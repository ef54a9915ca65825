//! The host functions, answered by this thread's script. Names and signatures are those that
//! `wit-bindgen` generates from `wit/`.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Ready, ready};
use std::rc::Rc;

#[cfg(feature = "config")]
#[cfg_attr(target_family = "wasm", allow(unused_imports))]
pub(crate) use super::config::{all_config, get_config};
pub use super::constraint::{Constraint, Matcher, compile_constraint};
use super::generation;
use super::installed::script;
#[cfg(feature = "key-values")]
#[cfg_attr(target_family = "wasm", allow(unused_imports))]
pub(crate) use super::key_values::{Bucket, open_bucket};
#[cfg(feature = "logging")]
#[cfg_attr(target_family = "wasm", allow(unused_imports))]
pub(crate) use super::logging::log;
#[cfg(feature = "messages")]
#[cfg_attr(target_family = "wasm", allow(unused_imports))]
pub(crate) use super::messages::publish;
pub use super::model::{Model, available, embed, open_model};
pub use super::options::{Options, sample_with};
use super::script_state::{GenerateCall, HostCall, ScriptState, invalid};
use crate::Token;
use crate::bindings::budget::RemainingBudget;
use crate::bindings::inference::{Chunk, Distribution, DistributionPart, Outcome};
use crate::bindings::inference_async::Framing;
use crate::bindings::types::{ContextLimit, Error};
use wasip3::wit_bindgen::StreamReader;

pub fn remaining() -> RemainingBudget {
    let script = script();
    RemainingBudget {
        tokens: script.tokens_left,
        time: script.time_left,
    }
}

#[cfg(feature = "linked-templating")]
pub fn render(
    chat: &crate::bindings::templated::corral::plugin::templating::Chat,
    facts: &crate::bindings::templated::corral::plugin::templating::ModelFacts,
) -> Result<crate::bindings::templated::corral::plugin::templating::Prompt, String> {
    use crate::bindings::templated::corral::plugin::templating as bindings;
    use crate::template::{Chat, ModelFacts};

    let script = script();
    let Some(render) = &script.templating else {
        panic!("the script has no templating plugin; add one with `Script::templating`");
    };
    let messages = chat.messages.iter().cloned();
    let messages = messages.map(|message| (message.role, message.content, message.other));
    let settings = chat.settings.clone();
    let chat = Chat::from_plugin(messages, &chat.tools, chat.add_generation_prompt, settings)?;
    let facts = ModelFacts {
        name: facts.name.clone(),
        bos: facts.bos.clone(),
        eos: facts.eos.clone(),
        chat_template: facts.chat_template.clone(),
    };
    let prompt = render(chat, facts)?;
    let pieces = prompt.pieces.into_iter();
    Ok(bindings::Prompt {
        pieces: pieces
            .map(|piece| bindings::Piece {
                text: piece.text,
                special: piece.trusted,
            })
            .collect(),
        stop: prompt.stop,
    })
}

#[derive(Clone)]
pub struct NextTokenRequest<'a> {
    pub part: DistributionPart,
    pub statistics: bool,
    pub matcher: Option<&'a Matcher>,
}

pub struct Sequence {
    script: Rc<ScriptState>,
    tokens: Rc<RefCell<Vec<Token>>>,
    /// Whether a generation is in progress.
    busy: Rc<Cell<bool>>,
}

impl Sequence {
    pub fn create(model: &Model) -> Result<Self, Error> {
        Ok(Self::new(model.script(), Vec::new()))
    }

    fn new(script: &Rc<ScriptState>, tokens: Vec<Token>) -> Self {
        Sequence {
            script: Rc::clone(script),
            tokens: Rc::new(RefCell::new(tokens)),
            busy: Rc::default(),
        }
    }

    fn check_idle(&self) -> Result<(), Error> {
        match self.busy.get() {
            true => invalid(
                "a generation is in progress on this sequence; read it to its end or drop it",
            ),
            false => Ok(()),
        }
    }

    pub fn append(&self, tokens: &[Token]) -> Result<(), Error> {
        self.check_idle()?;
        self.script.scripted_error("append")?;
        self.script.bytes(tokens, true)?;
        let needed = self.length() + tokens.len() as u32;
        let limit = self.script.info.context;
        if needed > limit {
            return Err(Error::ContextFull(ContextLimit { needed, limit }));
        }
        self.tokens.borrow_mut().extend(tokens);
        Ok(())
    }

    pub fn truncate(&self, length: u32) -> Result<(), Error> {
        self.check_idle()?;
        self.check_can_fork()?;
        self.tokens.borrow_mut().truncate(length as usize);
        Ok(())
    }

    pub fn fork(&self) -> Result<Self, Error> {
        self.check_idle()?;
        self.check_can_fork()?;
        self.script.scripted_error("fork")?;
        Ok(Self::new(&self.script, self.tokens.borrow().clone()))
    }

    fn check_can_fork(&self) -> Result<(), Error> {
        match self.script.info.can_fork {
            true => Ok(()),
            false => invalid("this model supports neither fork nor truncate"),
        }
    }

    pub fn set_adapter(&self, adapter: Option<&str>) -> Result<(), Error> {
        self.check_idle()?;
        match adapter {
            Some(name) if !self.script.info.adapters.iter().any(|known| known == name) => {
                invalid(&format!("there is no adapter {name:?}"))
            }
            _ => Ok(()),
        }
    }

    pub fn length(&self) -> u32 {
        self.tokens.borrow().len() as u32
    }

    pub fn tokens(&self, start: u32) -> Vec<Token> {
        let tokens = self.tokens.borrow();
        tokens.get(start as usize..).unwrap_or_default().to_vec()
    }
}

pub fn generate(
    sequence: &Sequence,
    options: &Options,
) -> Result<(ChunkStream, OutcomeFuture), Error> {
    sequence.check_idle()?;
    let tokens = sequence.tokens.borrow().clone();
    sequence.script.record(HostCall::Generate(GenerateCall {
        after: sequence.script.display_text(&tokens),
        settings: options.settings.borrow().clone(),
    }));
    sequence.script.scripted_error("generate")?;
    if tokens.is_empty() {
        return invalid("the sequence is empty; append something first");
    }
    if options.max_tokens == 0 {
        return invalid("max-tokens is 0; it must be 1 or more");
    }
    let (chunks, outcome) = generation::generate(&sequence.script, tokens, options)?;
    sequence.busy.set(true);
    let chunks = ChunkStream {
        unread: chunks.into(),
        script: Rc::clone(&sequence.script),
        tokens: Rc::clone(&sequence.tokens),
        busy: Rc::clone(&sequence.busy),
        ended: false,
    };
    Ok((chunks, ready(outcome)))
}

pub async fn next(
    sequence: &Sequence,
    request: NextTokenRequest<'_>,
) -> Result<Distribution, Error> {
    sequence.check_idle()?;
    let tokens = sequence.tokens.borrow();
    sequence
        .script
        .record(HostCall::Next(sequence.script.display_text(&tokens)));
    sequence.script.scripted_error("next")?;
    if tokens.is_empty() {
        return invalid("the sequence is empty; append something first");
    }
    let row = sequence.script.logits(&tokens)?;
    let next = request.matcher.map(Matcher::next);
    let allowed = |token| next.as_ref().is_none_or(|next| next.contains(&token));
    let statistics = request.statistics.then(|| ScriptState::statistics(&row));
    let (candidates, logits) = match request.part {
        DistributionPart::Top(count) => {
            let mut list = ScriptState::descending(&row, allowed);
            list.truncate(count as usize);
            (list, Vec::new())
        }
        _ if next.is_some() => return invalid("a matcher requires `top`"),
        DistributionPart::Only(tokens) => {
            let tokens = tokens.into_iter();
            let list = tokens.map(|token| match row.get(token as usize) {
                Some(&logit) => Ok(crate::Candidate { token, logit }),
                None => invalid(&format!("token {token} is outside the vocabulary")),
            });
            (list.collect::<Result<_, _>>()?, Vec::new())
        }
        DistributionPart::Logits => (Vec::new(), row),
    };
    Ok(Distribution {
        candidates,
        logits,
        statistics,
        position: tokens.len() as u32,
    })
}

pub async fn append_image(sequence: &Sequence, file: Vec<u8>) -> Result<u32, Error> {
    sequence.check_idle()?;
    sequence.script.scripted_error("append-image")?;
    let is_audio = crate::template::ChatImage::new(file.clone()).is_audio();
    let (what, is_accepted) = match is_audio {
        true => ("audio", sequence.script.accepts_audio),
        false => ("image", sequence.script.accepts_images),
    };
    if !is_accepted {
        return invalid(&format!(
            "the scripted model does not accept {what}; see `Script::accepts_audio` and `accepts_images`"
        ));
    }
    let name = format!("[{what} of {} bytes]", file.len());
    let tokens = sequence.script.tokenize(name, false);
    let length = tokens.len() as u32;
    sequence.script.record(HostCall::AppendImage(file));
    sequence.append(&tokens)?;
    Ok(length)
}

pub async fn save_snapshot(sequence: &Sequence, name: String) -> Result<(), Error> {
    sequence.script.record(HostCall::Snapshot(name.clone()));
    sequence.check_idle()?;
    sequence.script.scripted_error("snapshot")?;
    let tokens = sequence.tokens.borrow().clone();
    sequence.script.snapshots.borrow_mut().insert(name, tokens);
    Ok(())
}

pub async fn restore_snapshot(model: &Model, name: String) -> Result<Sequence, Error> {
    model.script().record(HostCall::Restore(name.clone()));
    model.script().scripted_error("restore")?;
    match model.script().snapshots.borrow().get(&name) {
        Some(tokens) => Ok(Sequence::new(model.script(), tokens.clone())),
        None => Err(Error::NotFound(format!("there is no snapshot {name:?}"))),
    }
}

pub async fn delete_snapshot(model: &Model, name: String) -> Result<(), Error> {
    model
        .script()
        .record(HostCall::DeleteSnapshot(name.clone()));
    match model.script().snapshots.borrow_mut().remove(&name) {
        Some(_) => Ok(()),
        None => Err(Error::NotFound(format!("there is no snapshot {name:?}"))),
    }
}

pub async fn next_many(
    requests: Vec<(&Sequence, NextTokenRequest<'_>)>,
) -> Vec<Result<Distribution, Error>> {
    let mut results = Vec::new();
    for (sequence, request) in requests {
        results.push(next(sequence, request).await);
    }
    results
}

pub async fn collect(mut chunks: ChunkStream) -> Result<Chunk, Error> {
    let mut all = Chunk {
        tokens: Vec::new(),
        text: String::new(),
        logprobs: Vec::new(),
    };
    while let Some(chunk) = chunks.next().await {
        all.tokens.extend(chunk.tokens);
        all.text += &chunk.text;
        all.logprobs.extend(chunk.logprobs);
    }
    Ok(all)
}

/// Not used: [`TextEvents`](crate::http) writes the events here.
pub fn frame(_: ChunkStream, _: &Framing, _: StreamReader<u8>) -> Result<StreamReader<u8>, Error> {
    invalid("the scripted host does not frame streams")
}

/// The unread chunks. Tokens become part of the sequence when they are read.
pub struct ChunkStream {
    unread: VecDeque<Chunk>,
    script: Rc<ScriptState>,
    tokens: Rc<RefCell<Vec<Token>>>,
    busy: Rc<Cell<bool>>,
    ended: bool,
}

pub type OutcomeFuture = Ready<Result<Outcome, Error>>;

impl ChunkStream {
    pub async fn next(&mut self) -> Option<Chunk> {
        assert!(
            !self.ended,
            "the host traps reads after the end of a stream"
        );
        let chunk = self.unread.pop_front();
        self.ended = chunk.is_none();
        match &chunk {
            Some(chunk) => self.tokens.borrow_mut().extend(&chunk.tokens),
            None => self.busy.set(false),
        }
        chunk
    }
}

impl Drop for ChunkStream {
    fn drop(&mut self) {
        self.busy.set(false);
        if !self.unread.is_empty() {
            self.script.record(HostCall::Cancelled);
        }
    }
}
