//! Images in a snapshot: their embeddings, so that a sequence can be computed again where its state is lost.
//!
//! All numbers are little-endian. The number of images (u32) and the SHA-256 of the projector come first. For each image follow the
//! position of its first token (u32), the SHA-256 of its file, and the number of its parts (u32); for each part its kind (u32), 0
//! for tokens and 1 for embeddings, how many numbers it has (u32), and the numbers, of four bytes each.

use super::Image;
use corral_llama::ImagePart;
use std::sync::Arc;

/// Kinds of parts.
const TOKENS: u32 = 0;
const EMBEDDINGS: u32 = 1;

/// The images of a snapshot.
#[derive(Debug, PartialEq)]
pub struct SavedImages {
    /// SHA-256 of the projector file that encoded them.
    pub projector: [u8; 32],
    pub images: Vec<SavedImage>,
}

#[derive(Debug, PartialEq)]
pub struct SavedImage {
    /// Position of its first token.
    pub start: usize,
    /// SHA-256 of its file.
    pub digest: [u8; 32],
    pub parts: Vec<ImagePart>,
}

/// Writes images, each with the position of its first token.
pub fn save_images(images: &[(usize, Arc<Image>)], projector: [u8; 32]) -> Vec<u8> {
    let images = images.iter().map(|(start, image)| SavedImage {
        start: *start,
        digest: image.digest(),
        parts: image.parts().collect(),
    });
    let saved = SavedImages {
        projector,
        images: images.collect(),
    };
    saved.encode()
}

fn length(count: usize) -> [u8; 4] {
    u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes()
}

impl SavedImages {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(length(self.images.len()));
        bytes.extend(self.projector);
        for image in &self.images {
            bytes.extend(length(image.start));
            bytes.extend(image.digest);
            bytes.extend(length(image.parts.len()));
            for part in &image.parts {
                match part {
                    ImagePart::Tokens(tokens) => {
                        bytes.extend(TOKENS.to_le_bytes());
                        bytes.extend(length(tokens.len()));
                        bytes.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
                    }
                    ImagePart::Embeddings(numbers) => {
                        bytes.extend(EMBEDDINGS.to_le_bytes());
                        bytes.extend(length(numbers.len()));
                        bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
                    }
                }
            }
        }
        bytes
    }

    /// Takes images off the front of `bytes`.
    pub fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let count = number(bytes)?;
        let projector = array(bytes)?;
        let mut images = Vec::new();
        for _ in 0..count {
            let start = number(bytes)? as usize;
            let digest = array(bytes)?;
            let parts = number(bytes)?;
            let parts = (0..parts).map(|_| part(bytes)).collect::<Option<_>>()?;
            images.push(SavedImage {
                start,
                digest,
                parts,
            });
        }
        Some(Self { projector, images })
    }
}

fn part(bytes: &mut &[u8]) -> Option<ImagePart> {
    let kind = number(bytes)?;
    let count = number(bytes)? as usize;
    let (numbers, rest) = bytes.split_at_checked(count.checked_mul(4)?)?;
    *bytes = rest;
    let (numbers, _) = numbers.as_chunks::<4>();
    match kind {
        TOKENS => {
            let tokens = numbers.iter().map(|bytes| u32::from_le_bytes(*bytes));
            Some(ImagePart::Tokens(tokens.collect()))
        }
        EMBEDDINGS => {
            let numbers = numbers.iter().map(|bytes| f32::from_le_bytes(*bytes));
            Some(ImagePart::Embeddings(numbers.collect()))
        }
        _ => None,
    }
}

fn array<const BYTES: usize>(bytes: &mut &[u8]) -> Option<[u8; BYTES]> {
    let (array, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*array)
}

fn number(bytes: &mut &[u8]) -> Option<u32> {
    array(bytes).map(u32::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saved_images_round_trip() {
        let image = |start, digest| SavedImage {
            start,
            digest: [digest; 32],
            parts: vec![
                ImagePart::Tokens(vec![1, 7]),
                ImagePart::Embeddings(vec![0.5, -2.0, 3.25]),
                ImagePart::Tokens(vec![]),
            ],
        };
        let saved = SavedImages {
            projector: [9; 32],
            images: vec![image(0, 1), image(70, 2)],
        };
        let bytes = saved.encode();
        let longer = [bytes.as_slice(), b"rest"].concat();
        let mut rest = longer.as_slice();
        assert_eq!(SavedImages::decode(&mut rest), Some(saved));
        assert_eq!(rest, b"rest");
        for cut in 0..bytes.len() {
            assert_eq!(SavedImages::decode(&mut &bytes[..cut]), None, "{cut}");
        }
        // Counts that the bytes cannot hold allocate nothing.
        let huge = [&[0xff; 4][..], &bytes[4..]].concat();
        assert_eq!(SavedImages::decode(&mut huge.as_slice()), None);
    }
}
