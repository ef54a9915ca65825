//! Pictures and audio in sequences: decodes a file, encodes its contents, and keeps their embeddings. In names, *image* means
//! a picture or audio, as in the WIT.
//!
//! - [`decoder`] decodes files in a child process: [`picture`] those of pictures, [`audio`] WAV.
//! - [`encoder`] is a thread that does this and encodes, one file after another, so that no step waits for either.
//! - [`store`] gives each position of an image a token that stands for its embedding, and caches images.
//!
//! From then on an image is tokens: the scheduler, the prefix cache and swapping treat its positions as any others, and a
//! prefix with an image matches the same image only. The backend computes the embedding that a token stands for.
//!
//! An image is known by its tenant and the SHA-256 of its file.

pub(crate) mod audio;
pub(crate) mod decoder;
mod encoder;
pub(crate) mod estimate;
pub(crate) mod picture;
mod snapshot_images;
mod store;

pub use encoder::{ImageEncoder, MAX_IMAGE_BYTES};
pub use snapshot_images::{SavedImages, save_images};
pub use store::{Image, ImageKey, ImageStore};
