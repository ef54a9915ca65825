//! A projector (`mmproj`) that makes a text model hear: each tone of a recording is a token of the model.
//!
//! A recording has [`TONES`] tones of [`SECONDS`] each. A tone of [`frequency`] `n` has the embedding of the character
//! [`CHARACTERS`]`[n]`, so a model that adds `12+7=` in text adds it in a recording, and its answer tells whether each embedding
//! is in its place.
//!
//! It is Whisper's encoder with Ultravox's projector, behind a layer of attention that adds nothing. The first convolution
//! compares the loudness of each frequency with a threshold. The projector looks at the middle of each tone; its norm makes the
//! result independent of the loudness, and its last matrix holds the model's embeddings.

use crate::image_projector::{read_embeddings, write_numbers};
use crate::{GgufError, TensorType};
use corral_llama::gguf::{Tensor, Writer};
use std::f64::consts::PI;
use std::path::Path;

/// The characters that have a tone.
pub const CHARACTERS: &[u8] = b"\n+0123456789";
/// Tones of a recording. A shorter one has silence at its end, which is no token that the model knows.
pub const TONES: usize = 10;
/// Seconds of a tone. Whisper's encoder takes half a minute at once.
pub const SECONDS: u32 = 3;

/// Filters of the mel spectrogram, as in Whisper.
const FILTERS: u64 = 80;
/// The filter of the first tone, and the distance of two tones in filters: far enough for Whisper's window of 25 ms.
const FIRST_FILTER: usize = 4;
const DISTANCE: usize = 5;
/// Numbers of a row of the encoder, one for each character and some more.
const WIDTH: u64 = 16;
/// Rows of the encoder for half a minute, and for a tone.
const ROWS: u64 = 1_500;
const TONE_ROWS: u64 = ROWS / TONES as u64;
/// The loudness of a filter above which it has a tone: the spectrogram has a range of 2, of which tones reach the top.
const THRESHOLD: f32 = 0.9;
/// How steeply the loudness is compared.
const SLOPE: f32 = 20.0;

/// Writes a projector for the text model `model`, whose embeddings are F32 or F16.
pub fn write_audio_projector(model: &Path, path: &Path) -> Result<(), GgufError> {
    let (width, embeddings) = read_embeddings(model)?;
    let mut writer = Writer::new()?;
    writer.set("general.architecture", "clip")?;
    writer.set("general.name", "Tones as tokens")?;
    writer.set("clip.has_audio_encoder", true)?;
    writer.set("clip.projector_type", "ultravox")?;
    let size = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    for (key, value) in [
        ("embedding_length", WIDTH),
        ("feed_forward_length", WIDTH),
        ("projection_dim", width),
        ("block_count", 1),
        ("attention.head_count", 1),
        ("num_mel_bins", FILTERS),
        ("projector.stack_factor", TONE_ROWS),
    ] {
        writer.set(&format!("clip.audio.{key}"), size(value))?;
    }
    writer.set("clip.audio.attention.layer_norm_epsilon", 1e-5_f32)?;
    let square = [WIDTH, WIDTH];
    for (name, dimensions) in [
        ("a.conv1d.1.weight", &[3, FILTERS, WIDTH][..]),
        ("a.conv1d.1.bias", &[1, WIDTH]),
        ("a.conv1d.2.weight", &[3, WIDTH, WIDTH]),
        ("a.conv1d.2.bias", &[1, WIDTH]),
        ("a.position_embd.weight", &[WIDTH, ROWS]),
        ("a.blk.0.ln1.weight", &[WIDTH]),
        ("a.blk.0.ln1.bias", &[WIDTH]),
        ("a.blk.0.attn_q.weight", &square),
        ("a.blk.0.attn_q.bias", &[WIDTH]),
        ("a.blk.0.attn_k.weight", &square),
        ("a.blk.0.attn_v.weight", &square),
        ("a.blk.0.attn_v.bias", &[WIDTH]),
        ("a.blk.0.attn_out.weight", &square),
        ("a.blk.0.ln2.weight", &[WIDTH]),
        ("a.blk.0.ln2.bias", &[WIDTH]),
        ("a.blk.0.ffn_up.weight", &square),
        ("a.blk.0.ffn_down.weight", &square),
        ("mm.a.norm_pre.weight", &[WIDTH * TONE_ROWS]),
        ("mm.a.mlp.1.weight", &[WIDTH * TONE_ROWS, 2 * WIDTH]),
        ("mm.a.norm_mid.weight", &[WIDTH]),
        ("mm.a.mlp.2.weight", &[WIDTH, width]),
    ] {
        writer.tensor(name, TensorType::F32, dimensions)?;
    }
    write_numbers(writer, path, |tensor, at| number(tensor, at, &embeddings))
}

/// The number at an index of a tensor.
fn number(tensor: &Tensor, at: usize, embeddings: &[f32]) -> f32 {
    let (width, filters) = (WIDTH as usize, FILTERS as usize);
    let (row, column) = (at / tensor.row, at % tensor.row);
    let is = |condition| if condition { 1.0 } else { 0.0 };
    match tensor.name.as_str() {
        // Three frames for each filter and output, of which the middle one counts.
        "a.conv1d.1.weight" => {
            let (output, filter) = (row / filters, row % filters);
            let tone = output < CHARACTERS.len() && filter == FIRST_FILTER + DISTANCE * output;
            SLOPE * is(column == 1 && tone)
        }
        "a.conv1d.1.bias" => -SLOPE * THRESHOLD,
        "a.conv1d.2.weight" => is(column == 1 && row / width == row % width),
        "mm.a.norm_pre.weight" | "mm.a.norm_mid.weight" => 1.0,
        // Both inputs of the activation are the row in the middle.
        "mm.a.mlp.1.weight" => {
            let middle = width * TONE_ROWS as usize / 2;
            is(column == middle + row % width)
        }
        // A row for each number of an embedding, a column for each character. The norm makes one number of all to the square
        // root of their count.
        "mm.a.mlp.2.weight" => CHARACTERS.get(column).map_or(0.0, |token| {
            embeddings[usize::from(*token) * tensor.rows + row] / (width as f32).sqrt()
        }),
        _ => 0.0,
    }
}

/// The frequency of a character's tone in Hz: that of its mel filter. `None` for one without a tone.
pub fn frequency(character: u8) -> Option<f64> {
    let tone = CHARACTERS.iter().position(|other| *other == character)?;
    let filter = (FIRST_FILTER + DISTANCE * tone + 1) as f64;
    // Slaney's scale: linear below 1 kHz, of which it has 15, and logarithmic up to 8 kHz, half of Whisper's sample rate.
    let step = 6.4_f64.ln() / 27.0;
    let top = 15.0 + 8.0_f64.ln() / step;
    let mel = filter * top / (FILTERS + 1) as f64;
    Some(match mel < 15.0 {
        true => mel * 200.0 / 3.0,
        false => 1_000.0 * ((mel - 15.0) * step).exp(),
    })
}

/// The samples of a recording of these characters, from -1 to 1. Those without a tone are silent. `filler` is the character of
/// the tones before them; more than [`TONES`] characters take more half minutes. The last tone is a little shorter than the
/// others, since after whole half minutes llama.cpp adds a silent one.
pub fn recording(characters: &[u8], filler: u8, rate: u32) -> Vec<f32> {
    let tones = characters.len().max(1).next_multiple_of(TONES);
    let fillers = std::iter::repeat_n(filler, tones - characters.len());
    let length = (SECONDS * rate) as usize;
    let tones = fillers.chain(characters.iter().copied());
    let mut samples: Vec<f32> = tones
        .flat_map(|character| {
            let turns = frequency(character).unwrap_or(0.0) / f64::from(rate);
            (0..length).map(move |index| ((turns * index as f64 * 2.0 * PI).sin() * 0.5) as f32)
        })
        .collect();
    samples.truncate(samples.len() - length / 10);
    samples
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tones_are_heard_at_low_rates() {
        let frequencies: Vec<_> = CHARACTERS
            .iter()
            .map(|character| frequency(*character))
            .collect();
        assert!(frequencies.is_sorted(), "{frequencies:?}");
        assert!(
            frequencies[0] > Some(150.0) && frequencies[11] < Some(3_900.0),
            "{frequencies:?}"
        );
        assert_eq!(frequency(b'x'), None);
    }

    #[test]
    fn recordings_fill_half_minutes() {
        for (characters, milliseconds) in [(1, 29_700), (10, 29_700), (11, 59_700)] {
            let samples = recording(&vec![b'1'; characters], b'\n', 8_000);
            assert_eq!(samples.len(), milliseconds * 8);
        }
    }
}
