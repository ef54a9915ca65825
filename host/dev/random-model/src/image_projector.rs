//! A projector (`mmproj`) that makes a text model see: each square of a picture is a token of the model.
//!
//! A picture has [`SIDE`] by [`SIDE`] squares, from left to right and from top to bottom, of [`PATCH`] by [`PATCH`] pixels. A square
//! with one white pixel among black ones, pixel number `t`, has the embedding of the token `t` ([`picture`] draws one). So a
//! model that adds `12+7=` in text adds it in a picture, and its answer tells whether each embedding is in its place.
//!
//! It is the projector of LLaVA (`mlp`) behind no layer of attention. The first matrix compares each pixel with a half, so that
//! noise of a lossy format has no effect, and the second one holds the model's embeddings.

use crate::{GgufError, TensorType};
use corral_llama::gguf::{Tensor, Writer, tensors, weights};
use std::path::Path;

/// Squares of a picture in a row, and rows.
pub const SIDE: u32 = 3;
/// Pixels of a square in a row, and rows. A square can be one of the first 256 tokens.
pub const PATCH: u32 = 16;

/// Pixels of a square, and of a row of the vision encoder.
const PIXELS: u64 = (PATCH * PATCH) as u64;
/// How steeply a pixel is compared with a half.
const SLOPE: f32 = 20.0;
const EMBEDDINGS: &str = "token_embd.weight";

/// Writes a projector for the text model `model`, whose embeddings are F32 or F16.
pub fn write_projector(model: &Path, path: &Path) -> Result<(), GgufError> {
    let (width, embeddings) = read_embeddings(model)?;
    let mut writer = Writer::new()?;
    writer.set("general.architecture", "clip")?;
    writer.set("general.name", "Squares as tokens")?;
    writer.set("clip.has_vision_encoder", true)?;
    writer.set("clip.projector_type", "mlp")?;
    writer.set("clip.use_gelu", true)?;
    let size = u32::try_from(PIXELS).unwrap_or(u32::MAX);
    for (key, value) in [
        ("image_size", SIDE * PATCH),
        ("patch_size", PATCH),
        ("embedding_length", size),
        ("feed_forward_length", size),
        ("projection_dim", u32::try_from(width).unwrap_or(u32::MAX)),
        // llama.cpp leaves the last one out.
        ("block_count", 1),
        ("attention.head_count", 1),
    ] {
        writer.set(&format!("clip.vision.{key}"), value)?;
    }
    writer.set("clip.vision.attention.layer_norm_epsilon", 1e-5_f32)?;
    writer.set("clip.vision.image_mean", vec![0.0_f32; 3])?;
    writer.set("clip.vision.image_std", vec![1.0_f32; 3])?;
    let patch = u64::from(PATCH);
    let squares = u64::from(SIDE * SIDE);
    for (name, dimensions) in [
        ("v.patch_embd.weight", &[patch, patch, 3, PIXELS][..]),
        ("v.position_embd.weight", &[PIXELS, squares]),
        ("v.blk.0.attn_out.weight", &[PIXELS, PIXELS]),
        ("v.blk.0.ffn_up.weight", &[PIXELS, PIXELS]),
        ("v.blk.0.ffn_down.weight", &[PIXELS, PIXELS]),
        ("mm.0.weight", &[PIXELS, PIXELS]),
        ("mm.0.bias", &[PIXELS]),
        ("mm.2.weight", &[PIXELS, width]),
        ("mm.2.bias", &[width]),
    ] {
        writer.tensor(name, TensorType::F32, dimensions)?;
    }
    write_numbers(writer, path, |tensor, at| number(tensor, at, &embeddings))
}

/// Writes the file with the number of each index of each tensor.
pub(crate) fn write_numbers(
    writer: Writer,
    path: &Path,
    number: impl Fn(&Tensor, usize) -> f32,
) -> Result<(), GgufError> {
    let mut current = usize::MAX;
    let mut at = 0;
    writer.write(path, |index, tensor, weights| {
        if index != current {
            (current, at) = (index, 0);
        }
        for weight in weights {
            *weight = number(tensor, at);
            at += 1;
        }
    })
}

/// The number at an index of a tensor.
fn number(tensor: &Tensor, at: usize, embeddings: &[f32]) -> f32 {
    let pixels = (PATCH * PATCH) as usize;
    let (row, column) = (at / tensor.row, at % tensor.row);
    match tensor.name.as_str() {
        // A filter for each pixel: the mean of its colors.
        "v.patch_embd.weight" => {
            let (filter, pixel) = (at / (3 * pixels), at % pixels);
            if filter == pixel { 1.0 / 3.0 } else { 0.0 }
        }
        "mm.0.weight" if row == column => SLOPE,
        "mm.0.bias" => -SLOPE / 2.0,
        // A row for each number of an embedding, a column for each token.
        "mm.2.weight" => {
            let width = tensor.rows;
            embeddings[column * width + row] / (SLOPE / 2.0)
        }
        _ => 0.0,
    }
}

/// The length of a model's embeddings, and their numbers.
pub(crate) fn read_embeddings(model: &Path) -> Result<(u64, Vec<f32>), GgufError> {
    let numbers = weights(model, EMBEDDINGS)?;
    let all = tensors(model)?;
    let table = all.iter().find(|tensor| tensor.name == EMBEDDINGS);
    let width = table.map_or(0, |table| table.dimensions[0]);
    Ok((u64::try_from(width).unwrap_or(0), numbers))
}

/// The pixels of a picture of these tokens, at most [`SIDE`]² of them, one byte each. `filler` fills the squares before them.
pub fn picture(tokens: &[u8], filler: u8) -> Vec<u8> {
    let squares = (SIDE * SIDE) as usize;
    let fillers = std::iter::repeat_n(filler, squares.saturating_sub(tokens.len()));
    let shown: Vec<u8> = fillers.chain(tokens.iter().copied()).collect();
    let (side, patch) = (SIDE as usize, PATCH as usize);
    let mut pixels = vec![0; squares * patch * patch];
    for (square, token) in shown.into_iter().take(squares).enumerate() {
        let (x, y) = (usize::from(token) % patch, usize::from(token) / patch);
        let (left, top) = (square % side * patch, square / side * patch);
        pixels[(top + y) * side * patch + left + x] = 255;
    }
    pixels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picture_has_a_pixel_for_each_token() {
        let pixels = picture(&[0, 17], 255);
        let width = (SIDE * PATCH) as usize;
        assert_eq!(pixels.len(), width * width);
        assert_eq!(pixels.iter().filter(|pixel| **pixel == 255).count(), 9);
        // The last two squares are in the third row.
        assert_eq!(pixels[32 * width + 16], 255);
        assert_eq!(pixels[33 * width + 33], 255);
    }
}
