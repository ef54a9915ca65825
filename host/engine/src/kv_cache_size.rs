//! The number of KV cells of a model. The default is enough for many requests, but at most what fits a quarter of the
//! memory that holds the cells, and at least one context. [`PlacementPlan`](crate::device_placement::plan::PlacementPlan)
//! decides where they lie.

use crate::memory_estimate::MemoryEstimate;
use crate::model_config::{DEFAULT_CONTEXT, ModelConfig};

/// Default number of cells, unless one sequence needs more or there is little memory.
const DEFAULT_CELLS: u32 = 16_384;
/// The cells take at most one part in this many of the memory.
const MEMORY_PART: u64 = 4;

/// The cells of a model if they lie in `memory` bytes.
pub(crate) fn cells_within(memory: u64, config: &ModelConfig, estimate: &MemoryEstimate) -> u32 {
    config.cells.unwrap_or_else(|| {
        let trained = estimate.trained_context();
        let context = config.context.unwrap_or(trained.min(DEFAULT_CONTEXT));
        let bytes = estimate.cell_bytes(DEFAULT_CELLS, config.placement.kv_type);
        default_cells(memory, bytes).max(context)
    })
}

/// [`DEFAULT_CELLS`], which take `bytes`, or fewer if the cells' part of the memory holds fewer.
fn default_cells(memory: u64, bytes: u64) -> u32 {
    // llama.cpp rounds up to this multiple.
    let units = u128::from(DEFAULT_CELLS / 256);
    let fit = u128::from(memory / MEMORY_PART) * units / u128::from(bytes.max(1));
    u32::try_from(fit.min(units) * 256).unwrap_or(DEFAULT_CELLS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_cells_fit_a_quarter_of_memory() {
        for (memory, bytes, expected) in [
            (1 << 35, 1 << 31, 16_384),
            (1 << 32, 1 << 31, 8192),
            (3 << 30, 1 << 31, 6144),
            ((3 << 30) - 1, 1 << 31, 5888),
            (1 << 30, 0, 16_384),
            (u64::MAX, u64::MAX, 4096 - 256),
        ] {
            assert_eq!(default_cells(memory, bytes), expected, "{memory} {bytes}");
        }
    }
}
