//! Images and audio in the APIs.

use corral_sdk::Error;
use corral_sdk::testing::{HostCall, Script};
use serde_json::{Value, json};

use super::{TEMPLATE, assert_error, post};

const URL: &str = "data:image/png;base64,Y2F0";

fn script() -> Script {
    Script::new()
        .accepts_images()
        .chat_template(TEMPLATE)
        .answers(
            "user\na[image of 3 bytes]b<|im_end|>\n<|im_start|>assistant\n",
            "A cat.",
        )
}

fn body(field: &str, content: Value) -> Value {
    json!({field: [{"role": "user", "content": content}], "model": "script", "max_tokens": 8})
}

/// Path, body and where the answer is, for each API.
fn requests() -> [(&'static str, Value, &'static str); 3] {
    let text = |text: &str| json!({"type": "text", "text": text});
    let input = |text: &str| json!({"type": "input_text", "text": text});
    let chat = json!({"type": "image_url", "image_url": {"url": URL}});
    let responses = json!({"type": "input_image", "image_url": URL});
    let source = json!({"type": "base64", "media_type": "image/png", "data": "Y2F0"});
    let messages = json!({"type": "image", "source": source});
    let mut of_responses = body("input", json!([input("a"), responses, input("b")]));
    of_responses["max_tokens"].take();
    [
        (
            "/v1/chat/completions",
            body("messages", json!([text("a"), chat, text("b")])),
            "/choices/0/message/content",
        ),
        ("/v1/responses", of_responses, "/output/0/content/0/text"),
        (
            "/v1/messages",
            body("messages", json!([text("a"), messages, text("b")])),
            "/content/0/text",
        ),
    ]
}

#[test]
fn images_stand_where_the_message_has_them() {
    for (path, body, answer) in requests() {
        let script = script();
        let (status, found) = post(&script, path, &body);
        assert_eq!(status, 200, "{path}: {found}");
        assert_eq!(found.pointer(answer), Some(&"A cat.".into()), "{path}");
        let image = HostCall::AppendImage(b"cat".to_vec());
        assert!(script.calls().contains(&image), "{path}");
    }
}

#[test]
fn text_models_refuse_images() {
    let script = Script::new().chat_template(TEMPLATE);
    for (path, body, _) in requests() {
        let (status, found) = post(&script, path, &body);
        assert_eq!(status, 400, "{path}: {found}");
        let text = found["error"]["message"].as_str().unwrap_or_default();
        assert!(text.contains("reads text only"), "{path}: {text}");
    }
}

#[test]
fn damaged_images_are_bad_requests() {
    for (path, body, _) in requests() {
        let damaged = Error::Invalid("the image is no valid Png".to_owned());
        let script = script().fails("append-image", damaged);
        let (status, found) = post(&script, path, &body);
        assert_eq!(status, 400, "{path}: {found}");
        let text = found["error"]["message"].as_str().unwrap_or_default();
        assert!(text.contains("no valid Png"), "{path}: {text}");
    }
    let [(path, mut body, _), ..] = requests();
    body["messages"][0]["content"][1]["image_url"]["url"] = "http://a/b.png".into();
    assert_error(&script(), path, &body, (400, "code", "unsupported"));
}

#[test]
fn counted_and_shown_prompts_have_images() {
    let [(_, body, _), ..] = requests();
    let script = script();
    let (status, found) = post(&script, "/apply-template", &body);
    assert_eq!(status, 200, "{found}");
    let prompt = "<|im_start|>user\na[image]b<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(found["prompt"], prompt);
    let (status, found) = post(&script, "/v1/chat/completions/input_tokens", &body);
    assert_eq!(status, 200, "{found}");
    let text = prompt.replace("[image]", "[image of 3 bytes]");
    let names = 3;
    let length = text.len() - 2 * "<|im_start|>".len() - "<|im_end|>".len() + names;
    assert_eq!(found["input_tokens"], length);
}

/// `RIFF1234WAVE` in base64.
const WAV: &str = "UklGRjEyMzRXQVZF";

/// Requests with audio, for the APIs that have it.
fn audio_requests() -> [(&'static str, Value, &'static str); 2] {
    let [chat, responses, _] = requests();
    let audio = json!({"type": "input_audio", "input_audio": {"data": WAV, "format": "wav"}});
    [(chat, "messages"), (responses, "input")].map(|((path, mut body, answer), field)| {
        body[field][0]["content"][1] = audio.clone();
        (path, body, answer)
    })
}

#[test]
fn audio_stands_where_the_message_has_it() {
    for (path, body, answer) in audio_requests() {
        let prompt = "user\na[audio of 12 bytes]b<|im_end|>\n<|im_start|>assistant\n";
        let script = Script::new().accepts_audio().chat_template(TEMPLATE);
        let script = script.answers(prompt, "A bark.");
        let (status, found) = post(&script, path, &body);
        assert_eq!(status, 200, "{path}: {found}");
        assert_eq!(found.pointer(answer), Some(&"A bark.".into()), "{path}");
        let audio = HostCall::AppendImage(b"RIFF1234WAVE".to_vec());
        assert!(script.calls().contains(&audio), "{path}");
    }
    let [(_, body, _), _] = audio_requests();
    let script = Script::new().accepts_audio().chat_template(TEMPLATE);
    let (_, found) = post(&script, "/apply-template", &body);
    let prompt = "<|im_start|>user\na[audio]b<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(found["prompt"], prompt);
}

#[test]
fn other_models_refuse_audio() {
    for (path, body, _) in audio_requests() {
        for (script, reads) in [
            (Script::new(), "reads text only"),
            (Script::new().accepts_images(), "reads text and images"),
        ] {
            let (status, found) = post(&script.chat_template(TEMPLATE), path, &body);
            assert_eq!(status, 400, "{path}: {found}");
            let text = found["error"]["message"].as_str().unwrap_or_default();
            assert!(text.contains(reads), "{path}: {text}");
            assert!(text.contains("accepts audio"), "{path}: {text}");
        }
    }
}

#[test]
fn damaged_audio_is_a_bad_request() {
    for (path, body, _) in audio_requests() {
        let damaged = Error::Invalid("the audio is no valid WAV file".to_owned());
        let script = Script::new().accepts_audio().chat_template(TEMPLATE);
        let script = script.fails("append-image", damaged);
        assert_error(&script, path, &body, (400, "code", "invalid-audio"));
    }
}
