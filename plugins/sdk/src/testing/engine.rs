//! The bindings' functions, answered by the script of this thread. Names and signatures are those that
//! `wit-bindgen` makes of `wit/`.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Ready, ready};
use std::rc::Rc;

use super::generating;
use super::state::{Call, Generated, State};
use crate::Token;
use crate::raw::budget::Remainder;
use crate::raw::constraints::Grammar;
use crate::raw::inference::{Chunk, Distribution, Dry, Outcome, Penalties, Statistics, View};
use crate::raw::models::{ModelInfo, Pooling};
use crate::raw::types::{ContextLimit, Error};

thread_local! {
    static SCRIPT: RefCell<Option<Rc<State>>> = const { RefCell::new(None) };
}

/// As long as it lives, the script is this thread's.
pub(super) struct Installed(Option<Rc<State>>);

pub(super) fn install(state: &Rc<State>) -> Installed {
    Installed(SCRIPT.replace(Some(Rc::clone(state))))
}

impl Drop for Installed {
    fn drop(&mut self) {
        SCRIPT.set(self.0.take());
    }
}

fn script() -> Rc<State> {
    match SCRIPT.with_borrow(Clone::clone) {
        Some(script) => script,
        None => panic!("there is no host here; run this within `testing::Script::run`"),
    }
}

fn invalid<T>(text: &str) -> Result<T, Error> {
    Err(Error::Invalid(text.to_owned()))
}

pub(crate) fn available() -> Vec<String> {
    vec![script().info.name.clone()]
}

pub(crate) fn left() -> Remainder {
    let script = script();
    Remainder {
        tokens: script.tokens_left,
        time: script.time_left,
    }
}

#[cfg(feature = "linked-templating")]
pub(crate) fn render(
    chat: &crate::raw::templated::corral::plugin::templating::Chat,
    facts: &crate::raw::templated::corral::plugin::templating::ModelFacts,
) -> Result<crate::raw::templated::corral::plugin::templating::Prompt, String> {
    use crate::raw::templated::corral::plugin::templating as link;
    use crate::template::{Chat, ModelFacts};

    let script = script();
    let Some(render) = &script.templating else {
        panic!("the script has no templating plugin; give it one with `templating`");
    };
    let messages = chat.messages.iter().cloned();
    let messages = messages.map(|message| (message.role, message.content, message.other));
    let settings = chat.settings.clone();
    let chat = Chat::from_plugin(messages, &chat.tools, chat.begin_answer, settings)?;
    let facts = ModelFacts {
        name: facts.name.clone(),
        begin: facts.begin.clone(),
        end: facts.end.clone(),
        chat_template: facts.chat_template.clone(),
    };
    let prompt = render(chat, facts)?;
    let pieces = prompt.pieces.into_iter();
    Ok(link::Prompt {
        pieces: pieces
            .map(|piece| link::Piece {
                text: piece.text,
                special: piece.trusted,
            })
            .collect(),
        stop: prompt.stop,
    })
}

pub(crate) struct Model(Rc<State>);

impl Model {
    pub(crate) async fn open(name: Option<String>) -> Result<Self, Error> {
        let script = script();
        script.told(Call::Open(name.clone()));
        script.fails("open")?;
        match name {
            Some(name) if name != script.info.name => Err(Error::NotFound(format!(
                "there is no model {name:?} here; expected {:?}",
                script.info.name
            ))),
            _ => Ok(Model(script)),
        }
    }

    pub(crate) fn info(&self) -> ModelInfo {
        self.0.info.clone()
    }

    pub(crate) fn tokenize(&self, text: &str, special: bool) -> Result<Vec<Token>, Error> {
        self.0.fails("tokenize")?;
        Ok(self.0.tokenize(text, special))
    }

    pub(crate) fn detokenize(&self, tokens: &[Token], special: bool) -> Result<Vec<u8>, Error> {
        self.0.bytes(tokens, special)
    }

    pub(crate) async fn embed(
        &self,
        inputs: Vec<Vec<Token>>,
        _: Option<Pooling>,
        _: Option<bool>,
    ) -> Result<Vec<Vec<f32>>, Error> {
        let texts: Vec<_> = inputs.iter().map(|input| self.0.written(input)).collect();
        self.0.told(Call::Embed(texts.clone()));
        self.0.fails("embed")?;
        let vectors = texts.iter().map(|text| {
            let known = self.0.embeddings.get(text).cloned();
            known.ok_or_else(|| Error::Failed(format!("the script has no embedding of {text:?}")))
        });
        vectors.collect()
    }
}

pub(crate) struct Constraint(Rc<Vec<Vec<u8>>>);

impl Constraint {
    pub(super) fn of(texts: Rc<Vec<Vec<u8>>>) -> Self {
        Constraint(texts)
    }

    pub(crate) async fn compile(model: &Model, grammar: Grammar) -> Result<Self, Error> {
        let text = match grammar {
            Grammar::JsonObject => String::new(),
            Grammar::JsonSchema(text)
            | Grammar::Regex(text)
            | Grammar::Lark(text)
            | Grammar::Gbnf(text) => text,
        };
        let script = &model.0;
        script.told(Call::Compile(text.clone()));
        script.fails("compile")?;
        let Some(texts) = script.languages.get(&text) else {
            return invalid(&format!("the script does not know the grammar {text:?}"));
        };
        let texts = texts.iter().map(|text| text.clone().into_bytes());
        Ok(Constraint(Rc::new(texts.collect())))
    }
}

/// The texts that there are, and how far it has come.
#[derive(Clone)]
pub(crate) struct Matcher {
    texts: Rc<Vec<Vec<u8>>>,
    said: RefCell<Vec<u8>>,
    script: Rc<State>,
}

impl Matcher {
    pub(crate) fn start(constraint: &Constraint) -> Result<Self, Error> {
        Ok(Matcher {
            texts: Rc::clone(&constraint.0),
            said: RefCell::default(),
            script: script(),
        })
    }

    pub(crate) fn fork(&self) -> Result<Self, Error> {
        Ok(self.clone())
    }

    fn next(&self) -> Vec<Token> {
        let said = self.said.borrow();
        let fitting = self
            .texts
            .iter()
            .filter_map(|text| text.strip_prefix(&said[..]));
        let mut tokens = Vec::new();
        for rest in fitting {
            match rest.first() {
                Some(&byte) => tokens.push(byte.into()),
                None => tokens.extend(&self.script.info.end_of_generation),
            }
        }
        tokens.sort_unstable();
        tokens.dedup();
        tokens
    }

    pub(crate) fn mask(&self) -> Result<Vec<u32>, Error> {
        let words = self.script.info.vocabulary.div_ceil(32);
        let mut mask = vec![0; words as usize];
        for token in self.next() {
            mask[token as usize / 32] |= 1 << (token % 32);
        }
        Ok(mask)
    }

    pub(crate) fn allowed(&self, most: u32) -> Result<Option<Vec<Token>>, Error> {
        Ok(Some(self.next()).filter(|tokens| tokens.len() <= most as usize))
    }

    pub(crate) fn allows(&self, token: Token) -> Result<bool, Error> {
        Ok(self.next().contains(&token))
    }

    pub(crate) fn accept(&self, token: Token) -> Result<(), Error> {
        if !self.allows(token)? {
            return invalid(&format!("token {token} may not come next"));
        }
        self.said.borrow_mut().extend(u8::try_from(token));
        Ok(())
    }

    pub(crate) fn forced(&self, most: u32) -> Result<Vec<Token>, Error> {
        let mut forced = Vec::new();
        while let (true, &[token]) = (forced.len() < most as usize, &self.next()[..]) {
            if token >= 256 {
                break;
            }
            self.accept(token)?;
            forced.push(token);
        }
        Ok(forced)
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.next().iter().all(|&token| token >= 256)
    }
}

#[derive(Clone)]
pub(crate) struct Look<'a> {
    pub(crate) view: View,
    pub(crate) statistics: bool,
    pub(crate) matcher: Option<&'a Matcher>,
}

/// How to generate: what matters to the script, and all of it in words.
pub(crate) struct Options {
    pub(super) max_tokens: u32,
    pub(super) settings: RefCell<Vec<String>>,
    pub(super) seed: Cell<Option<u64>>,
    pub(super) stops: RefCell<Vec<String>>,
    pub(super) ignore_end: Cell<bool>,
    pub(super) constraint: RefCell<Option<Rc<Vec<Vec<u8>>>>>,
    pub(super) logprobs: Cell<Option<u8>>,
    pub(super) sampler: RefCell<Option<(String, String)>>,
    script: Rc<State>,
}

/// Setters that the script only writes down.
macro_rules! written {
    ($($function:ident($($argument:ident: $type:ty),*) $text:literal;)*) => {
        $(
            pub(crate) fn $function(&self $(, $argument: $type)*) -> Result<(), Error> {
                self.written(format!($text));
                Ok(())
            }
        )*
    };
}

impl Options {
    pub(crate) fn new(max_tokens: u32) -> Self {
        Options {
            max_tokens,
            settings: RefCell::new(vec![format!("max-tokens {max_tokens}")]),
            seed: Cell::default(),
            stops: RefCell::default(),
            ignore_end: Cell::default(),
            constraint: RefCell::default(),
            logprobs: Cell::default(),
            sampler: RefCell::default(),
            script: script(),
        }
    }

    fn written(&self, text: String) {
        self.settings.borrow_mut().push(text);
    }

    pub(crate) fn seed(&self, seed: u64) {
        self.seed.set(Some(seed));
        self.written(format!("seed {seed}"));
    }

    pub(crate) fn stop(&self, text: &str) -> Result<(), Error> {
        if text.is_empty() || text.len() > 256 {
            return invalid("a stop string has 1 to 256 bytes");
        }
        self.stops.borrow_mut().push(text.to_owned());
        self.written(format!("stop {text:?}"));
        Ok(())
    }

    pub(crate) fn ignore_end(&self) {
        self.ignore_end.set(true);
        self.written("ignore-end".to_owned());
    }

    pub(crate) fn temperature(&self, value: f32) -> Result<(), Error> {
        at_least_0("temperature", value)?;
        self.written(format!("temperature {value}"));
        Ok(())
    }

    pub(crate) fn top_p(&self, mass: f32) -> Result<(), Error> {
        share("top-p", mass)?;
        self.written(format!("top-p {mass}"));
        Ok(())
    }

    pub(crate) fn min_p(&self, ratio: f32) -> Result<(), Error> {
        share("min-p", ratio)?;
        self.written(format!("min-p {ratio}"));
        Ok(())
    }

    written! {
        top_k(count: u32) "top-k {count}";
        dynamic_temperature(temperature: f32, range: f32, exponent: f32)
            "dynamic-temperature {temperature} {range} {exponent}";
        typical(mass: f32) "typical {mass}";
        top_n_sigma(count: f32) "top-n-sigma {count}";
        xtc(probability: f32, threshold: f32) "xtc {probability} {threshold}";
        dry(settings: &Dry) "dry {settings:?}";
        penalties(settings: Penalties) "penalties {settings:?}";
        logit_bias(biases: &[(Token, f32)]) "logit-bias {biases:?}";
        mirostat(tau: f32, eta: f32) "mirostat {tau} {eta}";
        speculate(most: u8) "speculate {most}";
    }

    pub(crate) fn constrain(&self, constraint: &Constraint) {
        self.constraint.replace(Some(Rc::clone(&constraint.0)));
        self.written("constrain".to_owned());
    }

    pub(crate) fn logprobs(&self, top: u8) -> Result<(), Error> {
        if top > 20 {
            return invalid("at most 20 of the likeliest tokens are told");
        }
        self.logprobs.set(Some(top));
        self.written(format!("logprobs {top}"));
        Ok(())
    }

    pub(crate) fn adapter(&self, name: &str) {
        self.written(format!("adapter {name}"));
    }

    pub(crate) async fn sample_with(&self, name: String, settings: String) -> Result<(), Error> {
        self.script.fails("sample-with")?;
        generating::start(&self.script, &name, &settings, 0)?;
        self.written(format!("sample-with {name} {settings}"));
        self.sampler.replace(Some((name, settings)));
        Ok(())
    }
}

fn at_least_0(name: &str, value: f32) -> Result<(), Error> {
    if value.is_finite() && value >= 0.0 {
        return Ok(());
    }
    invalid(&format!("the {name} is {value}; it must be 0 or more"))
}

fn share(name: &str, value: f32) -> Result<(), Error> {
    if (0.0..=1.0).contains(&value) {
        return Ok(());
    }
    invalid(&format!("{name} is {value}; it must be between 0 and 1"))
}

pub(crate) struct Sequence {
    script: Rc<State>,
    tokens: Rc<RefCell<Vec<Token>>>,
    /// Whether a generation runs.
    busy: Rc<Cell<bool>>,
}

impl Sequence {
    pub(crate) fn create(model: &Model) -> Result<Self, Error> {
        Ok(Self::of(&model.0, Vec::new()))
    }

    fn of(script: &Rc<State>, tokens: Vec<Token>) -> Self {
        Sequence {
            script: Rc::clone(script),
            tokens: Rc::new(RefCell::new(tokens)),
            busy: Rc::default(),
        }
    }

    fn free(&self) -> Result<(), Error> {
        match self.busy.get() {
            true => invalid("a generation runs on this sequence; read it to its end, or drop it"),
            false => Ok(()),
        }
    }

    pub(crate) fn append(&self, tokens: &[Token]) -> Result<(), Error> {
        self.free()?;
        self.script.fails("append")?;
        self.script.bytes(tokens, true)?;
        let needed = self.length() + tokens.len() as u32;
        let limit = self.script.info.context;
        if needed > limit {
            return Err(Error::ContextFull(ContextLimit { needed, limit }));
        }
        self.tokens.borrow_mut().extend(tokens);
        Ok(())
    }

    pub(crate) fn truncate(&self, length: u32) -> Result<(), Error> {
        self.free()?;
        self.can_fork()?;
        self.tokens.borrow_mut().truncate(length as usize);
        Ok(())
    }

    pub(crate) fn fork(&self) -> Result<Self, Error> {
        self.free()?;
        self.can_fork()?;
        self.script.fails("fork")?;
        Ok(Self::of(&self.script, self.tokens.borrow().clone()))
    }

    fn can_fork(&self) -> Result<(), Error> {
        match self.script.info.can_fork {
            true => Ok(()),
            false => invalid("this model can neither fork nor truncate"),
        }
    }

    pub(crate) fn adapt(&self, adapter: Option<&str>) -> Result<(), Error> {
        self.free()?;
        match adapter {
            Some(name) if !self.script.info.adapters.iter().any(|known| known == name) => {
                invalid(&format!("there is no adapter {name:?}"))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn length(&self) -> u32 {
        self.tokens.borrow().len() as u32
    }

    pub(crate) fn tokens(&self, start: u32) -> Vec<Token> {
        let tokens = self.tokens.borrow();
        tokens.get(start as usize..).unwrap_or_default().to_vec()
    }

    pub(crate) fn generate(&self, options: &Options) -> Result<(Chunks, Ending), Error> {
        self.free()?;
        let tokens = self.tokens.borrow().clone();
        self.script.told(Call::Generate(Generated {
            after: self.script.written(&tokens),
            settings: options.settings.borrow().clone(),
        }));
        self.script.fails("generate")?;
        if tokens.is_empty() {
            return invalid("the sequence is empty; append something first");
        }
        if options.max_tokens == 0 {
            return invalid("max-tokens is 0; it must be 1 or more");
        }
        let (chunks, outcome) = generating::generate(&self.script, tokens, options)?;
        self.busy.set(true);
        let chunks = Chunks {
            left: chunks.into(),
            script: Rc::clone(&self.script),
            tokens: Rc::clone(&self.tokens),
            busy: Rc::clone(&self.busy),
            ended: false,
        };
        Ok((chunks, ready(outcome)))
    }

    pub(crate) async fn next(&self, look: Look<'_>) -> Result<Distribution, Error> {
        self.free()?;
        let tokens = self.tokens.borrow();
        self.script.told(Call::Next(self.script.written(&tokens)));
        self.script.fails("next")?;
        if tokens.is_empty() {
            return invalid("the sequence is empty; append something first");
        }
        let row = self.script.row(&tokens)?;
        let next = look.matcher.map(Matcher::next);
        let allowed = |token| next.as_ref().is_none_or(|next| next.contains(&token));
        let statistics = look.statistics.then(|| statistics(&row));
        let (candidates, logits) = match look.view {
            View::Top(count) => {
                let mut list = State::falling(&row, allowed);
                list.truncate(count as usize);
                (list, Vec::new())
            }
            _ if next.is_some() => return invalid("a matcher goes with `top` alone"),
            View::Only(tokens) => {
                let tokens = tokens.into_iter();
                let list = tokens.map(|token| match row.get(token as usize) {
                    Some(&logit) => Ok(crate::Candidate { token, logit }),
                    None => invalid(&format!("token {token} is not one that there is")),
                });
                (list.collect::<Result<_, _>>()?, Vec::new())
            }
            View::Logits => (Vec::new(), row),
        };
        Ok(Distribution {
            candidates,
            logits,
            statistics,
            position: tokens.len() as u32,
        })
    }

    pub(crate) async fn snapshot(&self, name: String) -> Result<(), Error> {
        self.script.told(Call::Snapshot(name.clone()));
        self.free()?;
        self.script.fails("snapshot")?;
        let tokens = self.tokens.borrow().clone();
        self.script.snapshots.borrow_mut().insert(name, tokens);
        Ok(())
    }

    pub(crate) async fn restore(model: &Model, name: String) -> Result<Self, Error> {
        model.0.told(Call::Restore(name.clone()));
        model.0.fails("restore")?;
        match model.0.snapshots.borrow().get(&name) {
            Some(tokens) => Ok(Self::of(&model.0, tokens.clone())),
            None => Err(Error::NotFound(format!("there is no snapshot {name:?}"))),
        }
    }

    pub(crate) async fn forget(model: &Model, name: String) -> Result<(), Error> {
        model.0.told(Call::Forget(name.clone()));
        match model.0.snapshots.borrow_mut().remove(&name) {
            Some(_) => Ok(()),
            None => Err(Error::NotFound(format!("there is no snapshot {name:?}"))),
        }
    }
}

pub(crate) async fn next_many(
    asks: Vec<(&Sequence, Look<'_>)>,
) -> Vec<Result<Distribution, Error>> {
    let mut told = Vec::new();
    for (sequence, look) in asks {
        told.push(sequence.next(look).await);
    }
    told
}

pub(super) fn statistics(row: &[f32]) -> Statistics {
    let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|&logit| f64::from(logit - best).exp()).sum();
    let log_normalizer = f64::from(best) + sum.ln();
    let surprises = row.iter().map(|&logit| log_normalizer - f64::from(logit));
    Statistics {
        log_normalizer: log_normalizer as f32,
        entropy: surprises.map(|nats| nats * (-nats).exp()).sum::<f64>() as f32,
    }
}

/// What was generated and not read yet. Tokens become part of the sequence as they are read.
pub(crate) struct Chunks {
    left: VecDeque<Chunk>,
    script: Rc<State>,
    tokens: Rc<RefCell<Vec<Token>>>,
    busy: Rc<Cell<bool>>,
    ended: bool,
}

pub(crate) type Ending = Ready<Result<Outcome, Error>>;

impl Chunks {
    pub(crate) async fn next(&mut self) -> Option<Chunk> {
        assert!(!self.ended, "the host traps whoever reads on after the end");
        let chunk = self.left.pop_front();
        self.ended = chunk.is_none();
        match &chunk {
            Some(chunk) => self.tokens.borrow_mut().extend(&chunk.tokens),
            None => self.busy.set(false),
        }
        chunk
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        self.busy.set(false);
        if !self.left.is_empty() {
            self.script.told(Call::Cancelled);
        }
    }
}
