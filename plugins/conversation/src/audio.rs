//! Audio of a request: WAV files in base64. The host tells them from pictures by their first bytes, so they stand among the
//! [images](crate::images).

use corral_sdk::Error;
use corral_sdk::fields::Fields;
use corral_sdk::template::ChatImage;
use serde_json::Value;

use crate::images::FileKind;

/// The types of content parts that are audio: OpenAI's, and vLLM's.
pub const PART_TYPES: [&str; 2] = ["input_audio", "audio_url"];

const AUDIO: FileKind = FileKind {
    code: "invalid-audio",
    media_type: "audio/wav",
};

/// Reads a part of one of [`PART_TYPES`] and returns the text that stands for it.
pub fn read_part(part: &mut Fields, kind: &str) -> Result<String, Error> {
    let path = part.path(kind);
    let (path, text) = match part.required(kind, "audio")? {
        Value::String(url) if kind == "audio_url" => (path, url),
        value => {
            let member = match kind {
                "audio_url" => "url",
                _ => "data",
            };
            let mut fields = Fields::at(path, value)?;
            // The file itself tells its format.
            fields.take("format");
            let text = fields.required_text(member)?;
            fields.ignore_unknown(&[])?;
            (fields.path(member), text)
        }
    };
    let file = match kind {
        "audio_url" => AUDIO.of_url(&path, &text)?,
        _ => AUDIO.of_base64(&path, &text)?,
    };
    let audio = ChatImage::new(file);
    if !audio.is_audio() {
        return Err(AUDIO.error(&path, "is no WAV file; convert the audio to WAV"));
    }
    Ok(crate::images::add(audio))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images;
    use crate::message::text;
    use corral_sdk::testing::check_field_errors;
    use serde_json::json;

    /// `RIFF1234WAVE` in base64.
    const FILE: &str = "UklGRjEyMzRXQVZF";

    #[test]
    fn audio_is_read_from_every_form() {
        images::take();
        let url = format!("data:audio/wav;base64,{FILE}");
        for part in [
            json!({"type": "input_audio", "input_audio": {"data": FILE, "format": "wav"}}),
            json!({"type": "input_audio", "input_audio": {"data": url}}),
            json!({"type": "audio_url", "audio_url": {"url": url}}),
            json!({"type": "audio_url", "audio_url": url, "cache_control": {}}),
        ] {
            let content = json!([{"type": "text", "text": "a"}, part, "b"]);
            let kinds = [&["text"], &PART_TYPES[..]].concat();
            let text = text("content", content, &kinds).unwrap();
            let audio = images::take();
            assert_eq!(text, format!("a{}b", audio[0].marker()), "{part}");
            assert_eq!(audio[0].file(), b"RIFF1234WAVE", "{part}");
        }
    }

    #[test]
    fn wrong_audio_names_its_field() {
        let table = r#"
{"type": "input_audio"} => content[0].input_audio: is missing
{"type": "input_audio", "input_audio": "aGk="} => content[0].input_audio: an object
{"type": "input_audio", "input_audio": {}} => content[0].input_audio.data: is missing
{"type": "input_audio", "input_audio": {"data": "?"}} => content[0].input_audio.data: not valid base64
{"type": "input_audio", "input_audio": {"data": "SUQzBA==", "format": "mp3"}} => content[0].input_audio.data: convert the audio to WAV
{"type": "audio_url", "audio_url": {"url": "https://example.org/a.wav"}} => content[0].audio_url.url: fetches no files; expected a data URL, `data:audio/wav
{"type": "audio_url", "audio_url": "data:audio/wav,hi"} => content[0].audio_url: no data URL
"#;
        check_field_errors(table, |part| text("content", json!([part]), &PART_TYPES));
    }
}
