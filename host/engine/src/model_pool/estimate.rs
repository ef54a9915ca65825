//! What a model's file tells before it is loaded: that it is a model, and the memory it will take.
//!
//! For that, this process reads the header of the file (metadata and list of tensors) before the check in a child process,
//! with a reader that bounds what it allocates. llama.cpp opens the file in the child first.

use crate::device_placement::plan::PlacementPlan;
use crate::error::LoadError;
use crate::media::estimate::projector_bytes;
use crate::memory_estimate::MemoryEstimate;
use crate::model_config::ModelConfig;
use corral_llama::KvType;
use std::path::Path;
use std::time::SystemTime;

/// Sizes and modification times of the files of a model and its draft model: they tell whether one was replaced or
/// written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStamp([Option<(u64, Option<SystemTime>)>; 2]);

impl FileStamp {
    /// The stamp of a model's files; `None` if one cannot be read.
    pub fn of(config: &ModelConfig) -> Option<Self> {
        let stamp = |path: &Path| {
            let metadata = std::fs::metadata(path).ok()?;
            Some((metadata.len(), metadata.modified().ok()))
        };
        let draft = match &config.draft {
            Some(path) => Some(stamp(path)?),
            None => None,
        };
        Some(Self([Some(stamp(&config.path)?), draft]))
    }
}

/// The memory that a model will take for weights and cells, as its file tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelSize {
    /// Bytes of the weights.
    pub weights: u64,
    /// Number of KV cells.
    pub cells: u32,
    /// The type of the cells.
    pub kv: KvType,
    /// Bytes of all cells.
    pub cell_bytes: u64,
    /// Bytes of weights and cells of the draft model; 0 without one.
    pub draft: u64,
}

/// Estimates the size of a model. Fails as the load would, as far as the header of the file and the list of devices tell.
pub fn estimate(config: &ModelConfig) -> Result<ModelSize, LoadError> {
    let estimate = MemoryEstimate::read(&config.path)?;
    let plan = PlacementPlan::new(config, &estimate)?;
    let mut size = size(config, &estimate, plan.first_cells());
    if let Some(draft) = draft_config(config, &estimate, size.cells)? {
        let draft = self::estimate(&draft)?;
        size.draft = draft.weights.saturating_add(draft.cell_bytes);
    }
    Ok(size)
}

/// The configuration of the draft model, if there is one.
fn draft_config(
    config: &ModelConfig,
    estimate: &MemoryEstimate,
    cells: u32,
) -> Result<Option<ModelConfig>, LoadError> {
    let Some(path) = &config.draft else {
        return Ok(None);
    };
    let context = config.context_for(estimate.trained_context())?;
    config.draft_config(path, context, cells).map(Some)
}

fn size(config: &ModelConfig, estimate: &MemoryEstimate, cells: u32) -> ModelSize {
    let kv = config.placement.kv_type;
    ModelSize {
        weights: estimate.weight_bytes(),
        cells,
        kv,
        cell_bytes: estimate.cell_bytes(cells, kv),
        draft: 0,
    }
}

/// Estimates the bytes that a model will take of the machine's memory: weights, cells, states of
/// Mamba, and buffers of a full step (logits, rows of a layer, attention mask), without what lies on
/// devices with a memory of their own; the same of its draft model; and the projector. Too high for hybrid models and models
/// with sliding windows.
///
/// Fails as the load would: the file cannot be read or is no GGUF, or the devices do not exist.
pub fn estimate_host_bytes(config: &ModelConfig) -> Result<u64, LoadError> {
    let estimate = MemoryEstimate::read(&config.path)?;
    let plan = PlacementPlan::new(config, &estimate)?;
    let size = size(config, &estimate, plan.first_cells());
    let draft = match draft_config(config, &estimate, size.cells)? {
        Some(draft) => estimate_host_bytes(&draft)?,
        None => 0,
    };
    let on_device = plan.attempts().first().is_some_and(|layers| *layers > 0);
    let selects = config.device_top_k.is_expected(on_device);
    let all = size
        .weights
        .saturating_add(size.cell_bytes)
        .saturating_add(estimate.state_bytes(config.max_running))
        .saturating_add(estimate.logit_bytes(selects))
        .saturating_add(estimate.output_bytes(config.max_running, selects))
        .saturating_add(estimate.step_bytes(size.cells));
    let projector = config.projector.as_deref().map(projector_bytes);
    let projector = projector.transpose()?.unwrap_or(0);
    Ok(all
        .saturating_sub(plan.device_bytes())
        .saturating_add(draft)
        .saturating_add(projector))
}
