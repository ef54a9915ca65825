//! What the engine is told to say.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use super::state::{Answer, Call, FALLIBLE, Generated, State};
use super::{block_on, engine, run_command};
use crate::raw::models::ModelInfo;
use crate::role::Sampler;
use crate::template::{Chat, ModelFacts, Prompt};
use crate::{Command, Error};

/// What the scripted engine knows and says; see the [module](super).
///
/// Nothing is guessed: asking for what the script does not say is an error that tells so.
pub struct Script(Rc<State>);

impl Default for Script {
    fn default() -> Self {
        Self::new()
    }
}

impl Script {
    /// A model of the name `script` with 4,096 positions that knows no answer.
    pub fn new() -> Self {
        let control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"].map(str::to_owned);
        Script(Rc::new(State {
            info: ModelInfo {
                name: "script".to_owned(),
                vocabulary: 256 + control.len() as u32,
                context: 4096,
                embedding_length: 4,
                begin: None,
                end: Some(258),
                end_of_generation: vec![256, 258],
                chat_template: None,
                can_fork: true,
                adapters: Vec::new(),
            },
            control: control.to_vec(),
            answers: Vec::new(),
            distributions: Vec::new(),
            embeddings: HashMap::new(),
            languages: HashMap::new(),
            samplers: HashMap::new(),
            templating: None,
            tokens_left: None,
            time_left: 60_000_000_000,
            errors: RefCell::new(VecDeque::new()),
            calls: RefCell::new(Vec::new()),
            snapshots: RefCell::new(HashMap::new()),
            texts: Cell::new(0),
        }))
    }

    fn with(mut self, change: impl FnOnce(&mut State)) -> Self {
        match Rc::get_mut(&mut self.0) {
            Some(state) => change(state),
            None => panic!("a script is written before it is run"),
        }
        self
    }

    /// After a text that ends like this one comes that one, and then the end. `after` may have control
    /// tokens in it; of several that fit, the longest counts. It holds for [`generate`] and for [`next`],
    /// and goes on where a part of the answer stands there already.
    ///
    /// [`generate`]: crate::Sequence::generate
    /// [`next`]: crate::Sequence::next
    pub fn answers(self, after: &str, text: &str) -> Self {
        self.answer(after, text, None)
    }

    /// The same, but the generation fails where the text ends.
    pub fn breaks_off(self, after: &str, text: &str, error: Error) -> Self {
        self.answer(after, text, Some(error))
    }

    fn answer(self, after: &str, text: &str, error: Option<Error>) -> Self {
        let (after, text) = (after.to_owned(), text.to_owned());
        self.with(|state| state.answers.push(Answer { after, text, error }))
    }

    /// After a text that ends like this one, these tokens may come, with these logits; the others have a
    /// logit of -30.
    ///
    /// # Panics
    ///
    /// If one of them is not exactly one token: a byte, or a control token.
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

    /// The next call of this function of the WIT fails so, such as `open` or `next`. Several for one
    /// function come one after the other.
    ///
    /// # Panics
    ///
    /// If there is no such function, or it can't be made to fail.
    pub fn fails(self, function: &str, error: Error) -> Self {
        assert!(
            FALLIBLE.contains(&function),
            "{function} can't be made to fail; expected one of {FALLIBLE:?}"
        );
        let entry = (function.to_owned(), error);
        self.with(|state| state.errors.borrow_mut().push_back(entry))
    }

    /// One control token more, numbered after those that there are.
    pub fn control_token(self, name: &str) -> Self {
        self.with(|state| {
            state.control.push(name.to_owned());
            state.info.vocabulary += 1;
        })
    }

    /// The model wants this control token at the beginning of a text.
    ///
    /// # Panics
    ///
    /// If it is not one token.
    pub fn begins_with(self, name: &str) -> Self {
        let tokens = self.0.tokenize(name, true);
        assert!(tokens.len() == 1, "{name:?} is not one token");
        self.with(|state| state.info.begin = tokens.first().copied())
    }

    /// The chat template in the model's file.
    pub fn chat_template(self, template: &str) -> Self {
        self.with(|state| state.info.chat_template = Some(template.to_owned()))
    }

    /// So many positions.
    pub fn context(self, positions: u32) -> Self {
        self.with(|state| state.info.context = positions)
    }

    /// Changes what else the model says of itself. The vocabulary is the script's own.
    pub fn info(self, change: impl FnOnce(&mut ModelInfo)) -> Self {
        self.with(|state| {
            let vocabulary = state.info.vocabulary;
            change(&mut state.info);
            state.info.vocabulary = vocabulary;
        })
    }

    /// The embedding of a text.
    pub fn embedding(self, text: &str, vector: &[f32]) -> Self {
        self.with(|state| {
            state.embeddings.insert(text.to_owned(), vector.to_vec());
        })
    }

    /// The texts that a grammar allows, by its text. Others are refused as wrong.
    pub fn language(self, grammar: &str, texts: &[&str]) -> Self {
        let texts = texts.iter().map(|text| (*text).to_owned()).collect();
        self.with(|state| {
            state.languages.insert(grammar.to_owned(), texts);
        })
    }

    /// A sampling plugin that the deployment links, by its name there. It chooses the tokens of what is
    /// generated with it.
    pub fn sampler<S: Sampler>(self, name: &str) -> Self {
        self.with(|state| {
            let start = |beginning| {
                let sampler = S::start(beginning)?;
                Ok(Box::new(sampler) as Box<dyn super::state::AnySampler>)
            };
            state.samplers.insert(name.to_owned(), Rc::new(start));
        })
    }

    /// The templating plugin that the deployment links.
    pub fn templating(
        self,
        render: impl Fn(Chat, ModelFacts) -> Result<Prompt, String> + 'static,
    ) -> Self {
        self.with(|state| state.templating = Some(Rc::new(render)))
    }

    /// What is left to use.
    pub fn budget(self, tokens: Option<u64>, time: Duration) -> Self {
        self.with(|state| {
            state.tokens_left = tokens;
            state.time_left = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        })
    }

    /// Runs a future to its end with this script in the host's place, on this thread.
    pub fn run<T>(&self, future: impl Future<Output = T>) -> T {
        let _installed = engine::install(&self.0);
        block_on(future)
    }

    /// Runs a plugin's command line with this script in the host's place: what it returned, and what it
    /// wrote.
    pub fn run_command<E>(
        &self,
        run: impl AsyncFnOnce(&mut Command) -> Result<(), E>,
        arguments: &[&str],
    ) -> (Result<(), E>, String) {
        let _installed = engine::install(&self.0);
        run_command(run, arguments)
    }

    /// The calls that were made so far, in their order.
    pub fn calls(&self) -> Vec<Call> {
        self.0.calls.borrow().clone()
    }

    /// The generations among them.
    pub fn generations(&self) -> Vec<Generated> {
        let calls = self.calls().into_iter();
        calls
            .filter_map(|call| match call {
                Call::Generate(generated) => Some(generated),
                _ => None,
            })
            .collect()
    }
}
