//! `corral:inference/inference`: sequences, and generations over them.

use super::bindings::corral::inference::inference::Distribution;
use super::bindings::corral::inference::inference::{
    Chunk, HostSequence, HostSequenceWithStore, Look, Outcome, Token,
};
use super::generation::{Run, lock};
use super::looking;
use super::{Answer, Model, Options, TOKENS, invalid, take, wit};
use crate::meter::thread_nanos;
use crate::quota::Unreserved;
use crate::state::State;
use corral_engine::Engine;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use wasmtime::component::{Access, Accessor, FutureReader, HasSelf, Resource, StreamReader};

/// A text and the engine's memory of it. Whatever generates for it shares it, and adds to it.
pub(super) type Shared = Arc<Mutex<Text>>;

/// See [`Shared`].
pub(super) struct Text {
    pub(super) sequence: corral_engine::Sequence,
    /// How many of its first tokens were counted by whoever counts tokens.
    counted: usize,
}

impl Text {
    fn new(sequence: corral_engine::Sequence, counted: usize) -> Shared {
        Arc::new(Mutex::new(Self { sequence, counted }))
    }

    pub(super) fn length(&self) -> usize {
        self.sequence.tokens().len()
    }

    /// Tokens that are to be counted.
    pub(super) fn uncounted(&self) -> u64 {
        self.length().saturating_sub(self.counted) as u64
    }

    /// All of them are.
    pub(super) fn count(&mut self) {
        self.counted = self.length();
    }

    /// Adds what was generated, which was counted before.
    pub(super) fn generated(&mut self, tokens: &[Token]) {
        let added = self.sequence.append(tokens);
        debug_assert!(added.is_ok(), "there was room for what was generated");
        self.counted += tokens.len();
    }
}

/// A sequence that a guest holds.
pub struct Sequence {
    text: Shared,
    engine: Engine,
    /// Its tokens, as far as they count for what the instance holds.
    held: usize,
    adapter: Option<String>,
    run: Option<Run>,
    /// Held by a call that has not returned.
    calls: Arc<()>,
}

impl Sequence {
    /// Whether something goes on with it, and what to do then.
    fn check_free(&self) -> Result<(), wit::Error> {
        let why = if self.run.as_ref().is_some_and(Run::goes_on) {
            "a generation runs on this sequence: wait for its end or drop its stream"
        } else if Arc::strong_count(&self.calls) > 1 {
            "a call for this sequence has not returned: wait for it, or drop it"
        } else {
            return Ok(());
        };
        Err(wit::Error::Invalid(why.to_owned()))
    }

    /// The text, which is the caller's as long as it holds the call.
    pub(super) fn begin(&self) -> Result<(Shared, Arc<()>), wit::Error> {
        self.check_free()?;
        Ok((Arc::clone(&self.text), Arc::clone(&self.calls)))
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(super) fn adapter(&self) -> Option<&str> {
        self.adapter.as_deref()
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        if let Some(run) = &self.run {
            run.cancel();
        }
    }
}

impl State {
    /// Takes so many more tokens into an instance's sequences.
    fn hold(&mut self, tokens: usize) -> Result<(), wit::Error> {
        let held = self.handles.tokens.saturating_add(tokens);
        if held > TOKENS {
            return Err(wit::Error::Invalid(format!(
                "the plugin's sequences would hold more than {TOKENS} tokens; drop some"
            )));
        }
        self.handles.tokens = held;
        Ok(())
    }

    /// Gives a sequence to the guest, for which [`take`] was asked already. So many of its tokens were
    /// counted.
    pub(super) fn give(
        &mut self,
        engine: Engine,
        sequence: corral_engine::Sequence,
        counted: usize,
    ) -> Answer<Resource<Sequence>> {
        let held = sequence.tokens().len();
        if let Err(error) = self.hold(held) {
            self.handles.sequences -= 1;
            return Ok(Err(error));
        }
        Ok(Ok(self.table.push(Sequence {
            text: Text::new(sequence, counted),
            engine,
            held,
            adapter: None,
            run: None,
            calls: Arc::default(),
        })?))
    }
}

/// [`Error::Unsupported`] in words for whoever forks or truncates.
fn check_parts(engine: &Engine) -> Result<(), wit::Error> {
    let info = engine.info();
    if info.can_truncate {
        return Ok(());
    }
    Err(wit::Error::Invalid(format!(
        "sequences of the model {} can be neither forked nor truncated: its memory is recurrent or a \
         sliding window; begin a new sequence",
        info.name
    )))
}

impl HostSequence for State {
    fn create(&mut self, model: Resource<Model>) -> Answer<Resource<Sequence>> {
        let engine = self.table.get(&model)?.0.clone();
        if let Err(error) = take(&mut self.handles.sequences, "sequences") {
            return Ok(Err(error));
        }
        let sequence = corral_engine::Sequence::new(engine.clone(), self.caller);
        self.give(engine, sequence, 0)
    }

    fn append(&mut self, sequence: Resource<Sequence>, tokens: Vec<Token>) -> Answer<()> {
        let of_guest = self.table.get(&sequence)?;
        if let Err(error) = of_guest.check_free() {
            return Ok(Err(error));
        }
        let text = Arc::clone(&of_guest.text);
        if let Err(error) = self.hold(tokens.len()) {
            return Ok(Err(error));
        }
        if let Err(error) = lock(&text).sequence.append(&tokens) {
            self.handles.tokens -= tokens.len();
            return Ok(Err(error.into()));
        }
        self.table.get_mut(&sequence)?.held += tokens.len();
        Ok(Ok(()))
    }

    fn truncate(&mut self, sequence: Resource<Sequence>, length: u32) -> Answer<()> {
        let of_guest = self.table.get_mut(&sequence)?;
        if let Err(error) = of_guest.check_free() {
            return Ok(Err(error));
        }
        let mut text = lock(&of_guest.text);
        if let Err(error) = text.sequence.truncate(length as usize) {
            return Ok(Err(error.into()));
        }
        let length = text.length();
        text.counted = text.counted.min(length);
        drop(text);
        let less = of_guest.held.saturating_sub(length);
        of_guest.held -= less;
        self.handles.tokens -= less;
        Ok(Ok(()))
    }

    fn fork(&mut self, sequence: Resource<Sequence>) -> Answer<Resource<Sequence>> {
        let of_guest = self.table.get(&sequence)?;
        let checked = of_guest.check_free();
        if let Err(error) = checked.and_then(|()| check_parts(&of_guest.engine)) {
            return Ok(Err(error));
        }
        let (engine, adapter) = (of_guest.engine.clone(), of_guest.adapter.clone());
        if let Err(error) = take(&mut self.handles.sequences, "sequences") {
            return Ok(Err(error));
        }
        let text = lock(&self.table.get(&sequence)?.text);
        let (fork, counted) = (text.sequence.fork(), text.counted);
        drop(text);
        let given = self.give(engine, fork, counted)?;
        if let Ok(given) = &given {
            self.table.get_mut(given)?.adapter = adapter;
        }
        Ok(given)
    }

    fn adapt(&mut self, sequence: Resource<Sequence>, adapter: Option<String>) -> Answer<()> {
        let of_guest = self.table.get_mut(&sequence)?;
        if let Err(error) = of_guest.check_free() {
            return Ok(Err(error));
        }
        let known = &of_guest.engine.info().adapters;
        if let Some(name) = &adapter
            && !known.contains(name)
        {
            let name: String = name.chars().take(64).collect();
            return invalid(format!(
                "there is no adapter {name:?} of this model; there is: {}",
                known.join(", ")
            ));
        }
        of_guest.adapter = adapter;
        Ok(Ok(()))
    }

    fn length(&mut self, sequence: Resource<Sequence>) -> wasmtime::Result<u32> {
        let length = lock(&self.table.get(&sequence)?.text).length();
        Ok(u32::try_from(length)?)
    }

    fn tokens(&mut self, sequence: Resource<Sequence>, start: u32) -> wasmtime::Result<Vec<Token>> {
        let text = lock(&self.table.get(&sequence)?.text);
        let tokens = text.sequence.tokens().get(start as usize..);
        Ok(tokens.unwrap_or_default().to_vec())
    }

    fn drop(&mut self, sequence: Resource<Sequence>) -> wasmtime::Result<()> {
        let sequence = self.table.delete(sequence)?;
        self.handles.sequences -= 1;
        self.handles.tokens -= sequence.held;
        Ok(())
    }
}

impl From<Unreserved> for wit::Error {
    fn from(no: Unreserved) -> Self {
        match no {
            Unreserved::Later(refusal) => {
                let wait = refusal.retry_after.unwrap_or_default();
                Self::Refused(wit::Refusal {
                    reason: refusal.to_string(),
                    retry_after_ms: u32::try_from(wait.as_nanos().div_ceil(1_000_000))
                        .unwrap_or(u32::MAX),
                })
            }
            Unreserved::Never(text) => Self::NotGranted(text),
        }
    }
}

type Generated = (
    StreamReader<Chunk>,
    FutureReader<Result<Outcome, wit::Error>>,
);

impl State {
    /// Reserves what a generation may come to, which is what was appended since tokens were last
    /// counted and all that it may generate; and starts it.
    pub(super) fn generate(
        &mut self,
        sequence: &Resource<Sequence>,
        options: &Resource<Options>,
    ) -> Answer<Run> {
        let max_tokens = self.table.get(options)?.max_tokens();
        let of_guest = self.table.get(sequence)?;
        if let Err(error) = of_guest.check_free() {
            return Ok(Err(error));
        }
        let (engine, shared) = (of_guest.engine.clone(), Arc::clone(&of_guest.text));
        let mut text = lock(&shared);
        let length = text.length();
        if length == 0 {
            return invalid("the sequence is empty; append at least one token");
        }
        if max_tokens == 0 {
            return invalid("max-tokens is 0; it must be at least 1");
        }
        let appended = text.uncounted();
        let room = u64::from(engine.info().context).saturating_sub(length as u64);
        let tokens = appended + u64::from(max_tokens).min(room);
        let reserved = self.visit.as_ref().map(|visit| visit.reserve(tokens));
        let mut reservation = match reserved.transpose() {
            Ok(reservation) => reservation,
            Err(error) => return Ok(Err(error.into())),
        };
        let began = thread_nanos();
        let mut options = match self.table.get(options)?.of(&engine) {
            Ok(options) => options,
            Err(error) => return Ok(Err(error.into())),
        };
        let spent = thread_nanos().saturating_sub(began);
        self.meter.charge(Duration::from_nanos(spent));
        let named = options.adapter.take();
        options.adapter = named.or_else(|| of_guest.adapter.clone());
        match self
            .tally
            .begun(text.sequence.generate(options), engine.info().context)
        {
            Ok(generation) => {
                // Only what was taken is used.
                if let Some(reservation) = &mut reservation {
                    reservation.used(appended);
                }
                text.count();
                drop(text);
                let run = Run::new(generation, shared, Arc::clone(&self.tally), reservation);
                self.table.get_mut(sequence)?.run = Some(run.clone());
                Ok(Ok(run))
            }
            Err(error) => Ok(Err(error.into())),
        }
    }
}

impl HostSequenceWithStore<State> for HasSelf<State> {
    fn generate(
        mut store: Access<'_, State, Self>,
        sequence: Resource<Sequence>,
        options: Resource<Options>,
    ) -> Answer<Generated> {
        let run = match store.get().generate(&sequence, &options)? {
            Ok(started) => started,
            Err(error) => return Ok(Err(error)),
        };
        let (chunks, ending) = (run.chunks(), run.ending());
        let stream = StreamReader::new(&mut store, chunks)?;
        let future = FutureReader::new(&mut store, ending)?;
        Ok(Ok((stream, future)))
    }

    async fn next(
        store: &Accessor<State, Self>,
        sequence: Resource<Sequence>,
        look: Look,
    ) -> Answer<Distribution> {
        looking::next(store, sequence, look).await
    }

    async fn snapshot(
        store: &Accessor<State, Self>,
        sequence: Resource<Sequence>,
        name: String,
    ) -> Answer<()> {
        super::snapshots::snapshot(store, sequence, name).await
    }

    async fn restore(
        store: &Accessor<State, Self>,
        model: Resource<Model>,
        name: String,
    ) -> Answer<Resource<Sequence>> {
        super::snapshots::restore(store, model, name).await
    }

    async fn forget(
        store: &Accessor<State, Self>,
        model: Resource<Model>,
        name: String,
    ) -> Answer<()> {
        super::snapshots::forget(store, model, name).await
    }
}
