//! How a model becomes an engine: what `place.rs` put into memory, and the threads.

use super::place::{self, Placed};
use super::{Adapter, Engine, Inner, ModelWords};
use crate::LoadError;
use crate::chooser::Desk;
use crate::config::{Config, ModelInfo};
use crate::embedding::Embedder;
use crate::generation::MAX_DRAFTS;
use crate::metrics::Counters;
use crate::places::Places;
use crate::store::spill::{Budgets, Spill};
use crate::vocabulary::ModelVocabulary;
use crate::worker::{Aside, Command, Worker};
use corral_constraint::GrammarCompiler;
use corral_llama::LoadProgress;
use corral_scheduler::SchedulerConfig;
use std::path::PathBuf;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// Commands that are no sequences: to look, to clear, to save, to shut down.
const OTHERS: usize = 64;
/// Part of the queue that one tenant may fill, so that no one else is refused for its sake.
const TENANT_SHARE: usize = 4;

impl Engine {
    /// Loads a model and starts its thread. Blocks until it is ready.
    pub fn load(config: Config) -> Result<Self, LoadError> {
        Self::load_watched(config, &LoadProgress::default())
    }

    /// [`Engine::load`] which says how far it is, and stops when it is told to:
    /// [`corral_llama::LlamaError::Cancelled`].
    pub fn load_watched(config: Config, progress: &LoadProgress) -> Result<Self, LoadError> {
        let Placed {
            model,
            backend,
            settings,
            context,
            buffers,
        } = place::place(&config, progress)?;
        let top_ids = backend.device_top_k().map_or(0, |top_k| top_k.seq_ids);
        let limits = SchedulerConfig {
            seq_ids: config.sequences + top_ids,
            top_k_seq_ids: top_ids,
            cells: backend.cells(),
            max_step_tokens: backend.step_tokens(),
            max_queue: config.queue,
            max_tenant_queue: config.queue.div_ceil(TENANT_SHARE),
            prefill: config.prefill,
            prefix_cache: config.prefix_cache,
            can_truncate: model.can_truncate(),
            swap: config.spill_ram > 0,
            offload_prefixes: config.prefix_ram > 0,
            max_drafts: if model.can_truncate() {
                MAX_DRAFTS.into()
            } else {
                0
            },
            overlap: config
                .overlap
                .resolve(model.placement().gpu_layers < model.layer_count()),
        };
        let ends = model.end_of_generation_tokens();
        let info = ModelInfo {
            name: config.name,
            vocabulary: u32::try_from(model.vocabulary_size()).unwrap_or(u32::MAX),
            context,
            embedding_length: model.embedding_length(),
            begin: model.bos_token(),
            end: model.end_token().filter(|end| ends.contains(end)),
            end_of_generation: ends,
            chat_template: model.chat_template(),
            can_truncate: model.can_truncate(),
            adapters: config.adapters.iter().map(|a| a.0.clone()).collect(),
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
        let adapter = |(_, path)| Adapter {
            path,
            digest: OnceLock::new(),
        };
        let counters = Arc::new(Counters::default());
        let memory = backend.has_memory();
        let embedder = Embedder::new(
            &model,
            memory,
            context,
            settings.threads,
            &config.embedding,
            &counters,
        )?;
        let words = Arc::new(ModelWords {
            model,
            end_of_generation: info.end_of_generation.clone(),
        });
        let running = usize::from(config.sequences);
        let places = Places::new(config.queue + running, limits.max_tenant_queue + running);
        // So a sequence that has a place always finds room, beside some who look or clear.
        let (commands, inbox) = sync_channel(places.limit + OTHERS);
        let commands = Arc::new(commands);
        let waker = || waker(Arc::downgrade(&commands));
        let aside = aside(
            config.prefix_ram,
            config.spill_ram,
            config.spill_disk,
            waker,
        )?;
        let vocabulary = words.clone();
        let desk = Desk::new(waker());
        let counted = counters.clone();
        let worker = Worker::new(
            backend,
            limits,
            vocabulary,
            inbox,
            counted,
            aside,
            desk.clone(),
        );
        let thread = std::thread::Builder::new()
            .name(format!("engine {}", info.name))
            .spawn(move || worker.run())
            .map_err(|error| {
                LoadError::Config(format!("the engine thread could not be started: {error}"))
            })?;
        Ok(Self(Arc::new(Inner {
            grammars: GrammarCompiler::new(Arc::new(ModelVocabulary(words.model.clone()))),
            breakers: Mutex::default(),
            model: words,
            info,
            path: config.path,
            digest: OnceLock::new(),
            adapters: config.adapters.into_iter().map(adapter).collect(),
            snapshots: config.snapshots,
            commands,
            places,
            counters,
            desk,
            settings: settings.without_device_top_k(),
            cells: limits.cells,
            memory: buffers.here,
            device_memory: buffers.apart,
            thread: Mutex::new(Some(thread)),
            embedder,
        })))
    }
}

/// Makes the engine's thread look for what is at hand. Weak, so that the thread ends with the last of
/// its handles.
fn waker(commands: Weak<SyncSender<Command>>) -> Box<dyn Fn() + Send + Sync> {
    Box::new(move || {
        if let Some(commands) = commands.upgrade() {
            // If the channel is full the thread looks anyway.
            let _ = commands.try_send(Command::Look);
        }
    })
}

/// Where the states of prefixes and sequences go that have to leave the cells.
fn aside(
    prefixes: u64,
    ram: u64,
    disk: Option<(PathBuf, u64)>,
    waker: impl Fn() -> Box<dyn Fn() + Send + Sync>,
) -> Result<Aside, LoadError> {
    let folder = disk.as_ref().map(|(folder, _)| folder.clone());
    let spill = |ram, disk| {
        Spill::new(Budgets { ram, disk }, waker()).map_err(|error| {
            let folder = folder.clone().unwrap_or_default();
            LoadError::Config(format!(
                "sequences can't be put aside in {}: {error}; give a folder that can be written",
                folder.display()
            ))
        })
    };
    let mut aside = Aside::new();
    if prefixes > 0 {
        aside = aside.with_prefixes(spill(prefixes, None)?, prefixes);
    }
    if ram > 0 {
        aside = aside.with_spill(spill(ram, disk)?, ram);
    }
    Ok(aside)
}
