//! `corral:inference/models`.

use super::bindings::corral::inference::models::{
    Host, HostModel, HostModelWithStore, ModelInfo, Pooling, Token,
};
use super::reach::Reach;
use super::{Answer, Model, take, wit};
use crate::meter::thread_nanos;
use crate::state::State;
use crate::tally::Tally;
use corral_engine::{EmbedOptions, Embedding, Engine, Error, OpenError, Opening};
use std::sync::Arc;
use std::time::Duration;
use wasmtime::component::{Accessor, HasSelf, Resource};

/// Longest text that is tokenised in one call, in bytes.
const TEXT_BYTES: usize = 4 << 20;
/// Longest text that is tokenised where we stand; for a longer one a thread is fetched, so that
/// nobody else waits.
const INLINE_BYTES: usize = 16 << 10;
/// Most tokens that are turned into text in one call.
const DETOKENIZE: usize = 1 << 18;

impl Host for State {
    fn available(&mut self) -> wasmtime::Result<Vec<String>> {
        Ok(self.models.names().into_iter().map(str::to_owned).collect())
    }
}

impl HostModelWithStore<State> for HasSelf<State> {
    async fn open(store: &Accessor<State, Self>, name: Option<String>) -> Answer<Resource<Model>> {
        open(store, name).await
    }

    async fn embed(
        store: &Accessor<State, Self>,
        model: Resource<Model>,
        inputs: Vec<Vec<Token>>,
        pooling: Option<Pooling>,
        normalize: Option<bool>,
    ) -> Answer<Vec<Vec<f32>>> {
        embed(store, model, inputs, pooling, normalize).await
    }
}

pub(super) async fn open(mut on: impl Reach, name: Option<String>) -> Answer<Resource<Model>> {
    // Taken before it waits, so that as many wait as may be open.
    let begun = on.with(|state| state.begin_open(name.as_deref()));
    let opened = match begun {
        Err(error) => return Ok(Err(error)),
        Ok(Opened::Before(engine)) => Ok(engine),
        Ok(Opened::Now(opening, tally)) => match tally.ended(opening.await.map_err(told)) {
            Ok(lease) => {
                let engine = lease.engine().clone();
                on.with(|state| state.leases.push(lease));
                Ok(engine)
            }
            Err(error) => Err(wit::Error::from(error)),
        },
    };
    on.with(|state| state.end_open(opened))
}

pub(super) async fn embed(
    mut on: impl Reach,
    model: Resource<Model>,
    inputs: Vec<Vec<Token>>,
    pooling: Option<Pooling>,
    normalize: Option<bool>,
) -> Answer<Vec<Vec<f32>>> {
    let options = EmbedOptions {
        pooling: pooling.map(Into::into),
        normalize,
    };
    let begun = on.with(|state| {
        let engine = &state.table.get(&model)?.0;
        let tally = Arc::clone(&state.tally);
        let embedding = state.embed(engine, inputs, options);
        Ok::<_, wasmtime::Error>(embedding.map(|embedding| (embedding, tally)))
    })?;
    let (embedding, tally) = match begun {
        Ok(begun) => begun,
        Err(error) => return Ok(Err(error)),
    };
    Ok(tally
        .ended(embedding.await)
        .map(|vectors| vectors.inputs)
        .map_err(Into::into))
}

impl From<Pooling> for corral_engine::Pooling {
    fn from(pooling: Pooling) -> Self {
        match pooling {
            Pooling::Mean => Self::Mean,
            Pooling::First => Self::Cls,
            Pooling::Last => Self::Last,
            Pooling::Tokens => Self::Tokens,
            Pooling::Rank => Self::Rank,
        }
    }
}

/// Why a model could not be opened, for the guest; the operator is told more.
fn told(error: OpenError) -> Error {
    if let OpenError::NotLoaded { name, cause } = &error {
        // With the file's folder, which the guest is not told.
        tracing::warn!(model = name, %cause, "a model could not be loaded");
    }
    Error::from(error)
}

/// A model on its way to a guest.
enum Opened {
    /// It was opened in this call, and so it is in memory.
    Before(Engine),
    Now(Opening, Arc<Tally>),
}

impl State {
    /// Reserves what it comes to, all of which counts once it is taken.
    fn embed(
        &self,
        engine: &Engine,
        inputs: Vec<Vec<Token>>,
        options: EmbedOptions,
    ) -> Result<Embedding, wit::Error> {
        let tokens = inputs.iter().map(|input| input.len() as u64).sum();
        let reservation = match &self.visit {
            Some(visit) => Some(visit.reserve(tokens)?),
            None => None,
        };
        let embedding = engine.embed(inputs, options, self.caller)?;
        if let Some(mut reservation) = reservation {
            reservation.used(tokens);
        }
        Ok(embedding)
    }

    fn begin_open(&mut self, name: Option<&str>) -> Result<Opened, wit::Error> {
        take(&mut self.handles.models, "open models")?;
        let wanted = name.or_else(|| self.models.names().first().copied());
        let mut held = self.leases.iter();
        // Not opened again: it might not take new calls until this one ends.
        let held = held.position(|lease| Some(lease.info().name.as_str()) == wanted);
        if let Some(held) = held {
            let engine = self.leases[held].engine().clone();
            // The last one of them is that which was opened last.
            self.leases[held..].rotate_left(1);
            return Ok(Opened::Before(engine));
        }
        match self.models.open(name, &self.caller) {
            Some(opening) => Ok(Opened::Now(opening, Arc::clone(&self.tally))),
            None => {
                self.handles.models -= 1;
                Err(wit::Error::NotFound(format!(
                    "there is no model {}; there is {}",
                    name.unwrap_or("to be the default one"),
                    self.models.names().join(", ")
                )))
            }
        }
    }

    fn end_open(&mut self, opened: Result<Engine, wit::Error>) -> Answer<Resource<Model>> {
        match opened {
            Ok(engine) => Ok(Ok(self.table.push(Model(engine))?)),
            Err(error) => {
                self.handles.models -= 1;
                Ok(Err(error))
            }
        }
    }
}

impl HostModel for State {
    fn info(&mut self, model: Resource<Model>) -> wasmtime::Result<ModelInfo> {
        let info = self.table.get(&model)?.0.info();
        Ok(ModelInfo {
            name: info.name.clone(),
            vocabulary: info.vocabulary,
            context: info.context,
            embedding_length: info.embedding_length,
            begin: info.begin,
            end: info.end,
            end_of_generation: info.end_of_generation.clone(),
            chat_template: info.chat_template.clone(),
            can_fork: info.can_truncate,
            adapters: info.adapters.clone(),
        })
    }

    async fn tokenize(
        &mut self,
        model: Resource<Model>,
        text: String,
        special: bool,
    ) -> Answer<Vec<Token>> {
        let engine = &self.table.get(&model)?.0;
        if text.len() > TEXT_BYTES {
            return Ok(Err(wit::Error::Invalid(format!(
                "the text has {} bytes; at most {TEXT_BYTES} are tokenised at once",
                text.len()
            ))));
        }
        if text.len() <= INLINE_BYTES {
            return Ok(engine.tokenize(&text, special).map_err(Into::into));
        }
        let engine = engine.clone();
        let (tokens, nanos) = tokio::task::spawn_blocking(move || {
            let began = thread_nanos();
            let tokens = engine.tokenize(&text, special);
            (tokens, thread_nanos().saturating_sub(began))
        })
        .await?;
        self.meter.charge(Duration::from_nanos(nanos));
        Ok(tokens.map_err(Into::into))
    }

    fn detokenize(
        &mut self,
        model: Resource<Model>,
        tokens: Vec<Token>,
        special: bool,
    ) -> Answer<Vec<u8>> {
        let engine = &self.table.get(&model)?.0;
        if tokens.len() > DETOKENIZE {
            return Ok(Err(wit::Error::Invalid(format!(
                "there are {} tokens; at most {DETOKENIZE} are turned into text at once",
                tokens.len()
            ))));
        }
        Ok(engine.detokenize(&tokens, special).map_err(Into::into))
    }

    fn drop(&mut self, model: Resource<Model>) -> wasmtime::Result<()> {
        self.table.delete(model)?;
        self.handles.models -= 1;
        Ok(())
    }
}
