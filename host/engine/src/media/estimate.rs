//! The memory of a projector file, from its header.

use crate::LoadError;
use crate::memory_estimate::header_error;
use corral_llama::gguf::{Value, metadata, tensors};
use std::path::Path;

/// Bytes of the weights of a projector.
pub fn projector_weights(path: &Path) -> Result<u64, LoadError> {
    let tensors = tensors(path).map_err(|error| header_error(path, error))?;
    let bytes = tensors.iter().map(|tensor| tensor.bytes);
    Ok(bytes.fold(0, u64::saturating_add))
}

/// Frames of a spectrogram that an audio encoder takes at once: half a minute.
const AUDIO_FRAMES: u64 = 3_000;

/// Bytes that a projector will take: its weights, and the rows of a layer for all patches of its largest picture, or for all
/// frames of audio, in f32.
pub fn projector_bytes(path: &Path) -> Result<u64, LoadError> {
    let keys = metadata(path, "clip.").map_err(|error| header_error(path, error))?;
    let number = |encoder: &str, name: &str| {
        let wanted = format!("clip.{encoder}.{name}");
        match keys.iter().find(|(key, _)| *key == wanted) {
            Some((_, Value::U32(number))) => u64::from(*number),
            Some((_, Value::I32(number))) => u64::try_from(*number).unwrap_or(0),
            _ => 0,
        }
    };
    let row_bytes = |encoder: &str| {
        let width = number(encoder, "embedding_length").saturating_mul(8);
        let row = width.saturating_add(number(encoder, "feed_forward_length").saturating_mul(2));
        row.saturating_mul(4)
    };
    let side = number("vision", "image_size");
    let pixels = side
        .saturating_mul(side)
        .max(number("vision", "image_max_pixels"));
    let patch = number("vision", "patch_size").max(1);
    let patches = pixels / patch.saturating_mul(patch);
    let rows = patches.saturating_mul(row_bytes("vision"));
    let picture = pixels.saturating_mul(12);
    Ok(projector_weights(path)?
        .saturating_add(rows)
        .saturating_add(picture)
        .saturating_add(AUDIO_FRAMES.saturating_mul(row_bytes("audio"))))
}
