//! Pictures that the demo model reads: its projector makes a row of characters of them.

use crate::{Sum, artifacts, scratch_dir};
use corral_random_model::image_projector::{PATCH, SIDE, picture, write_projector};
use image::{DynamicImage, GrayImage, ImageFormat};
use std::io::Cursor;
use std::sync::LazyLock;

/// The demo model's projector, for `--mmproj`.
pub fn projector() -> &'static str {
    static FILE: LazyLock<String> = LazyLock::new(|| {
        let file = scratch_dir().join("mmproj.gguf");
        write_projector(&artifacts::model(), &file).expect("the projector is written");
        file.to_str().expect("a path in UTF-8").to_owned()
    });
    &FILE
}

/// A picture of a text, as a file.
pub fn drawn(text: &str, format: ImageFormat) -> Vec<u8> {
    let side = SIDE * PATCH;
    let pixels = picture(text.as_bytes(), b'\n');
    let image = GrayImage::from_raw(side, side, pixels).expect("all pixels");
    let mut file = Cursor::new(Vec::new());
    let image = DynamicImage::from(image).into_rgb8();
    image.write_to(&mut file, format).expect("in memory");
    file.into_inner()
}

/// The sum without `=`, as a PNG.
pub fn drawn_sum(sum: Sum) -> Vec<u8> {
    drawn(sum.question().trim_end_matches('='), ImageFormat::Png)
}
