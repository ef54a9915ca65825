//! Scripts for the scripted host.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

#[cfg(not(target_arch = "wasm32"))]
use super::run_command;
use super::script_state::{
    FALLIBLE_FUNCTIONS, GenerateCall, HostCall, ScriptState, ScriptedAnswer,
};
use super::{block_on, installed};
#[cfg(not(target_arch = "wasm32"))]
use crate::Command;
use crate::bindings::models::{ModelInfo, RequestCounts};
use crate::linked::Sampler;
use crate::template::{Chat, ModelFacts, Prompt};
use crate::{Error, Request, Response};

/// A line that a plugin logged: its level, context and message.
#[cfg(feature = "logging")]
pub type ScriptedLog = (crate::log::Level, String, String);

/// The model and the answers of the scripted host; see the [module](super).
///
/// An input that the script does not cover is an error.
pub struct Script(Rc<ScriptState>);

impl Default for Script {
    fn default() -> Self {
        Self::new()
    }
}

impl Script {
    /// The functions that [`fails`](Self::fails) accepts.
    pub const FALLIBLE_FUNCTIONS: &[&str] = &FALLIBLE_FUNCTIONS;

    /// A model named `script` with 4,096 positions and no answers.
    pub fn new() -> Self {
        let control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"].map(str::to_owned);
        Script(Rc::new(ScriptState {
            info: ModelInfo {
                name: "script".to_owned(),
                vocabulary: 256 + control.len() as u32,
                context: 4096,
                embedding_length: 4,
                bos: None,
                eos: Some(258),
                end_of_generation: vec![256, 258],
                chat_template: None,
                can_fork: true,
                adapters: Vec::new(),
            },
            accepts_images: false,
            accepts_audio: false,
            rerank_template: None,
            request_counts: RequestCounts {
                running: 0,
                waiting: 0,
                max_running: 1,
            },
            others: BTreeMap::new(),
            control: control.to_vec(),
            answers: Vec::new(),
            distributions: Vec::new(),
            embeddings: HashMap::new(),
            languages: HashMap::new(),
            ignored: HashMap::new(),
            samplers: HashMap::new(),
            templating: None,
            tokens_left: None,
            time_left: 60_000_000_000,
            errors: RefCell::new(VecDeque::new()),
            calls: RefCell::new(Vec::new()),
            snapshots: RefCell::new(HashMap::new()),
            #[cfg(feature = "config")]
            config: BTreeMap::new(),
            #[cfg(feature = "config")]
            secrets: BTreeMap::new(),
            #[cfg(feature = "logging")]
            logs: RefCell::default(),
            #[cfg(feature = "messages")]
            message_grants: Vec::new(),
            #[cfg(feature = "messages")]
            published: RefCell::default(),
            #[cfg(feature = "key-values")]
            key_values: RefCell::default(),
            #[cfg(feature = "key-values")]
            key_value_bytes: 0,
            generations: Cell::new(0),
        }))
    }

    fn with(mut self, change: impl FnOnce(&mut ScriptState)) -> Self {
        match Rc::get_mut(&mut self.0) {
            Some(state) => change(state),
            None => panic!("a script cannot change after `run`"),
        }
        self
    }

    /// Adds an entry of the configuration.
    #[cfg(feature = "config")]
    pub fn config(self, key: &str, value: &str) -> Self {
        self.with(|state| {
            state.config.insert(key.to_owned(), value.to_owned());
        })
    }

    /// Grants a secret with this value.
    #[cfg(feature = "config")]
    pub fn secret(self, name: &str, value: &str) -> Self {
        self.with(|state| {
            state.secrets.insert(name.to_owned(), value.to_owned());
        })
    }

    /// Grants this many bytes of keys and values. They stay when another plugin runs with this script.
    #[cfg(feature = "key-values")]
    pub fn key_values(self, bytes: usize) -> Self {
        self.with(|state| state.key_value_bytes = bytes)
    }

    /// Grants messages with these subjects: `orders.new`, `orders.*` or `audit.>`.
    #[cfg(feature = "messages")]
    pub fn grants_messages(self, subjects: &[&str]) -> Self {
        let subjects = subjects.iter().map(|subject| (*subject).to_owned());
        self.with(|state| state.message_grants.extend(subjects))
    }

    /// Generates `text` and an end-of-generation token after text that ends with `after`. `after`
    /// may contain control tokens; the longest match counts. Applies to [`generate`] and [`next`],
    /// also in the middle of the answer.
    ///
    /// [`generate`]: crate::Sequence::generate [`next`]: crate::Sequence::next
    pub fn answers(self, after: &str, text: &str) -> Self {
        self.answer(after, text, None)
    }

    /// Like [`answers`](Self::answers), but the generation fails after `text`.
    pub fn fails_after(self, after: &str, text: &str, error: Error) -> Self {
        self.answer(after, text, Some(error))
    }

    fn answer(self, after: &str, text: &str, error: Option<Error>) -> Self {
        let (after, text) = (after.to_owned(), text.to_owned());
        self.with(|state| state.answers.push(ScriptedAnswer { after, text, error }))
    }

    /// Sets the logits of the next token after text that ends with `after`. Other tokens have a
    /// logit of -30.
    ///
    /// # Panics
    ///
    /// If an entry is not exactly one token: a byte or a control token.
    pub fn next(self, after: &str, tokens: &[(&str, f32)]) -> Self {
        for (text, _) in tokens {
            let count = self.0.tokenize(text, true).len();
            assert!(count == 1, "{text:?} has {count} tokens; expected one");
        }
        let tokens = tokens
            .iter()
            .map(|(text, logit)| ((*text).to_owned(), *logit));
        let entry = (after.to_owned(), tokens.collect());
        self.with(|state| state.distributions.push(entry))
    }

    /// Makes the next call of this function fail: one of [`FALLIBLE_FUNCTIONS`](Self::FALLIBLE_FUNCTIONS), such as
    /// `open` (`open-model` in the WIT) or `next`. Several errors for one function occur in order.
    ///
    /// # Panics
    ///
    /// If the function does not exist or can't fail.
    pub fn fails(self, function: &str, error: Error) -> Self {
        assert!(
            FALLIBLE_FUNCTIONS.contains(&function),
            "{function} can't fail; expected one of {FALLIBLE_FUNCTIONS:?}"
        );
        let entry = (function.to_owned(), error);
        self.with(|state| state.errors.borrow_mut().push_back(entry))
    }

    /// Adds a control token with the next number.
    pub fn control_token(self, name: &str) -> Self {
        self.with(|state| {
            state.control.push(name.to_owned());
            state.info.vocabulary += 1;
        })
    }

    /// Sets the beginning-of-sequence token.
    ///
    /// # Panics
    ///
    /// If `name` is not one token.
    pub fn begin_token(self, name: &str) -> Self {
        let tokens = self.0.tokenize(name, true);
        assert!(tokens.len() == 1, "{name:?} is not one token");
        self.with(|state| state.info.bos = tokens.first().copied())
    }

    /// Sets the chat template of the model file.
    pub fn chat_template(self, template: &str) -> Self {
        self.with(|state| state.info.chat_template = Some(template.to_owned()))
    }

    /// Makes the model accept images. An image is the text `[image of N bytes]`, a token for each byte.
    pub fn accepts_images(self) -> Self {
        self.with(|state| state.accepts_images = true)
    }

    /// Makes the model accept audio. A WAV file is the text `[audio of N bytes]`, a token for each byte.
    pub fn accepts_audio(self) -> Self {
        self.with(|state| state.accepts_audio = true)
    }

    /// Sets the template of the model file for a query and a document.
    pub fn rerank_template(self, template: &str) -> Self {
        self.with(|state| state.rerank_template = Some(template.to_owned()))
    }

    /// Sets how many requests of the model run and wait, and how many may run at a time. By default none and one.
    pub fn request_counts(self, counts: RequestCounts) -> Self {
        self.with(|state| state.request_counts = counts)
    }

    /// Sets the number of positions.
    pub fn context(self, positions: u32) -> Self {
        self.with(|state| state.info.context = positions)
    }

    /// Changes other model metadata. The vocabulary stays the script's own.
    pub fn info(self, change: impl FnOnce(&mut ModelInfo)) -> Self {
        self.with(|state| {
            let vocabulary = state.info.vocabulary;
            change(&mut state.info);
            state.info.vocabulary = vocabulary;
        })
    }

    /// Adds a second model, with the answers of another script, under the name of its metadata. That
    /// script records the calls on the model and cannot change any more.
    ///
    /// ```
    /// use corral_sdk::{Model, testing::Script};
    ///
    /// let large = Script::new().info(|info| info.name = "large".to_owned());
    /// let script = Script::new().other_model(&large);
    /// assert_eq!(script.run(async { Model::available() }), ["script", "large"]);
    /// ```
    pub fn other_model(self, other: &Script) -> Self {
        let (name, other) = (other.0.info.name.clone(), Rc::clone(&other.0));
        self.with(|state| {
            state.others.insert(name, other);
        })
    }

    /// Sets the embedding of a text.
    pub fn embedding(self, text: &str, vector: &[f32]) -> Self {
        self.with(|state| {
            state.embeddings.insert(text.to_owned(), vector.to_vec());
        })
    }

    /// Sets the texts that a grammar allows. Unknown grammars are invalid.
    pub fn grammar(self, grammar: &str, texts: &[&str]) -> Self {
        let texts = texts.iter().map(|text| (*text).to_owned()).collect();
        self.with(|state| {
            state.languages.insert(grammar.to_owned(), texts);
        })
    }

    /// Sets the result of [`Constraint::ignored`](crate::Constraint::ignored) for a grammar.
    pub fn ignores(self, grammar: &str, keywords: &[&str]) -> Self {
        let keywords = keywords.iter().map(|keyword| (*keyword).to_owned());
        let keywords = keywords.collect();
        self.with(|state| {
            state.ignored.insert(grammar.to_owned(), keywords);
        })
    }

    /// Links a sampling plugin under a name.
    pub fn sampler<S: Sampler>(self, name: &str) -> Self {
        self.with(|state| {
            let start = |context| {
                let sampler = S::start(context)?;
                Ok(Box::new(sampler) as Box<dyn super::script_state::DynSampler>)
            };
            state.samplers.insert(name.to_owned(), Rc::new(start));
        })
    }

    /// Links a templating plugin.
    pub fn templating(
        self,
        render: impl Fn(Chat, ModelFacts) -> Result<Prompt, String> + 'static,
    ) -> Self {
        self.with(|state| state.templating = Some(Rc::new(render)))
    }

    /// Sets the remaining budget.
    pub fn budget(self, tokens: Option<u64>, time: Duration) -> Self {
        self.with(|state| {
            state.tokens_left = tokens;
            state.time_left = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        })
    }

    /// Runs a future to completion on this thread with this script as the host.
    pub fn run<T>(&self, future: impl Future<Output = T>) -> T {
        let _installed = installed::install(&self.0);
        block_on(future)
    }

    /// Posts JSON to a handler with this script as the host. Returns the status and the body of its response; a body that
    /// is not JSON is a string.
    pub fn post<E: Into<Error>>(
        &self,
        handle: impl AsyncFnOnce(Request) -> Result<Response, E>,
        body: &impl Serialize,
    ) -> (u16, Value) {
        self.run(async {
            let answered = handle(Request::post("/").with_json(body)).await;
            let response = answered.unwrap_or_else(|error| error.into().into());
            let status = response.status();
            let body = String::from_utf8_lossy(&response.read().await).into_owned();
            let json = serde_json::from_str(&body);
            (status, json.unwrap_or_else(|_| body.into()))
        })
    }

    /// Makes this script the host of the thread until it ends.
    #[cfg(feature = "scripted-host")]
    #[doc(hidden)]
    pub fn install(&self) {
        std::mem::forget(installed::install(&self.0));
    }

    /// Runs a command with this script as the host, and returns its result and output.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn run_command<E>(
        &self,
        run: impl AsyncFnOnce(&mut Command) -> Result<(), E>,
        arguments: &[&str],
    ) -> (Result<(), E>, String) {
        let _installed = installed::install(&self.0);
        run_command(run, arguments)
    }

    /// The calls so far, in order.
    pub fn calls(&self) -> Vec<HostCall> {
        self.0.calls.borrow().clone()
    }

    /// The lines that the plugin logged so far, in order.
    #[cfg(feature = "logging")]
    pub fn logs(&self) -> Vec<ScriptedLog> {
        self.0.logs.borrow().clone()
    }

    /// The messages that the plugin published so far, in order.
    #[cfg(feature = "messages")]
    pub fn published(&self) -> Vec<crate::messages::Message> {
        self.0.published.borrow().clone()
    }

    /// The generations among the calls.
    pub fn generations(&self) -> Vec<GenerateCall> {
        let calls = self.calls().into_iter();
        calls
            .filter_map(|call| match call {
                HostCall::Generate(generated) => Some(generated),
                _ => None,
            })
            .collect()
    }
}
