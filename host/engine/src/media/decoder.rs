//! Decodes files of pictures and audio in a child process: only a process can be stopped, and its limits on memory and time hold
//! for every file. llama.cpp's own decoders, in C, never see a file.

use super::audio::{self, Audio};
use super::picture::{self, Picture};
use crate::Error;
use corral_isolation::{Cancel, ChildError, ChildJob, ChildProcesses, Job, JobLimits};
use std::time::Duration;

/// Name of the job.
pub const DECODE_MEDIA_JOB: &str = "decode-media";
/// Limits of the child. A picture of the largest size takes about a second.
const LIMITS: JobLimits = JobLimits {
    memory: 768 << 20,
    time: Duration::from_secs(20),
    cpu: Duration::from_secs(20),
    file_size: 0,
    output: HEADER + MAX_CONTENTS,
    niceness: 5,
};
/// Bytes of the two numbers before the contents in the output of the job.
const HEADER: usize = 8;
/// Bytes of pixels or samples.
const MAX_CONTENTS: usize = if picture::MAX_BYTES > audio::MAX_BYTES {
    picture::MAX_BYTES
} else {
    audio::MAX_BYTES
};

/// What a file holds.
#[derive(Debug, PartialEq)]
pub enum Media {
    Picture(Picture),
    Audio(Audio),
}

/// Decodes files in a child process, or without one in this process.
pub struct MediaDecoder {
    pub children: Option<ChildProcesses>,
}

impl MediaDecoder {
    /// Decodes a file. Blocks.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the file is at fault, [`Error::ShuttingDown`] once it is canceled.
    pub fn decode(&self, file: &[u8], cancel: &Cancel) -> Result<Media, Error> {
        let Some(children) = &self.children else {
            return decode(file).map_err(Error::Invalid);
        };
        let job = Job {
            kind: DECODE_MEDIA_JOB,
            input: file,
            readable: &[],
            writable: None,
            limits: LIMITS,
        };
        let what = match audio::is_wav(file) {
            true => "audio",
            false => "image",
        };
        match children.run_until(&job, cancel) {
            Ok(output) => Media::from_output(output)
                .ok_or_else(|| Error::Failed(format!("the {what} decoder's output is incomplete"))),
            Err(ChildError::Failed(text)) => Err(Error::Invalid(text)),
            Err(error) if error.is_final() => Err(Error::Invalid(format!(
                "the {what} cannot be decoded: {error}; send a smaller or undamaged file"
            ))),
            Err(ChildError::Canceled) => Err(Error::ShuttingDown),
            Err(ChildError::Busy) => Err(Error::Overloaded {
                reason: "too many files are being decoded".into(),
                retry_after: Duration::from_secs(1),
            }),
            Err(error) => Err(Error::Failed(format!(
                "the {what} cannot be decoded: {error}"
            ))),
        }
    }
}

impl Media {
    /// Reads the output of the job. A picture begins with its width and height; audio with its rate and a zero.
    fn from_output(mut output: Vec<u8>) -> Option<Self> {
        let (head, contents) = output.split_at_checked(HEADER)?;
        let (first, second) = head.split_at(4);
        let first = u32::from_le_bytes(first.try_into().ok()?);
        let height = u32::from_le_bytes(second.try_into().ok()?);
        if height == 0 {
            let (samples, rest) = contents.as_chunks::<4>();
            let samples = samples.iter().map(|sample| f32::from_le_bytes(*sample));
            let audio = Audio {
                rate: first,
                samples: samples.collect(),
            };
            // Bounds the work of resampling, whatever the child wrote.
            let is_whole = rest.is_empty() && audio.is_valid();
            return is_whole.then_some(Self::Audio(audio));
        }
        if u64::from(first) * u64::from(height) * 3 != contents.len() as u64 {
            return None;
        }
        output.drain(..HEADER);
        Some(Self::Picture(Picture {
            width: first,
            height,
            pixels: output,
        }))
    }

    fn into_output(self) -> Vec<u8> {
        let (numbers, contents) = match self {
            Self::Picture(picture) => ([picture.width, picture.height], picture.pixels),
            Self::Audio(audio) => {
                let samples = audio.samples.iter();
                (
                    [audio.rate, 0],
                    samples.flat_map(|sample| sample.to_le_bytes()).collect(),
                )
            }
        };
        let mut output = Vec::with_capacity(HEADER + contents.len());
        output.extend(numbers.into_iter().flat_map(u32::to_le_bytes));
        output.extend(contents);
        output
    }
}

/// Decodes a file in a child process.
///
/// # Errors
/// What is wrong with the file.
pub fn decode_media_job(job: ChildJob) -> Result<Vec<u8>, String> {
    decode(&job.input).map(Media::into_output)
}

fn decode(file: &[u8]) -> Result<Media, String> {
    match audio::is_wav(file) {
        true => audio::decode(file).map(Media::Audio),
        false => picture::decode(file).map(Media::Picture),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::audio::test_audio;
    use crate::media::picture::test_picture;

    #[test]
    fn media_survive_the_pipe() {
        for file in [test_picture(5, 4), test_audio(0.5)] {
            let media = decode(&file).unwrap();
            let same = decode(&file).unwrap();
            assert_eq!(Media::from_output(media.into_output()), Some(same));
        }
        for short in [
            vec![],
            vec![1; 8],
            vec![0; 7],
            vec![1, 0, 0, 0, 0, 0, 0, 0, 9],
        ] {
            assert_eq!(Media::from_output(short), None);
        }
        let mut fast = decode(&test_audio(0.5)).unwrap().into_output();
        fast[3] = 0xff;
        assert_eq!(Media::from_output(fast), None);
    }
}
