//! Decodes the files of pictures: PNG, JPEG, GIF (its first frame) and WebP. The decoders are Rust, with limits on size and memory.

use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits};
use std::io::Cursor;

/// Pixels of a picture. Vision models see a few million at most.
const MAX_PIXELS: u64 = 1 << 24;
/// Width and height of a picture.
const MAX_SIDE: u32 = 1 << 14;
/// Width of a picture in heights, or the other way round. llama.cpp would scale a strip to nothing.
const MAX_RATIO: u32 = 64;
/// Memory of a decoder: at most eight bytes for each pixel, and the result.
const DECODER_MEMORY: u64 = 256 << 20;
/// Bytes of the pixels of a picture.
pub const MAX_BYTES: usize = 3 * MAX_PIXELS as usize;

/// Pixels of three bytes: red, green and blue.
#[derive(Debug, PartialEq, Eq)]
pub struct Picture {
    pub width: u32,
    pub height: u32,
    pub pixels: Vec<u8>,
}

/// Width, height and pixels of a picture, decoded in this process, for tests.
///
/// # Errors
/// What is wrong with the file.
pub fn decode_picture(file: &[u8]) -> Result<(u32, u32, Vec<u8>), String> {
    let picture = decode(file)?;
    Ok((picture.width, picture.height, picture.pixels))
}

/// Decodes a file.
///
/// # Errors
/// What is wrong with it.
pub fn decode(file: &[u8]) -> Result<Picture, String> {
    let format = image::guess_format(file).ok();
    let supported = [
        ImageFormat::Png,
        ImageFormat::Jpeg,
        ImageFormat::Gif,
        ImageFormat::WebP,
    ];
    let format = format.filter(|format| supported.contains(format));
    let format =
        format.ok_or("the image is neither PNG, JPEG, GIF nor WebP; convert it to one of them")?;
    let damaged = |error: image::ImageError| {
        format!("the image is no valid {format:?} or too large: {error}; send an undamaged file")
    };
    let mut reader = ImageReader::with_format(Cursor::new(file), format);
    let mut limits = Limits::default();
    limits.max_image_width = Some(MAX_SIDE);
    limits.max_image_height = Some(MAX_SIDE);
    limits.max_alloc = Some(DECODER_MEMORY);
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(damaged)?;
    let (width, height) = decoder.dimensions();
    check_size(width, height)?;
    // A picture without an orientation is upright.
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let mut image = DynamicImage::from_decoder(decoder).map_err(damaged)?;
    image.apply_orientation(orientation);
    Ok(Picture {
        width: image.width(),
        height: image.height(),
        pixels: on_white(image),
    })
}

fn check_size(width: u32, height: u32) -> Result<(), String> {
    let (long, short) = (width.max(height), width.min(height));
    if short == 0 || long / short > MAX_RATIO {
        return Err(format!(
            "the image has {width} by {height} pixels; the longer side may be at most {MAX_RATIO} times the other: crop it"
        ));
    }
    if u64::from(width) * u64::from(height) > MAX_PIXELS {
        return Err(format!(
            "the image has {width} by {height} pixels; it may have {MAX_PIXELS}: scale it down"
        ));
    }
    Ok(())
}

/// The pixels, on a white ground where they are transparent.
fn on_white(image: DynamicImage) -> Vec<u8> {
    if !image.color().has_alpha() {
        return image.into_rgb8().into_raw();
    }
    let image = image.into_rgba8();
    let pixels = image.pixels().flat_map(|pixel| {
        let [colors @ .., alpha] = pixel.0;
        let alpha = u32::from(alpha);
        let blend = move |color: u8| (u32::from(color) * alpha + 255 * (255 - alpha) + 127) / 255;
        colors.map(|color| u8::try_from(blend(color)).unwrap_or(u8::MAX))
    });
    pixels.collect()
}

/// A picture with a different color at each pixel, as a PNG, to check an encoder.
pub fn test_picture(width: u32, height: u32) -> Vec<u8> {
    let image = image::RgbImage::from_fn(width, height, |x, y| {
        let shade = |value: u32, of: u32| u8::try_from(value * 255 / of.max(1)).unwrap_or(u8::MAX);
        image::Rgb([
            shade(x, width),
            shade(y, height),
            shade(x + y, width + height),
        ])
    });
    let mut file = Cursor::new(Vec::new());
    // Writing to memory does not fail.
    let _ = image.write_to(&mut file, ImageFormat::Png);
    file.into_inner()
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::{GrayImage, Luma, Rgba, RgbaImage};

    fn file(image: impl Into<DynamicImage>, format: ImageFormat) -> Vec<u8> {
        let mut file = Cursor::new(Vec::new());
        let image = match format {
            ImageFormat::Jpeg => image.into().into_rgb8().into(),
            _ => image.into(),
        };
        image.write_to(&mut file, format).unwrap();
        file.into_inner()
    }

    const FORMATS: [ImageFormat; 4] = [
        ImageFormat::Png,
        ImageFormat::Jpeg,
        ImageFormat::Gif,
        ImageFormat::WebP,
    ];

    #[test]
    fn every_format_yields_its_pixels() {
        let half = RgbaImage::from_fn(16, 8, |x, _| Rgba([if x < 8 { 255 } else { 0 }; 4]));
        for format in FORMATS {
            let picture = decode(&file(half.clone(), format)).unwrap();
            assert_eq!((picture.width, picture.height), (16, 8), "{format:?}");
            assert_eq!(picture.pixels.len(), 16 * 8 * 3, "{format:?}");
            assert!(picture.pixels[0] > 250, "{format:?}");
            // Transparent is white; a JPEG has no transparency.
            let right = picture.pixels[3 * 12];
            assert_eq!(
                right > 250,
                format != ImageFormat::Jpeg,
                "{format:?}: {right}"
            );
        }
        let picture = decode(&file(
            GrayImage::from_pixel(3, 2, Luma([7])),
            ImageFormat::Png,
        ));
        assert_eq!(picture.unwrap().pixels, [7; 18]);
    }

    #[test]
    fn damaged_and_foreign_files_are_refused() {
        for format in FORMATS {
            let whole = file(
                RgbaImage::from_fn(64, 64, |x, y| Rgba([x as u8, y as u8, 3, 255])),
                format,
            );
            for length in [0, 1, 8, 20, whole.len() / 2] {
                // Some decoders show what they have of a picture.
                let Ok(picture) = decode(&whole[..length]) else {
                    continue;
                };
                assert_eq!((picture.width, picture.height), (64, 64));
                assert!(length > 20, "{format:?} of {length} bytes");
            }
        }
        for text in [&b"BM1234567890"[..], b"<svg/>", b"hello", b"II*\0aaaa"] {
            let error = decode(text).unwrap_err();
            assert!(error.contains("neither PNG"), "{error}");
        }
    }

    #[test]
    fn strips_and_large_pictures_are_refused() {
        let strip = GrayImage::new(65, 1);
        let error = decode(&file(strip, ImageFormat::Png)).unwrap_err();
        assert!(error.contains("crop it"), "{error}");
        assert!(decode(&file(GrayImage::new(64, 1), ImageFormat::Png)).is_ok());
        let large = GrayImage::new(4097, 4096);
        let error = decode(&file(large, ImageFormat::Png)).unwrap_err();
        assert!(error.contains("scale it down"), "{error}");
        let wide = GrayImage::new(MAX_SIDE + 1, 300);
        assert!(decode(&file(wide, ImageFormat::Png)).is_err());
    }
}
