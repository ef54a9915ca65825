//! Reads WAV files, and resamples audio to the rate of an encoder.
//!
//! Samples are integers of 8 to 32 bits or floating point numbers. Channels are mixed to one.

use super::encoder::MAX_IMAGE_BYTES;
use std::f64::consts::PI;
use std::ops::RangeInclusive;

/// Bytes of the samples of a file: four for each of its own.
pub const MAX_BYTES: usize = 4 * MAX_IMAGE_BYTES;
/// Seconds of audio. A check of the projector encodes the longest and the shortest.
pub const SECONDS: RangeInclusive<f64> = 0.1..=120.0;
/// Samples per second.
const RATES: RangeInclusive<u32> = 1_000..=192_000;
const MAX_CHANNELS: u16 = 8;
/// Many encoders take half a minute at once, and the rest alone.
const WINDOW_SECONDS: usize = 30;
/// A writer that does not know the length of the samples, since it writes to a pipe, states this one or a larger one.
const UNKNOWN_LENGTH: u32 = 0x7fff_0000;
/// Bytes that name a format in an extended description, after those of the usual one.
const EXTENDED: u16 = 0xfffe;
/// Zero crossings of the resampling filter on each side.
const ZERO_CROSSINGS: f64 = 16.0;

/// Audio of one channel.
#[derive(Debug, PartialEq)]
pub struct Audio {
    /// Samples per second.
    pub rate: u32,
    /// From -1 to 1.
    pub samples: Vec<f32>,
}

/// Whether a file begins as a WAV file.
pub fn is_wav(file: &[u8]) -> bool {
    file.starts_with(b"RIFF") && file.get(8..12) == Some(b"WAVE")
}

/// Decodes a WAV file.
///
/// # Errors
/// What is wrong with it.
pub fn decode(file: &[u8]) -> Result<Audio, String> {
    if !is_wav(file) {
        return Err("the audio is no WAV file; convert it to WAV".into());
    }
    read(file).map_err(|what| format!("the audio is no valid WAV file: {what}"))
}

/// Rate and samples of a WAV file, decoded in this process, for tests.
///
/// # Errors
/// What is wrong with the file.
pub fn decode_audio(file: &[u8]) -> Result<(u32, Vec<f32>), String> {
    let audio = decode(file)?;
    Ok((audio.rate, audio.samples))
}

fn read(file: &[u8]) -> Result<Audio, String> {
    let damaged = |what: &str| format!("{what}; send an undamaged file");
    let mut format = None;
    let mut rest = file.get(12..).unwrap_or_default();
    loop {
        let Some((head, after)) = rest.split_at_checked(8) else {
            return Err(damaged("it ends before its samples"));
        };
        let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        let samples_to_end = head.starts_with(b"data") && length >= UNKNOWN_LENGTH;
        let length = match samples_to_end {
            true => after.len(),
            false => usize::try_from(length).unwrap_or(usize::MAX),
        };
        let Some(chunk) = after.get(..length) else {
            let name = head[..4].escape_ascii();
            let missing = length - after.len();
            return Err(damaged(&format!(
                "{missing} bytes of its part \"{name}\" are missing"
            )));
        };
        match &head[..4] {
            b"fmt " => format = Some(Format::read(chunk)?),
            b"data" => {
                let format = format.ok_or_else(|| damaged("its samples have no format"))?;
                return format.audio(chunk);
            }
            _ => {}
        }
        // Parts begin at even places.
        rest = after.get(length + length % 2..).unwrap_or_default();
    }
}

/// How samples are written.
struct Format {
    channels: u16,
    rate: u32,
    sample: Sample,
}

#[derive(Clone, Copy)]
enum Sample {
    /// An integer with this many bytes; one byte has no sign.
    Integer(usize),
    /// A floating point number with this many bytes.
    Float(usize),
}

impl Format {
    fn read(chunk: &[u8]) -> Result<Self, String> {
        let number = |at: usize| {
            let bytes = chunk.get(at..at + 2)?;
            Some(u16::from_le_bytes([bytes[0], bytes[1]]))
        };
        let numbers = || {
            let rate = u32::from(number(4)?) | u32::from(number(6)?) << 16;
            Some((number(0)?, number(2)?, rate, number(12)?, number(14)?))
        };
        let (mut code, channels, rate, frame, bits) = numbers()
            .ok_or("the description of its samples is incomplete; send an undamaged file")?;
        if code == EXTENDED {
            code = number(24).unwrap_or(EXTENDED);
        }
        let sample = match (code, bits) {
            (1, 8 | 16 | 24 | 32) => Sample::Integer(usize::from(bits / 8)),
            (3, 32 | 64) => Sample::Float(usize::from(bits / 8)),
            _ => {
                return Err(format!(
                    "its samples have {bits} bits in the format {code}; expected PCM of 8, 16, 24 or 32 bits (format 1) or \
                     floating point of 32 or 64 (format 3)"
                ));
            }
        };
        if !RATES.contains(&rate) {
            let (start, end) = RATES.into_inner();
            return Err(format!(
                "it has {rate} samples per second; expected {start} to {end}"
            ));
        }
        if !(1..=MAX_CHANNELS).contains(&channels) {
            return Err(format!(
                "it has {channels} channels; expected 1 to {MAX_CHANNELS}"
            ));
        }
        // Writers of other sizes differ in where the bits of a sample lie.
        let expected = bits / 8 * channels;
        if frame != expected {
            return Err(format!(
                "{channels} samples of {bits} bits take {frame} bytes; expected {expected}; convert it to samples of 16 bits"
            ));
        }
        Ok(Self {
            channels,
            rate,
            sample,
        })
    }

    fn audio(&self, data: &[u8]) -> Result<Audio, String> {
        let (Sample::Integer(size) | Sample::Float(size)) = self.sample;
        let frames = data.chunks_exact(size * usize::from(self.channels));
        let seconds = frames.len() as f64 / f64::from(self.rate);
        if !SECONDS.contains(&seconds) {
            let (start, end) = SECONDS.into_inner();
            return Err(format!(
                "it takes {seconds:.3} s; expected {start} to {end} s"
            ));
        }
        let channels = f32::from(self.channels);
        let mix = |frame: &[u8]| {
            let samples = frame
                .chunks_exact(size)
                .map(|bytes| self.sample.value(bytes));
            samples.sum::<f32>() / channels
        };
        let samples: Vec<f32> = frames.map(mix).collect();
        if !samples.iter().all(|sample| sample.is_finite()) {
            return Err("some of its samples are not finite; send an undamaged file".into());
        }
        Ok(Audio {
            rate: self.rate,
            samples: samples
                .into_iter()
                .map(|sample| sample.clamp(-1.0, 1.0))
                .collect(),
        })
    }
}

impl Sample {
    /// The value of a sample, where the largest integer is about 1.
    fn value(self, bytes: &[u8]) -> f32 {
        match (self, bytes) {
            (Self::Integer(_), &[byte]) => (f32::from(byte) - 128.0) / 128.0,
            // The bytes of an integer are the upper ones of four.
            (Self::Integer(size), bytes) => {
                let mut four = [0; 4];
                four[4 - size..].copy_from_slice(bytes);
                i32::from_le_bytes(four) as f32 / 2_f32.powi(31)
            }
            (Self::Float(_), &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
            (Self::Float(_), bytes) => {
                let eight = bytes.try_into().unwrap_or_default();
                f64::from_le_bytes(eight) as f32
            }
        }
    }
}

impl Audio {
    /// Whether its rate, length and samples are within the limits of files.
    pub fn is_valid(&self) -> bool {
        let seconds = self.samples.len() as f64 / f64::from(self.rate);
        let is_in_range = |sample: &f32| sample.abs() <= 1.0;
        RATES.contains(&self.rate)
            && SECONDS.contains(&seconds)
            && self.samples.iter().all(is_in_range)
    }

    /// The samples at another rate, through a low-pass filter: a sinc with a Hann window.
    pub fn resampled(self, rate: u32) -> Vec<f32> {
        if rate == self.rate {
            return self.samples;
        }
        let (from, to) = (u64::from(self.rate), u64::from(rate.max(1)));
        let divisor = greatest_common_divisor(from, to);
        // Frequencies above half of the lower rate are cut off.
        let stretch = (from as f64 / to as f64).max(1.0);
        let reach = (ZERO_CROSSINGS * stretch).ceil() as usize;
        // New samples lie at this many different distances from the old ones.
        let phases = to / divisor;
        let filters: Vec<Vec<f32>> = (0..phases)
            .map(|phase| filter(phase as f64 / phases as f64, reach, stretch))
            .collect();
        let silence = vec![0.0; reach];
        let padded = [&silence[..], &self.samples, &silence].concat();
        let length = self.samples.len() as u64 * to / from;
        let sample = |index: u64| {
            let position = index * from;
            // The filter begins `reach - 1` samples before the position, so one after it with the padding.
            let start = (position / to) as usize + 1;
            let filter = &filters[(position % to / divisor) as usize];
            let samples = padded.get(start..).unwrap_or_default();
            let products = samples
                .iter()
                .zip(filter)
                .map(|(sample, weight)| sample * weight);
            products.sum::<f32>()
        };
        (0..length).map(sample).collect()
    }
}

/// Lengthens the rest after whole half minutes with silence to the shortest audio, which a check encodes too: llama.cpp fails
/// on a rest of one sample for Gemma 4's encoder.
pub fn pad_rest(samples: &mut Vec<f32>, rate: u32) {
    let window = WINDOW_SECONDS * (rate as usize).max(1);
    let shortest = (SECONDS.start() * f64::from(rate)).ceil() as usize;
    let rest = samples.len() % window;
    if (1..shortest).contains(&rest) {
        samples.resize(samples.len() - rest + shortest, 0.0);
    }
}

/// Weights of the samples around a place between two of them, from the one `reach - 1` before to the one `reach` after it.
fn filter(fraction: f64, reach: usize, stretch: f64) -> Vec<f32> {
    let weights = (0..2 * reach).map(|index| {
        let distance = (index as f64 + 1.0 - reach as f64 - fraction) / stretch;
        if distance.abs() >= ZERO_CROSSINGS {
            return 0.0;
        }
        let window = 0.5 + 0.5 * (PI * distance / ZERO_CROSSINGS).cos();
        let sinc = match distance == 0.0 {
            true => 1.0,
            false => (PI * distance).sin() / (PI * distance),
        };
        (sinc * window / stretch) as f32
    });
    weights.collect()
}

fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// A tone of this many seconds as a WAV file, to check an encoder.
pub fn test_audio(seconds: f64) -> Vec<u8> {
    let rate = 16_000;
    let length = (seconds * f64::from(rate)) as u32;
    let tone = (0..length).map(|index| {
        let phase = 440.0 * 2.0 * PI * f64::from(index) / f64::from(rate);
        (phase.sin() * 10_000.0) as i16
    });
    wav(
        1,
        16,
        1,
        rate,
        &tone.flat_map(i16::to_le_bytes).collect::<Vec<_>>(),
    )
}

fn wav(code: u16, bits: u16, channels: u16, rate: u32, data: &[u8]) -> Vec<u8> {
    let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
    let frame = bits / 8 * channels;
    [
        &b"RIFF"[..],
        &length.saturating_add(36).to_le_bytes(),
        b"WAVEfmt ",
        &16_u32.to_le_bytes(),
        &code.to_le_bytes(),
        &channels.to_le_bytes(),
        &rate.to_le_bytes(),
        &rate.saturating_mul(frame.into()).to_le_bytes(),
        &frame.to_le_bytes(),
        &bits.to_le_bytes(),
        b"data",
        &length.to_le_bytes(),
        data,
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: u32 = 1_000;

    /// A file of 200 samples of one value.
    fn constant(code: u16, bits: u16, sample: &[u8]) -> Vec<u8> {
        wav(code, bits, 1, RATE, &sample.repeat(200))
    }

    fn refused(file: &[u8], why: &str) {
        let error = decode(file).unwrap_err();
        assert!(error.contains(why), "{error}");
    }

    #[test]
    fn every_type_of_sample_is_read() {
        for (code, bits, sample) in [
            (1, 8, &[192][..]),
            (1, 16, &i16::to_le_bytes(1 << 14)),
            (1, 24, &[0, 0, 64]),
            (1, 32, &i32::to_le_bytes(1 << 30)),
            (3, 32, &f32::to_le_bytes(0.5)),
            (3, 64, &f64::to_le_bytes(0.5)),
        ] {
            let audio = decode(&constant(code, bits, sample)).unwrap();
            let expected = Audio {
                rate: RATE,
                samples: vec![0.5; 200],
            };
            assert_eq!(audio, expected, "{bits} bits in the format {code}");
        }
        let loud = decode(&constant(3, 32, &f32::to_le_bytes(-7.0))).unwrap();
        assert_eq!(loud.samples[0], -1.0);
    }

    #[test]
    fn channels_are_mixed() {
        let frame = [i16::to_le_bytes(1 << 14), i16::to_le_bytes(-(1 << 13))].concat();
        let audio = decode(&wav(1, 16, 2, RATE, &frame.repeat(150))).unwrap();
        assert_eq!(audio.samples, vec![0.125; 150]);
    }

    #[test]
    fn other_parts_and_streams_are_read() {
        let plain = constant(1, 8, &[192]);
        let expected = decode(&plain).unwrap();
        // A part of odd length before the samples.
        let (head, data) = plain.split_at(36);
        let note = [head, b"LIST\x03\0\0\0abc\0", data].concat();
        assert_eq!(decode(&note), Ok(expected));
        let mut stream = plain.clone();
        stream[40..44].fill(0xff);
        assert_eq!(decode(&stream).unwrap().samples.len(), 200);
        // An extended description.
        let mut extended = [
            &plain[..36],
            &[22, 0, 8, 0, 4, 0, 0, 0, 1, 0],
            &[0; 14],
            data,
        ]
        .concat();
        extended[16] = 40;
        extended[20..22].copy_from_slice(&EXTENDED.to_le_bytes());
        assert_eq!(decode(&extended).unwrap().samples, [0.5; 200]);
    }

    #[test]
    fn damaged_files_are_refused() {
        let whole = constant(1, 16, &[0, 0]);
        for length in 0..whole.len() {
            assert!(decode(&whole[..length]).is_err(), "{length}");
        }
        refused(b"RIFF\0\0\0\0WAVE", "ends before its samples");
        refused(&whole[..400], "bytes of its part \"data\" are missing");
        refused(&[&whole[..12], &whole[36..]].concat(), "have no format");
        refused(b"ID3\x04", "convert it to WAV");
        refused(&constant(3, 32, &f32::to_le_bytes(f32::NAN)), "not finite");
        refused(&constant(1, 12, &[0, 0]), "12 bits in the format 1");
        refused(&constant(2, 16, &[0, 0]), "in the format 2");
        refused(&wav(1, 8, 0, RATE, &[0; 200]), "0 channels");
        refused(&wav(1, 8, 1, 0, &[0; 200]), "0 samples per second");
    }

    #[test]
    fn frames_of_other_sizes_are_refused() {
        // 24 bits in four bytes.
        let mut wide = wav(1, 24, 2, RATE, &[0; 1_600]);
        wide[32] = 8;
        refused(&wide, "2 samples of 24 bits take 8 bytes; expected 6");
    }

    #[test]
    fn short_rest_is_padded() {
        for (length, padded) in [
            (1, 100),
            (100, 100),
            (30_000, 30_000),
            (30_001, 30_100),
            (60_099, 60_100),
            (60_101, 60_101),
        ] {
            let mut samples = vec![0.5; length];
            pad_rest(&mut samples, RATE);
            assert_eq!(samples.len(), padded, "{length}");
            assert_eq!(
                samples.iter().filter(|sample| **sample > 0.0).count(),
                length
            );
        }
    }

    #[test]
    fn short_and_long_audio_is_refused() {
        refused(&wav(1, 8, 1, RATE, &[128; 99]), "it takes 0.099 s");
        refused(
            &wav(1, 8, 1, RATE, &[128; 120_001]),
            "it takes 120.001 s; expected 0.1 to 120 s",
        );
        for length in [100, 120_000] {
            assert!(decode(&wav(1, 8, 1, RATE, &vec![128; length])).is_ok());
        }
    }

    #[test]
    fn resampling_keeps_tones() {
        let tone = |rate: u32, length: u32| {
            let samples = (0..length).map(|index| {
                let time = f64::from(index) / f64::from(rate);
                (2.0 * PI * 300.0 * time).sin() as f32
            });
            samples.collect::<Vec<_>>()
        };
        for (from, to) in [
            (8_000, 16_000),
            (44_100, 16_000),
            (48_000, 16_000),
            (16_001, 24_000),
        ] {
            let audio = Audio {
                rate: from,
                samples: tone(from, from),
            };
            let samples = audio.resampled(to);
            assert_eq!(samples.len(), to as usize, "{from}");
            let expected = tone(to, to);
            // Not where the filter reaches beyond the ends.
            let inner = 200..samples.len() - 200;
            let mut pairs = samples[inner.clone()].iter().zip(&expected[inner]);
            assert!(pairs.all(|(a, b)| (a - b).abs() < 0.01), "{from} to {to}");
        }
    }

    #[test]
    fn resampling_cuts_off_high_tones() {
        let tone = (0..48_000)
            .map(|index| (2.0 * PI * 11_000.0 * f64::from(index) / 48_000.0).sin() as f32);
        let audio = Audio {
            rate: 48_000,
            samples: tone.collect(),
        };
        let samples = audio.resampled(16_000);
        let inner = &samples[200..samples.len() - 200];
        assert!(inner.iter().all(|sample| sample.abs() < 0.01));
    }
}
