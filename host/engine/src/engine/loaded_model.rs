//! Loads a model into memory: weights, adapters and the context, on the host and on devices.
//!
//! llama.cpp reports a full device only by failing. Unless the configuration fixes the number of offloaded layers,
//! a failed load is retried with fewer.

use crate::LoadError;
use crate::device_placement::plan::PlacementPlan;
use crate::media::estimate::projector_weights;
use crate::memory_estimate::{MemoryEstimate, STEP_TOKENS};
use crate::model_check::input::ModelCheckInput;
use crate::model_config::{DeviceTopKMode, MAX_RUNNING, ModelConfig};
use crate::worker::MAX_COMPACTION_BYTES;
use corral_llama::{
    ContextSettings, DevicePlacement, DeviceTopK, LlamaContext, LlamaError, LoadGate, LoadProgress,
    LoadStage, MediaEncoder, Model, take_buffer_sizes,
};
use corral_scheduler::AdapterId;
use std::path::PathBuf;
use std::sync::Arc;

/// A model in memory, with a context.
pub(super) struct LoadedModel {
    pub model: Arc<Model>,
    pub backend: LlamaContext,
    pub settings: ContextSettings,
    /// Positions per sequence.
    pub context: u32,
    pub memory: MemoryUse,
    pub encoder: Option<MediaEncoder>,
    /// Tokens of the longest sequence that compaction may move.
    pub max_compaction_tokens: u32,
}

/// Bytes that a loaded model takes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct MemoryUse {
    /// Bytes of the machine's memory.
    pub host: u64,
    /// Bytes of devices with their own memory, by device name.
    pub devices: Vec<(String, u64)>,
}

impl LoadedModel {
    /// Loads the model of a configuration, beside the check of its files if there is one. Without, `gate` decides
    /// before each stage whether the load goes on.
    pub fn load(
        config: &ModelConfig,
        progress: &LoadProgress,
        gate: LoadGate<'_>,
    ) -> Result<Self, LoadError> {
        let estimate = MemoryEstimate::read(&config.path)?;
        let plan = PlacementPlan::new(config, &estimate)?;
        let Some(check) = &config.check else {
            return Self::load_planned(config, &estimate, &plan, progress, gate);
        };
        let model = ModelCheckInput {
            path: config.path.clone(),
            kv_type: config.placement.kv_type,
            context: config.context,
            adapters: config.adapters.clone(),
            projector: config.projector.clone(),
            // With layers on devices, llama.cpp reads the tensors in another order than the check.
            same_order: (!plan.has_devices()).then_some(config.file_access),
        };
        let kv_type = config.placement.kv_type;
        let cells = estimate.cell_bytes(plan.first_cells(), kv_type);
        let context_bytes = cells.saturating_add(estimate.state_bytes(config.max_running));
        check.check_beside(&model, context_bytes, &|| progress.is_canceled(), |gate| {
            Self::load_planned(config, &estimate, &plan, progress, gate)
        })
    }

    fn load_planned(
        config: &ModelConfig,
        estimate: &MemoryEstimate,
        plan: &PlacementPlan,
        progress: &LoadProgress,
        gate: LoadGate<'_>,
    ) -> Result<Self, LoadError> {
        let mut tries = plan.attempts().into_iter().peekable();
        loop {
            let layers = tries.next().unwrap_or(0);
            // Forgets the buffers of a failed attempt.
            take_buffer_sizes();
            let error = match Self::attempt(config, estimate, plan, layers, progress, gate) {
                Ok(loaded) => return Ok(loaded),
                Err(error) => error,
            };
            let out_of_memory = match &error {
                LoadError::Llama(error) => error.out_of_memory(),
                _ => None,
            };
            let Some(cause) = out_of_memory.filter(|_| layers > 0) else {
                return Err(error);
            };
            let Some(fewer) = tries.peek() else {
                return Err(plan.out_of_memory(&config.path, layers, cause.to_owned()));
            };
            tracing::warn!(
                model = config.name,
                layers,
                fewer,
                cause,
                "the layers do not fit on their devices; trying fewer"
            );
        }
    }

    fn attempt(
        config: &ModelConfig,
        estimate: &MemoryEstimate,
        plan: &PlacementPlan,
        layers: u32,
        progress: &LoadProgress,
        gate: LoadGate<'_>,
    ) -> Result<Self, LoadError> {
        let mut model = Model::load_gated(
            &config.path,
            plan.placement(layers),
            config.file_access,
            progress,
            gate,
        )?;
        load_adapters(&mut model, &config.adapters)?;
        let model = Arc::new(model);
        let context = config.context_for(model.trained_context().max(1))?;
        let cells = plan.cells(layers);
        if cells < context {
            return Err(LoadError::Config(format!(
                "{cells} cells cannot hold one sequence of {context} positions; \
                 give at least {context} cells or a shorter context"
            )));
        }
        if !(1..=MAX_RUNNING).contains(&config.max_running) {
            return Err(LoadError::Config(format!(
                "{} running sequences were requested; give a number from 1 to {MAX_RUNNING}",
                config.max_running
            )));
        }
        let threads = config.threads.unwrap_or_else(|| {
            std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(1))
        });
        let mut buffers = take_buffer_sizes();
        let device_top_k = device_top_k(config, &model, cells);
        let settings = ContextSettings {
            cells,
            step_tokens: STEP_TOKENS,
            seq_ids: config.max_running + device_top_k.map_or(0, |top_k| top_k.seq_ids),
            threads,
            kv_type: config.placement.kv_type,
            device_top_k,
        };
        let backend = LlamaContext::new(model.clone(), settings)?;
        let encoder = config.projector.as_ref().map(|projector| {
            // As many threads as embeddings have while requests generate.
            MediaEncoder::load(projector, model.clone(), threads.div_ceil(2))
        });
        let mut encoder = encoder.transpose()?;
        if let Some(encoder) = &mut encoder
            && config.repeat_windows
        {
            encoder.repeat_windows();
        }
        buffers.extend(take_buffer_sizes());
        let separate = plan.devices_with_memory();
        let mut memory = MemoryUse::of(buffers, model.placement(), &separate);
        // llama.cpp logs the buffers of its computation, and not of its weights.
        if let Some(projector) = &config.projector {
            memory.host = memory.host.saturating_add(projector_weights(projector)?);
        }
        if !gate(LoadStage::Use) {
            return Err(LlamaError::Canceled.into());
        }
        Ok(Self {
            memory,
            encoder,
            model,
            backend,
            settings,
            context,
            max_compaction_tokens: estimate
                .tokens_of_state(MAX_COMPACTION_BYTES as u64, settings.kv_type),
        })
    }
}

/// The sequence ids with device top-k, if it is on: `max_running` on top of as many without, or fewer if there are too
/// few cells or ids.
fn device_top_k(config: &ModelConfig, model: &Model, cells: u32) -> Option<DeviceTopK> {
    // Recurrent and hybrid models keep state per id and reorder outputs.
    let on_device = model.output_on_device() && !model.has_recurrent_layers();
    let vocabulary = u32::try_from(model.vocabulary_size()).unwrap_or(u32::MAX);
    let k = config.device_top_k.top_k(on_device, vocabulary)?;
    let ids = top_k_seq_ids(config.max_running, cells);
    let is_explicit = matches!(config.device_top_k, DeviceTopKMode::On { .. });
    if is_explicit && ids < config.max_running {
        let (model, running) = (&config.name, config.max_running);
        tracing::warn!(
            model,
            "--device-top-k serves {ids} of {running} running sequences: llama.cpp has {MAX_RUNNING} sequence ids, no \
             more than KV cells, and both kinds of sequences need some; --max-running {} leaves enough ids",
            MAX_RUNNING / 2
        );
    }
    (ids > 0).then_some(DeviceTopK { k, seq_ids: ids })
}

/// The sequence ids for device top-k beside `max_running` others.
fn top_k_seq_ids(max_running: u16, cells: u32) -> u16 {
    // llama.cpp aborts the process if there are more ids than cells.
    let room = cells.saturating_sub(u32::from(max_running));
    let ids = max_running.min(MAX_RUNNING - max_running);
    ids.min(u16::try_from(room).unwrap_or(u16::MAX))
}

impl MemoryUse {
    /// Adds the memory of another model.
    pub fn add(&mut self, other: Self) {
        self.host = self.host.saturating_add(other.host);
        for (device, bytes) in other.devices {
            self.add_device(&device, bytes);
        }
    }

    fn add_device(&mut self, device: &str, bytes: u64) {
        match self.devices.iter_mut().find(|(known, _)| known == device) {
            Some((_, sum)) => *sum = sum.saturating_add(bytes),
            None => self.devices.push((device.to_owned(), bytes)),
        }
    }

    /// Sums llama.cpp's buffers. `separate` names the devices with their own memory.
    fn of(buffers: Vec<(String, u64)>, placement: &DevicePlacement, separate: &[&str]) -> Self {
        let mut memory = Self::default();
        for (buffer, bytes) in buffers {
            // A device's buffers have its name, or begin with it: `MTL0_Mapped`.
            let is_of = |device: &&String| {
                let rest = buffer.strip_prefix(device.as_str());
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
            };
            let device = placement.devices.iter().find(is_of);
            let Some(device) = device.filter(|device| separate.contains(&device.as_str())) else {
                memory.host = memory.host.saturating_add(bytes);
                continue;
            };
            memory.add_device(device, bytes);
        }
        memory
    }
}

fn load_adapters(model: &mut Model, adapters: &[(String, PathBuf)]) -> Result<(), LoadError> {
    let most = usize::from(AdapterId::MAX);
    if adapters.len() > most {
        return Err(LoadError::Config(format!(
            "{} adapters were given; a model may have at most {most}",
            adapters.len()
        )));
    }
    for (index, (name, path)) in adapters.iter().enumerate() {
        let refused = |cause: &str| LlamaError::Adapter {
            name: name.clone(),
            path: path.clone(),
            cause: cause.to_owned(),
        };
        if name.is_empty() {
            return Err(refused("its name is empty; give it a name").into());
        }
        if adapters[..index].iter().any(|(other, _)| other == name) {
            return Err(refused("another adapter has this name; rename one of them").into());
        }
        model.load_adapter(name, path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device_placement::DeviceSelection;
    use std::cell::RefCell;
    use std::path::Path;

    #[test]
    fn gate_is_asked_before_context_and_use() {
        let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny/tiny.gguf");
        let mut config = ModelConfig::new("tiny", tiny);
        config.context = Some(256);
        config.cells = Some(256);
        config.threads = Some(1);
        config.placement.devices = DeviceSelection::Cpu;
        let ends_at = |is_last: fn(LoadStage) -> bool| {
            let seen = RefCell::new(Vec::new());
            let gate = |stage| {
                seen.borrow_mut().push(stage);
                !is_last(stage)
            };
            let error = LoadedModel::load(&config, &LoadProgress::default(), &gate).err();
            let is_canceled = matches!(error, Some(LoadError::Llama(LlamaError::Canceled)));
            assert!(is_canceled, "{error:?}");
            seen.into_inner()
        };
        let to_context = ends_at(|stage| matches!(stage, LoadStage::Context(_)));
        let mut all = to_context.clone();
        all.push(LoadStage::Use);
        assert_eq!(ends_at(|stage| stage == LoadStage::Use), all);
        let tensors = to_context.len() - LoadStage::HEADER_PARTS - 1;
        assert_eq!(to_context.last(), Some(&LoadStage::Context(tensors)));
    }

    #[test]
    fn separate_device_memory_is_counted_per_device() {
        let buffers = || {
            let buffer = |name: &str, bytes| (name.to_owned(), bytes);
            vec![
                buffer("CPU", 1),
                buffer("CPU_Mapped", 10),
                buffer("CUDA_Host", 100),
                buffer("CUDA1", 1000),
                buffer("CUDA10", 10_000),
                buffer("MTL0_Private", 100_000),
                buffer("MTL0", 1_000_000),
            ]
        };
        let placement = |devices: &[&str]| DevicePlacement {
            devices: devices.iter().map(|name| (*name).to_owned()).collect(),
            gpu_layers: 1,
        };
        let none = MemoryUse::of(buffers(), &DevicePlacement::default(), &[]);
        assert_eq!((none.host, none.devices.len()), (1_111_111, 0));
        let two = placement(&["CUDA1", "MTL0"]);
        let both = MemoryUse::of(buffers(), &two, &["CUDA1", "MTL0"]);
        assert_eq!(both.host, 10_111);
        let expected = [("CUDA1".to_owned(), 1000), ("MTL0".to_owned(), 1_100_000)];
        assert_eq!(both.devices, expected);
        let one = MemoryUse::of(buffers(), &two, &["CUDA1"]);
        assert_eq!((one.host, one.devices.len()), (1_110_111, 1));
    }

    #[test]
    fn device_top_k_takes_the_remaining_ids() {
        for (running, cells, ids) in [
            (64, 16_384, 64),
            (128, 16_384, 128),
            (200, 16_384, 56),
            (256, 16_384, 0),
            (64, 100, 36),
            (64, 10, 0),
        ] {
            assert_eq!(top_k_seq_ids(running, cells), ids, "{running} {cells}");
        }
    }
}
