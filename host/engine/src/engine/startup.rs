//! Starts an engine: loads the model, and starts the threads on top of it. Blocks until they are ready.
//!
//! *Invariant*: the command queue has a slot for each request that may be open, so a request with a permit always finds one.

use super::loaded_draft::LoadedDraft;
use super::loaded_model::LoadedModel;
use super::{AdapterFile, Engine, EngineVocabulary, Inner, thread_ended};
use crate::embedding::Embedder;
use crate::engine_waker::EngineWaker;
use crate::external_sampler::SamplerMailbox;
use crate::generate_options::MAX_DRAFTS;
use crate::media::decoder::MediaDecoder;
use crate::media::{ImageEncoder, ImageStore};
use crate::metrics::EngineMetrics;
use crate::model_config::{DeviceTopKMode, ModelConfig, ModelInfo};
use crate::open_request_limits::{OpenRequestLimits, RequestLoad};
use crate::reader_wake_queue::WakeQueue;
use crate::swap_store::{SwapBudget, SwapStore};
use crate::vocabulary::ModelVocabulary;
use crate::worker::{Command, PrefixFiles, Swap, Worker};
use crate::{Error, LoadError};
use corral_constraint::GrammarCompiler;
use corral_llama::{LoadGate, LoadProgress, MediaEncoder};
use corral_scheduler::SchedulerConfig;
use std::path::PathBuf;
use std::sync::atomic::AtomicU8;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// Command slots beside those of requests.
const SPARE_COMMANDS: usize = 64;
/// One tenant may fill this fraction of the queue, so that it cannot lock out the others.
const TENANT_QUEUE_DIVISOR: usize = 4;

impl Engine {
    /// Loads a model and starts its thread. Blocks until it is ready.
    pub fn load(config: ModelConfig) -> Result<Self, LoadError> {
        Self::load_with_progress(config, &LoadProgress::default())
    }

    /// [`Engine::load`] that reports to `progress`, which can cancel it with [`corral_llama::LlamaError::Canceled`].
    pub fn load_with_progress(
        config: ModelConfig,
        progress: &LoadProgress,
    ) -> Result<Self, LoadError> {
        Self::load_gated(config, progress, &|_| true)
    }

    /// [`Engine::load_with_progress`] that asks `gate` before each stage of the load of the model itself, unless a check
    /// of the file does.
    pub(crate) fn load_gated(
        mut config: ModelConfig,
        progress: &LoadProgress,
        gate: LoadGate<'_>,
    ) -> Result<Self, LoadError> {
        if config.draft.is_some() {
            // Drafts need several rows of logits, which these sequence ids don't give.
            config.device_top_k = DeviceTopKMode::Off;
        }
        let running = usize::from(config.max_running);
        let max_open = config.max_waiting + running;
        // A request with a permit always finds a slot.
        let (commands, receiver) = sync_channel(max_open + SPARE_COMMANDS);
        let commands = Arc::new(commands);
        let waker = waker(Arc::downgrade(&commands));
        // Before the load: both read the whole model file.
        let prefix_files = PrefixFiles::open(&config, &waker)?;
        let loaded = LoadedModel::load(&config, progress, gate)?;
        let prefix_files = prefix_files.filter(|files| {
            let unchanged = files.are_of_loaded_files();
            if !unchanged {
                tracing::warn!(
                    model = config.name,
                    "the model's file changed while it was loaded; prefixes are not kept on disk until it is loaded again"
                );
            }
            unchanged
        });
        let draft = LoadedDraft::load(&config, &loaded, progress)?;
        let LoadedModel {
            model,
            mut backend,
            settings,
            context,
            mut memory,
            encoder,
            max_compaction_tokens,
        } = loaded;
        let draft_model = draft.map(|draft| {
            memory.add(draft.memory);
            draft.model
        });
        let top_ids = backend.device_top_k().map_or(0, |top_k| top_k.seq_ids);
        let limits = SchedulerConfig {
            seq_ids: config.max_running + top_ids,
            top_k_seq_ids: top_ids,
            cells: backend.cells(),
            max_step_tokens: backend.step_tokens(),
            max_compaction_tokens,
            max_queue: config.max_waiting,
            max_tenant_queue: config.max_waiting.div_ceil(TENANT_QUEUE_DIVISOR),
            prefill: config.prefill,
            prefix_cache: config.prefix_cache,
            can_truncate: model.can_truncate(),
            swap: config.swap_ram > 0,
            offload_prefixes: config.prefix_offload_ram > 0,
            max_drafts: match model.can_truncate() {
                true => MAX_DRAFTS.into(),
                false => 0,
            },
            overlap: config
                .overlap
                .resolve(model.placement().gpu_layers < model.layer_count()),
        };
        let end_of_generation = model.end_of_generation_tokens();
        let info = ModelInfo {
            name: config.name,
            vocabulary: u32::try_from(model.vocabulary_size()).unwrap_or(u32::MAX),
            context,
            embedding_length: model.embedding_length(),
            begin: model.bos_token(),
            end: model
                .end_token()
                .filter(|end| end_of_generation.contains(end)),
            end_of_generation: end_of_generation.clone(),
            chat_template: model.chat_template(None),
            rerank_template: model.chat_template(Some(c"rerank")),
            can_truncate: model.can_truncate(),
            adapters: config.adapters.iter().map(|a| a.0.clone()).collect(),
            accepts_images: encoder.as_ref().is_some_and(MediaEncoder::accepts_images),
            accepts_audio: encoder
                .as_ref()
                .is_some_and(|encoder| encoder.sample_rate().is_some()),
            can_generate: backend.has_memory(),
            layers: model.layer_count(),
            gpu_layers: model.placement().gpu_layers,
            devices: model.placement().devices.clone(),
        };
        if info.gpu_layers > 0 {
            tracing::info!(
                model = info.name,
                layers = info.layers,
                gpu_layers = info.gpu_layers,
                devices = info.devices.join(", "),
                "layers on devices"
            );
        }
        let metrics = Arc::new(EngineMetrics::default());
        let embedder = Embedder::new(
            &model,
            info.can_generate,
            context,
            settings.threads,
            &config.embedding,
            &metrics,
        )?;
        let image_store = encoder.as_ref().map(|encoder| {
            let store = Arc::new(ImageStore::new(encoder.length()));
            backend.use_images(store.table().clone());
            store
        });
        let vocabulary = Arc::new(EngineVocabulary {
            model,
            end_of_generation,
        });
        let open_requests = OpenRequestLimits::new(
            RequestLoad::of_requests(max_open),
            RequestLoad::of_requests(limits.max_tenant_queue + running),
        );
        let swap = swap(
            config.prefix_offload_ram,
            config.swap_ram,
            config.swap_disk,
            &waker,
        )?
        .with_files(prefix_files);
        let samplers = SamplerMailbox::new(waker.clone());
        let wake_queue = Arc::<WakeQueue>::default();
        let mut worker = Worker::new(
            backend,
            limits,
            vocabulary.clone(),
            receiver,
            metrics.clone(),
            swap,
            samplers,
        )
        .with_wake_queue(Arc::clone(&wake_queue))
        .with_draft_model(draft_model);
        if config.adaptive_threads {
            worker.enable_adaptive_threads();
        }
        if let Some(feed) = &config.cache_feed {
            worker.enable_cache_feed(feed, &info.name, &info.adapters);
        }
        let thread = std::thread::Builder::new()
            .name(format!("engine {}", info.name))
            .spawn(move || worker.run())
            .map_err(|error| {
                LoadError::Config(format!(
                    "cannot start the engine thread: {error}; raise the limit of threads"
                ))
            })?;
        let images = match encoder.zip(image_store) {
            Some((encoder, store)) => {
                let decoder = MediaDecoder {
                    children: config.image_decoders,
                };
                let clear_prefixes = clear_prefixes(Arc::downgrade(&commands));
                let metrics = metrics.clone();
                Some(ImageEncoder::start(
                    encoder,
                    decoder,
                    store,
                    metrics,
                    clear_prefixes,
                )?)
            }
            None => None,
        };
        let adapter = |(_, path)| AdapterFile {
            path,
            digest: OnceLock::new(),
        };
        Ok(Self(Arc::new(Inner {
            grammars: GrammarCompiler::new(Arc::new(ModelVocabulary(vocabulary.model.clone()))),
            breakers: Mutex::default(),
            vocabulary,
            info,
            path: config.path,
            digest: OnceLock::new(),
            adapters: config.adapters.into_iter().map(adapter).collect(),
            images,
            projector: config.projector,
            projector_digest: OnceLock::new(),
            snapshots: config.snapshots,
            commands,
            open_requests,
            metrics,
            waker,
            wake_queue,
            settings: settings.without_device_top_k(),
            cells: limits.cells,
            max_running: config.max_running,
            memory: memory.host,
            memory_pressure: AtomicU8::default(),
            device_memory: memory.devices,
            thread: Mutex::new(Some(thread)),
            embedder,
        })))
    }
}

/// Wakes the engine thread by a command. Holds the channel weakly, so that the thread ends with the last handle.
fn waker(commands: Weak<SyncSender<Command>>) -> EngineWaker {
    EngineWaker::new(move || {
        if let Some(commands) = commands.upgrade() {
            // A full channel wakes the thread anyway.
            let _ = commands.try_send(Command::Wake);
        }
    })
}

/// Drops all cached prefixes that no sequence retains.
fn clear_prefixes(commands: Weak<SyncSender<Command>>) -> impl Fn() -> Result<(), Error> {
    move || match commands.upgrade() {
        Some(commands) => commands
            .send(Command::ClearPrefixCache)
            .map_err(|_| thread_ended()),
        None => Err(Error::ShuttingDown),
    }
}

/// The stores of swapped-out sequences and offloaded prefixes.
fn swap(
    prefix_ram: u64,
    ram: u64,
    disk: Option<(PathBuf, u64)>,
    waker: &EngineWaker,
) -> Result<Swap, LoadError> {
    let dir = disk.as_ref().map(|(dir, _)| dir.clone());
    let store = |ram, disk| {
        SwapStore::new(SwapBudget { ram, disk }, waker.clone()).map_err(|error| {
            let dir = dir.clone().unwrap_or_default();
            LoadError::Config(format!(
                "cannot swap out to {}: {error}; give a directory that can be written",
                dir.display()
            ))
        })
    };
    let mut swap = Swap::default();
    if prefix_ram > 0 {
        swap = swap.with_prefixes(store(prefix_ram, None)?, prefix_ram);
    }
    if ram > 0 {
        swap = swap.with_sequences(store(ram, disk)?, ram);
    }
    Ok(swap)
}
