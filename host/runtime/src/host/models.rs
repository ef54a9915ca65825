//! `corral:inference/models`.

use super::bindings::corral::inference::models::{
    Host, HostModel, ModelInfo, Pooling, RequestCounts, Token,
};
use super::store_access::StoreAccess;
use super::{GuestModel, HostError, HostResult, invalid, take_handle, wit};
use crate::call_trace::EmbeddingRecord;
use crate::counters::{DeploymentCounters, ResourceKind};
use crate::cpu_meter::thread_nanos;
use crate::state::State;
use crate::tokenization::MAX_TEXT_BYTES;
use corral_engine::{EmbedOptions, Embedding, Engine, Error, OpenError, OpenModel};
use std::sync::Arc;
use std::time::{Duration, Instant};
use wasmtime::component::Resource;

/// Longest text that is tokenized on the calling thread. A longer one gets a thread of its own, so that it
/// does not delay other calls.
const INLINE_TEXT_BYTES: usize = 16 << 10;
/// Most tokens of one detokenization.
const MAX_DETOKENIZE: usize = 1 << 18;

impl Host for State {
    fn available(&mut self) -> wasmtime::Result<Vec<String>> {
        let names = self.grants.models.names();
        Ok(names.into_iter().map(str::to_owned).collect())
    }
}

pub(super) async fn open(
    mut store: impl StoreAccess,
    name: Option<String>,
) -> HostResult<Resource<GuestModel>> {
    // Takes the handle before waiting, so that an instance opens no more models than it may hold.
    let opened = match store.with(|state| state.begin_open(name.as_deref()))? {
        ModelOpen::Leased(engine) => Ok(engine),
        ModelOpen::Opening(opening, counters) => {
            let lease = counters.count_queue_timeout(opening.await.map_err(open_error));
            lease.map(|lease| {
                let engine = lease.engine().clone();
                store.with(|state| state.leases.push(lease));
                engine
            })
        }
    };
    store.with(|state| match opened {
        Ok(engine) => Ok(state.table.push(GuestModel(engine))?),
        Err(error) => {
            state.handles.counts.remove(ResourceKind::Models, 1);
            Err(error.into())
        }
    })
}

pub(super) async fn embed(
    mut store: impl StoreAccess,
    model: Resource<GuestModel>,
    inputs: Vec<Vec<Token>>,
    pooling: Option<Pooling>,
    normalize: Option<bool>,
) -> HostResult<Vec<Vec<f32>>> {
    let options = EmbedOptions {
        pooling: pooling.map(Into::into),
        normalize,
    };
    let (embedding, counters, traced) = store.with(|state| {
        let engine = &state.table.get(&model)?.0;
        let traced = state.sampled_trace().map(|trace| {
            let now = Instant::now();
            let record = EmbeddingRecord {
                model: engine.info().name.clone(),
                tokens: inputs.iter().map(|input| input.len() as u64).sum(),
                began: now,
                ended: now,
                error: None,
            };
            (Arc::clone(trace), record)
        });
        let embedding = state.begin_embed(engine, inputs, options)?;
        Ok::<_, HostError>((embedding, Arc::clone(&state.counters), traced))
    })?;
    let embedded = embedding.await;
    if let Some((trace, mut record)) = traced {
        record.ended = Instant::now();
        record.error = embedded.as_ref().err().map(Error::kind);
        trace.embedded(record);
    }
    Ok(counters.count_queue_timeout(embedded)?.inputs)
}

impl From<Pooling> for corral_engine::Pooling {
    fn from(pooling: Pooling) -> Self {
        match pooling {
            Pooling::Mean => Self::Mean,
            Pooling::Cls => Self::Cls,
            Pooling::Last => Self::Last,
            Pooling::Tokens => Self::Tokens,
            Pooling::Rank => Self::Rank,
        }
    }
}

/// Converts an error for the guest, and logs what only the operator may see.
fn open_error(error: OpenError) -> Error {
    if let OpenError::NotLoaded { name, cause } = &error {
        // The cause contains the file's path.
        tracing::warn!(model = name, %cause, "a model could not be loaded");
    }
    Error::from(error)
}

/// A model that a guest is opening.
enum ModelOpen {
    /// The call holds a lease on it.
    Leased(Engine),
    Opening(OpenModel, Arc<DeploymentCounters>),
}

impl State {
    /// Starts an embedding and counts its tokens.
    fn begin_embed(
        &self,
        engine: &Engine,
        inputs: Vec<Vec<Token>>,
        options: EmbedOptions,
    ) -> Result<Embedding, wit::Error> {
        let tokens = inputs.iter().map(|input| input.len() as u64).sum();
        let reservation = match &self.quota_permit {
            Some(permit) => Some(permit.reserve(tokens)?),
            None => None,
        };
        let embedding = engine.embed(inputs, options, self.caller)?;
        if let Some(mut reservation) = reservation {
            reservation.mark_used(tokens);
        }
        Ok(embedding)
    }

    fn begin_open(&mut self, name: Option<&str>) -> Result<ModelOpen, wit::Error> {
        take_handle(&mut self.handles, ResourceKind::Models, "open models")?;
        let models = &self.grants.models;
        let wanted = name.or_else(|| models.names().first().copied());
        // A second lease might have to wait until this call ends.
        let leased = self
            .leases
            .iter()
            .position(|lease| Some(lease.info().name.as_str()) == wanted);
        if let Some(leased) = leased {
            let engine = self.leases[leased].engine().clone();
            // Keep the model that was opened last at the end.
            self.leases[leased..].rotate_left(1);
            return Ok(ModelOpen::Leased(engine));
        }
        match models.open(name, &self.caller) {
            Some(opening) => Ok(ModelOpen::Opening(opening, Arc::clone(&self.counters))),
            None => {
                self.handles.counts.remove(ResourceKind::Models, 1);
                let missing = match name {
                    Some(name) => format!("model {name}"),
                    None => "default model".to_owned(),
                };
                Err(wit::Error::NotFound(format!(
                    "there is no {missing}; there is {}",
                    models.names().join(", ")
                )))
            }
        }
    }
}

impl HostModel for State {
    fn info(&mut self, model: Resource<GuestModel>) -> wasmtime::Result<ModelInfo> {
        let info = self.table.get(&model)?.0.info();
        Ok(ModelInfo {
            name: info.name.clone(),
            vocabulary: info.vocabulary,
            context: info.context,
            embedding_length: info.embedding_length,
            bos: info.begin,
            eos: info.end,
            end_of_generation: info.end_of_generation.clone(),
            chat_template: info.chat_template.clone(),
            can_fork: info.can_truncate,
            adapters: info.adapters.clone(),
        })
    }

    fn accepts_images(&mut self, model: Resource<GuestModel>) -> wasmtime::Result<bool> {
        Ok(self.table.get(&model)?.0.info().accepts_images)
    }

    fn accepts_audio(&mut self, model: Resource<GuestModel>) -> wasmtime::Result<bool> {
        Ok(self.table.get(&model)?.0.info().accepts_audio)
    }

    fn rerank_template(&mut self, model: Resource<GuestModel>) -> wasmtime::Result<Option<String>> {
        Ok(self.table.get(&model)?.0.info().rerank_template.clone())
    }

    fn request_counts(&mut self, model: Resource<GuestModel>) -> HostResult<RequestCounts> {
        let counts = self.table.get(&model)?.0.request_counts();
        let count = |requests: u64| u32::try_from(requests).unwrap_or(u32::MAX);
        Ok(RequestCounts {
            running: count(counts.running),
            waiting: count(counts.waiting),
            max_running: counts.max_running.into(),
        })
    }

    async fn tokenize(
        &mut self,
        model: Resource<GuestModel>,
        text: String,
        special: bool,
    ) -> HostResult<Vec<Token>> {
        let engine = &self.table.get(&model)?.0;
        if text.len() > MAX_TEXT_BYTES {
            return invalid(format!(
                "the text has {} bytes; one call tokenizes at most {MAX_TEXT_BYTES}",
                text.len()
            ));
        }
        if text.len() <= INLINE_TEXT_BYTES {
            return Ok(engine.tokenize(&text, special)?);
        }
        let engine = engine.clone();
        let permits = &self.grants.tokenization;
        // The wait ends with the call, at its deadline at the latest.
        let permit = permits.acquire(self.caller.tenant, text.len()).await;
        let (tokens, nanos) = tokio::task::spawn_blocking(move || {
            // Held by the thread, which works on even if the call has ended.
            let _permit = permit;
            let began = thread_nanos();
            let tokens = engine.tokenize(&text, special);
            (tokens, thread_nanos().saturating_sub(began))
        })
        .await?;
        self.meter.charge(Duration::from_nanos(nanos));
        Ok(tokens?)
    }

    fn detokenize(
        &mut self,
        model: Resource<GuestModel>,
        tokens: Vec<Token>,
        special: bool,
    ) -> HostResult<Vec<u8>> {
        let engine = &self.table.get(&model)?.0;
        if tokens.len() > MAX_DETOKENIZE {
            return invalid(format!(
                "the call has {} tokens; one call detokenizes at most {MAX_DETOKENIZE}",
                tokens.len()
            ));
        }
        Ok(engine.detokenize(&tokens, special)?)
    }

    fn drop(&mut self, model: Resource<GuestModel>) -> wasmtime::Result<()> {
        self.table.delete(model)?;
        self.handles.counts.remove(ResourceKind::Models, 1);
        Ok(())
    }
}
