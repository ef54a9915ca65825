//! The memory of a projector file, from its head.

use crate::LoadError;
use crate::memory_estimate::head_error;
use corral_llama::gguf::{Value, metadata, tensors};
use std::path::Path;

/// Bytes of the weights of a projector.
pub fn projector_weights(path: &Path) -> Result<u64, LoadError> {
    let tensors = tensors(path).map_err(|error| head_error(path, error))?;
    let bytes = tensors.iter().map(|tensor| tensor.bytes);
    Ok(bytes.fold(0, u64::saturating_add))
}

/// Bytes that a projector will take: its weights, and the rows of a layer for all patches of its largest picture, in f32.
pub fn projector_bytes(path: &Path) -> Result<u64, LoadError> {
    let keys = metadata(path, "clip.vision.").map_err(|error| head_error(path, error))?;
    let number = |name: &str| {
        let found = keys
            .iter()
            .find(|(key, _)| key.strip_prefix("clip.vision.") == Some(name));
        match found {
            Some((_, Value::U32(number))) => u64::from(*number),
            Some((_, Value::I32(number))) => u64::try_from(*number).unwrap_or(0),
            _ => 0,
        }
    };
    let side = number("image_size");
    let pixels = side.saturating_mul(side).max(number("image_max_pixels"));
    let patch = number("patch_size").max(1);
    let patches = pixels / patch.saturating_mul(patch);
    let width = number("embedding_length").saturating_mul(8);
    let row = width.saturating_add(number("feed_forward_length").saturating_mul(2));
    let rows = patches.saturating_mul(row.saturating_mul(4));
    let picture = pixels.saturating_mul(12);
    Ok(projector_weights(path)?
        .saturating_add(rows)
        .saturating_add(picture))
}
