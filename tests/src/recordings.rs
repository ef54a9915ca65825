//! Recordings that the demo model hears: its audio projector makes a row of characters of them.

use crate::{Sum, artifacts, scratch_dir};
use corral_random_model::audio_projector::{recording, write_audio_projector};
use std::sync::LazyLock;

/// The demo model's audio projector, for `--mmproj`.
pub fn audio_projector() -> &'static str {
    static FILE: LazyLock<String> = LazyLock::new(|| {
        let file = scratch_dir().join("mmproj-audio.gguf");
        write_audio_projector(&artifacts::model(), &file).expect("the projector is written");
        file.to_str().expect("a path in UTF-8").to_owned()
    });
    &FILE
}

/// How the samples of a WAV file are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Samples {
    /// Integers of this many bits, at most 32.
    Integer(u16),
    /// Floating point numbers of 32 bits.
    Float,
}

/// A WAV file of two channels with a recording of a text.
pub fn recorded_as(text: &str, rate: u32, samples: Samples) -> Vec<u8> {
    let (code, bits) = match samples {
        Samples::Integer(bits) => (1_u16, bits),
        Samples::Float => (3, 32),
    };
    let bytes = |sample: f32| match samples {
        Samples::Float => sample.to_le_bytes().to_vec(),
        Samples::Integer(8) => vec![(sample * 127.0 + 128.0) as u8],
        Samples::Integer(bits) => {
            let all = (f64::from(sample) * f64::from(i32::MAX)) as i32;
            all.to_le_bytes()[4 - usize::from(bits / 8)..].to_vec()
        }
    };
    let tones = recording(text.as_bytes(), b'\n', rate);
    // The second channel is silent.
    let frames = tones
        .into_iter()
        .flat_map(|sample| [bytes(sample), bytes(0.0)]);
    wav(code, bits, 2, rate, &frames.flatten().collect::<Vec<_>>())
}

/// The sum without `=`, as a small WAV file of one channel.
pub fn recorded_sum(sum: Sum) -> Vec<u8> {
    recorded(sum.question().trim_end_matches('='))
}

/// A small WAV file of one channel with a recording of a text.
pub fn recorded(text: &str) -> Vec<u8> {
    let tones = recording(text.as_bytes(), b'\n', 8_000);
    let bytes = tones
        .into_iter()
        .map(|sample| (sample * 127.0 + 128.0) as u8);
    wav(1, 8, 1, 8_000, &bytes.collect::<Vec<_>>())
}

fn wav(code: u16, bits: u16, channels: u16, rate: u32, data: &[u8]) -> Vec<u8> {
    let frame = bits / 8 * channels;
    let length = u32::try_from(data.len()).expect("a small file");
    let mut file = b"RIFF".to_vec();
    file.extend((length + 36).to_le_bytes());
    file.extend(b"WAVEfmt \x10\0\0\0");
    for number in [code, channels] {
        file.extend(number.to_le_bytes());
    }
    for number in [rate, rate * u32::from(frame)] {
        file.extend(number.to_le_bytes());
    }
    for number in [frame, bits] {
        file.extend(number.to_le_bytes());
    }
    file.extend(b"data");
    file.extend(length.to_le_bytes());
    file.extend(data);
    file
}
