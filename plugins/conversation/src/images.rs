//! Images of a request, as files in base64. The server fetches none.
//!
//! The readers of messages put an image's marker into the text and the image into a list of this thread, since an instance of a
//! plugin serves one request. [`ChatRequest`](crate::ChatRequest) takes the list.

use std::cell::RefCell;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use corral_sdk::Error;
use corral_sdk::fields::{Fields, out_of_range, wrong_type};
use corral_sdk::template::ChatImage;
use serde_json::Value;

use crate::unsupported;

/// The types of content parts that are images, in all APIs.
pub const PART_TYPES: [&str; 3] = ["image_url", "input_image", "image"];

thread_local! {
    static IMAGES: RefCell<Vec<ChatImage>> = const { RefCell::new(Vec::new()) };
}

/// With or without padding, as clients send it.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The images of the messages that were read since the last call.
pub fn take() -> Vec<ChatImage> {
    IMAGES.take()
}

/// Adds an image to those of the request and returns the text that stands for it.
pub(crate) fn add(image: ChatImage) -> String {
    let marker = image.marker().to_owned();
    IMAGES.with_borrow_mut(|images| images.push(image));
    marker
}

/// What a file is, for errors.
pub(crate) struct FileKind {
    pub code: &'static str,
    pub media_type: &'static str,
}

const IMAGE: FileKind = FileKind {
    code: "invalid-image",
    media_type: "image/png",
};

impl FileKind {
    /// The bytes of a file in base64. Some clients send a data URL where base64 is expected.
    pub fn of_base64(&self, path: &str, text: &str) -> Result<Vec<u8>, Error> {
        let data = match text.strip_prefix("data:") {
            Some(url) => self.data_of_url(path, url)?,
            None => text,
        };
        BASE64
            .decode(data.trim_ascii())
            .map_err(|error| self.error(path, &format!("is not valid base64: {error}")))
    }

    /// The bytes of a file in a data URL.
    pub fn of_url(&self, path: &str, url: &str) -> Result<Vec<u8>, Error> {
        if url.starts_with("data:") {
            return self.of_base64(path, url);
        }
        let why = format!(
            "this server fetches no files; expected a data URL, `data:{};base64,...`",
            self.media_type
        );
        Err(unsupported(path, &why))
    }

    /// The base64 of a data URL, after `data:`.
    fn data_of_url<'a>(&self, path: &str, url: &'a str) -> Result<&'a str, Error> {
        let parts = url.split_once(',');
        let data = parts.and_then(|(head, data)| head.ends_with(";base64").then_some(data));
        data.ok_or_else(|| {
            let expected = format!("`data:{};base64,...`", self.media_type);
            self.error(
                path,
                &format!("is no data URL in base64; expected {expected}"),
            )
        })
    }

    pub fn error(&self, path: &str, what: &str) -> Error {
        Error::bad_request(self.code, format!("`{path}` {what}")).with_field(path)
    }
}

/// Reads an image in base64 and returns the text that stands for it.
pub fn read_base64(path: &str, text: &str) -> Result<String, Error> {
    Ok(add(ChatImage::new(IMAGE.of_base64(path, text)?)))
}

/// Reads the image of a data URL.
fn read_url(path: &str, url: &str) -> Result<String, Error> {
    Ok(add(ChatImage::new(IMAGE.of_url(path, url)?)))
}

/// Reads a part of one of [`PART_TYPES`] and returns the text that stands for it.
pub fn read_part(part: &mut Fields, kind: &str) -> Result<String, Error> {
    let member = match kind {
        "image" => "source",
        _ => "image_url",
    };
    let path = part.path(member);
    if part.take("file_id").is_some() {
        let why = "this server stores no files; expected a data URL in `image_url`";
        return Err(unsupported(&part.path("file_id"), why));
    }
    // The host scales every picture as its model needs it.
    part.take("detail");
    match part.required(member, "an image")? {
        Value::String(url) => read_url(&path, &url),
        value @ Value::Object(_) => {
            let mut fields = Fields::at(path, value)?;
            fields.take("detail");
            read_source(&mut fields, kind)
        }
        other => Err(wrong_type(&path, "a data URL or an object", &other)),
    }
}

fn read_source(fields: &mut Fields, kind: &str) -> Result<String, Error> {
    if kind != "image" {
        let url = fields.required_text("url")?;
        fields.ignore_unknown(&["url"])?;
        return read_url(&fields.path("url"), &url);
    }
    let of = fields.required_text("type")?;
    match of.as_str() {
        "base64" => {
            // The file itself tells its format.
            fields.take("media_type");
            let data = fields.required_text("data")?;
            fields.ignore_unknown(&["type", "data"])?;
            read_base64(&fields.path("data"), &data)
        }
        "url" => {
            let url = fields.required_text("url")?;
            fields.ignore_unknown(&["type", "url"])?;
            read_url(&fields.path("url"), &url)
        }
        _ => {
            let path = fields.path("type");
            Err(out_of_range(&path, &of.into(), "\"base64\""))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::text;
    use corral_sdk::testing::check_field_errors;
    use serde_json::json;

    fn files() -> Vec<Vec<u8>> {
        let images = take();
        images.iter().map(|image| image.file().to_vec()).collect()
    }

    #[test]
    fn images_are_read_from_every_form() {
        take();
        let url = "data:image/png;base64,aGk=";
        for part in [
            json!({"type": "image_url", "image_url": {"url": url, "detail": "low"}}),
            json!({"type": "image_url", "image_url": url}),
            json!({"type": "input_image", "image_url": url, "detail": "auto", "file_id": null}),
            json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk"}}),
            json!({"type": "image", "source": {"type": "url", "url": url}, "cache_control": {}}),
        ] {
            let content = json!([{"type": "text", "text": "a"}, part, "b"]);
            let kinds = [&["text"], &PART_TYPES[..]].concat();
            let text = text("content", content, &kinds).unwrap();
            let images = take();
            assert_eq!(text, format!("a{}b", images[0].marker()), "{part}");
            assert_eq!(images[0].file(), b"hi", "{part}");
        }
        read_base64("images[0]", "aGk=").unwrap();
        assert_eq!(files(), [b"hi"]);
        assert!(files().is_empty());
    }

    #[test]
    fn wrong_images_name_their_field() {
        let table = r#"
{"type": "image_url"} => content[0].image_url: is missing
{"type": "image_url", "image_url": 1} => content[0].image_url: a number
{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}} => content[0].image_url.url: fetches no files
{"type": "image_url", "image_url": {"url": "data:image/png,hi"}} => content[0].image_url.url: no data URL
{"type": "image_url", "image_url": {"url": "data:image/png;base64,?"}} => content[0].image_url.url: not valid base64
{"type": "input_image", "file_id": "file-1"} => content[0].file_id: stores no files
{"type": "image", "source": {"type": "file", "file_id": "1"}} => content[0].source.type: "base64"
{"type": "image", "source": {"type": "base64", "data": "?"}} => content[0].source.data: not valid base64
"#;
        check_field_errors(table, |part| text("content", json!([part]), &PART_TYPES));
    }
}
