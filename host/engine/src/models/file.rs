//! What can be known of a model's file before it is loaded: that it is one, and what it will take.

use crate::config::Config;
use crate::device_placement::PlacementPlan;
use crate::error::LoadError;
use crate::memory_estimate::MemoryEstimate;
use corral_llama::KvType;
use std::path::Path;
use std::time::SystemTime;

/// Tells whether a file was replaced or written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Print {
    bytes: u64,
    modified: Option<SystemTime>,
}

impl Print {
    /// Of the file as it is now; none if there is none that can be asked.
    pub fn of(path: &Path) -> Option<Self> {
        let metadata = std::fs::metadata(path).ok()?;
        Some(Self {
            bytes: metadata.len(),
            modified: metadata.modified().ok(),
        })
    }
}

/// What a model is expected to take, as its file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Bytes of the weights.
    pub weights: u64,
    /// Number of KV cells.
    pub cells: u32,
    /// How they are stored.
    pub kv: KvType,
    /// Bytes of all cells.
    pub cell_bytes: u64,
}

/// What the model of this file is expected to take for weights and cells. The error is what the load would
/// say, as far as a look can tell.
pub fn expected(config: &Config) -> Result<Expected, LoadError> {
    Ok(expected_of(config, &MemoryEstimate::read(&config.path)?))
}

fn expected_of(config: &Config, estimate: &MemoryEstimate) -> Expected {
    let (cells, kv) = (
        config.cells_for(estimate.trained_context()),
        config.placement.kv_type,
    );
    Expected {
        weights: estimate.weight_bytes(),
        cells,
        kv,
        cell_bytes: estimate.cell_bytes(cells, kv),
    }
}

/// Bytes of the machine's memory that the model of this file is expected to take: the weights as they are in
/// the file, the cells, the states of Mamba, and what a full step computes with: logits, the rows of a layer,
/// the mask of attention; less what is to lie on devices with a memory of their own. More than it really
/// takes for hybrid models and those with sliding windows.
///
/// The error is what the load would say: the file can't be read or is no GGUF, or there are no such devices.
pub fn expected_bytes(config: &Config) -> Result<u64, LoadError> {
    let estimate = MemoryEstimate::read(&config.path)?;
    let expected = expected_of(config, &estimate);
    let plan = PlacementPlan::with_estimate(config, &estimate)?;
    let on_device = plan.attempts().first().is_some_and(|layers| *layers > 0);
    let selects = config.device_sampling.is_expected(on_device);
    let all = expected
        .weights
        .saturating_add(expected.cell_bytes)
        .saturating_add(estimate.state_bytes(config.sequences))
        .saturating_add(estimate.logit_bytes(selects))
        .saturating_add(estimate.output_bytes(config.sequences, selects))
        .saturating_add(estimate.step_bytes(expected.cells));
    Ok(all.saturating_sub(plan.device_bytes()))
}
