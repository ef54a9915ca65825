//! Images through the APIs of the plugins: the demo model sees with a projector that makes a picture a row of characters, so it
//! answers a sum that is drawn, and a wrong embedding, cell or cache entry shows as a wrong answer.

use corral_random_model::image_projector::SIDE;
use corral_tests::media::{answer, ask_about, check_only_same_file_is_cached};
use corral_tests::pictures::{drawn, drawn_sum, projector};
use corral_tests::{Corral, RELIABLE_SUMS, Response, artifacts, run, scratch_dir};
use data_encoding::{BASE64, HEXLOWER};
use image::ImageFormat;
use serde_json::{Value, json};

const ROUTES: [(&str, &str); 3] = [
    ("/v1", "openai"),
    ("/api", "ollama"),
    ("/blocking", "blocking"),
];
/// Positions of a picture.
const POSITIONS: u64 = (SIDE * SIDE) as u64;

fn start() -> Corral {
    Corral::start_with_routes(&ROUTES, &["--mmproj", projector()])
}

fn url(file: &[u8]) -> String {
    // The host looks at the bytes, not at the type.
    format!("data:image/png;base64,{}", BASE64.encode(file))
}

fn ask(corral: &Corral, file: &[u8]) -> Response {
    let image = json!({"type": "image_url", "image_url": {"url": url(file), "detail": "low"}});
    ask_about(corral, &image)
}

#[test]
fn pictures_are_read_through_every_api() {
    let corral = start();
    for sum in RELIABLE_SUMS {
        let file = drawn_sum(sum);
        let base64 = BASE64.encode(&file);
        assert_eq!(answer(&ask(&corral, &file)), sum.answer());

        let part = json!({"type": "input_image", "image_url": url(&file)});
        let content = json!([part, {"type": "input_text", "text": "="}]);
        let body = json!({"input": [{"role": "user", "content": content}], "temperature": 0});
        let response = corral.post("/v1/responses", body.to_string());
        let text = response.ok_json()["output"][0]["content"][0]["text"].clone();
        assert_eq!(text, sum.answer());

        let source = json!({"type": "base64", "media_type": "image/png", "data": base64});
        let content = json!([{"type": "image", "source": source}, {"type": "text", "text": "="}]);
        let body = json!({"model": "tiny", "max_tokens": 8, "temperature": 0,
            "messages": [{"role": "user", "content": content}]});
        let response = corral.post("/v1/messages", body.to_string());
        assert_eq!(response.ok_json()["content"][0]["text"], sum.answer());

        let message = json!({"role": "user", "content": "=", "images": [base64]});
        let options = json!({"temperature": 0});
        let body =
            json!({"model": "tiny", "stream": false, "messages": [message], "options": options});
        let response = corral.post("/api/chat", body.to_string());
        assert_eq!(response.ok_json()["message"]["content"], sum.answer());

        let body = json!({"model": "tiny", "stream": false, "prompt": "=", "images": [base64], "options": options});
        let response = corral.post("/api/generate", body.to_string());
        assert_eq!(response.ok_json()["response"], sum.answer());
    }
}

#[test]
fn blocking_guests_see_pictures() {
    let corral = start();
    for sum in RELIABLE_SUMS {
        let file = HEXLOWER.encode(&drawn_sum(sum));
        let answer = corral.post("/blocking/see", file);
        assert_eq!((answer.status, answer.body), (200, sum.answer()));
    }
    let refused = corral.post("/blocking/see", "00ff");
    refused.check_refused(400, "neither PNG");
}

#[test]
fn every_format_of_pictures_is_read() {
    let corral = start();
    for format in [
        ImageFormat::Png,
        ImageFormat::Jpeg,
        ImageFormat::Gif,
        ImageFormat::WebP,
    ] {
        let response = ask(&corral, &drawn("12+7", format));
        assert_eq!(answer(&response), "19", "{format:?}");
    }
}

#[test]
fn only_the_same_picture_is_cached() {
    let corral = start();
    check_only_same_file_is_cached(&corral, POSITIONS, |sum| ask(&corral, &drawn_sum(sum)));
}

#[test]
fn counted_tokens_include_pictures() {
    let corral = start();
    let count = |parts: Value| {
        let body = json!({"model": "tiny", "messages": [{"role": "user", "content": parts}]});
        let response = corral.post("/v1/messages/count_tokens", body.to_string());
        let tokens = response.ok_json()["input_tokens"].as_u64();
        tokens.expect("a number")
    };
    let text = json!({"type": "text", "text": "="});
    let data = BASE64.encode(&drawn_sum(RELIABLE_SUMS[0]));
    let source = json!({"type": "base64", "media_type": "image/png", "data": data});
    let image = json!({"type": "image", "source": source});
    let without = count(json!([text]));
    assert_eq!(count(json!([image, text])), without + POSITIONS);
    assert_eq!(count(json!([image, image, text])), without + 2 * POSITIONS);
}

#[test]
fn concurrent_pictures_are_right() {
    let corral = start();
    let wrong = corral.with_neighbors(|| {
        std::thread::scope(|scope| {
            for number in 0..8 {
                let corral = &corral;
                scope.spawn(move || {
                    for round in 0..5 {
                        let sum = RELIABLE_SUMS[(number + round) % RELIABLE_SUMS.len()];
                        assert_eq!(answer(&ask(corral, &drawn_sum(sum))), sum.answer());
                    }
                });
            }
        });
    });
    assert!(wrong > 0, "the neighbors answered meanwhile");
}

#[test]
fn broken_pictures_harm_no_other_request() {
    let corral = start();
    let formats = [
        ImageFormat::Png,
        ImageFormat::Jpeg,
        ImageFormat::Gif,
        ImageFormat::WebP,
    ];
    let answered = corral.with_neighbors(|| {
        for format in formats {
            let whole = drawn("12+7", format);
            let mut flipped = whole.clone();
            for at in (20..flipped.len()).step_by(7) {
                flipped[at] ^= 0x5a;
            }
            for file in [whole[..12].to_vec(), whole[..30].to_vec(), flipped] {
                let response = ask(&corral, &file);
                // A decoder may show what it has of a picture.
                if response.status != 200 {
                    assert_eq!(response.status, 400, "{format:?}: {response:?}");
                    let error = response.json()["error"].clone();
                    assert_eq!(error["code"], "invalid-image", "{error}");
                }
            }
            let refused = ask(&corral, &whole[..12]);
            assert_eq!(refused.status, 400, "{refused:?}");
        }
        for file in [
            &b"hello"[..],
            b"",
            b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        ] {
            assert_eq!(ask(&corral, file).status, 400);
        }
        // A few bytes that claim to be a picture of 16,777,216 by 16,777,216 pixels.
        let mut large = drawn("12+7", ImageFormat::Png);
        large[16..24].copy_from_slice(&[1, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(ask(&corral, &large).status, 400);
    });
    assert!(answered > 0, "the neighbors answered meanwhile");
    let found = answer(&ask(&corral, &drawn("12+7", ImageFormat::Png)));
    assert_eq!(found, "19");
}

#[test]
fn text_models_refuse_pictures() {
    let corral = Corral::start_with_routes(&ROUTES, &[]);
    let refused = ask(&corral, &drawn_sum(RELIABLE_SUMS[0]));
    refused.check_refused(400, "reads text only");
    let refused = corral.post(
        "/blocking/see",
        HEXLOWER.encode(&drawn_sum(RELIABLE_SUMS[0])),
    );
    assert!(refused.body.contains("--mmproj"), "{refused:?}");
    let models = corral.get("/v1/models").json();
    let inputs = models["data"][0]["architecture"]["input_modalities"].clone();
    assert_eq!(inputs, json!(["text"]));

    let seeing = start();
    let models = seeing.get("/v1/models").json();
    let inputs = models["data"][0]["architecture"]["input_modalities"].clone();
    assert_eq!(inputs, json!(["text", "image"]));
    let shown = seeing
        .post("/api/show", json!({"model": "tiny"}).to_string())
        .json();
    let capabilities = shown["capabilities"].as_array().expect("a list");
    assert!(capabilities.contains(&json!("vision")), "{shown}");
}

#[test]
fn too_many_pictures_are_refused() {
    let corral = start();
    let file = url(&drawn_sum(RELIABLE_SUMS[0]));
    let image = json!({"type": "image_url", "image_url": file});
    let mut parts = vec![image; 65];
    parts.push(json!({"type": "text", "text": "="}));
    let body = json!({"messages": [{"role": "user", "content": parts}]});
    let refused = corral.post("/v1/chat/completions", body.to_string());
    refused.check_refused(400, "65 images");
    assert!(refused.body.contains("at most 64"), "{refused:?}");
}

#[test]
fn broken_projectors_are_refused() {
    let dir = scratch_dir();
    let whole = std::fs::read(projector()).expect("it can be read");
    // Squares without pixels.
    let mut wrong = whole.clone();
    let key = b"clip.vision.patch_size";
    let at = wrong.windows(key.len()).position(|bytes| bytes == key);
    let at = at.expect("the key is there") + key.len() + 4;
    wrong[at..at + 4].copy_from_slice(&0_u32.to_le_bytes());
    for (name, bytes) in [
        ("cut.gguf", &whole[..whole.len() / 2]),
        ("text.gguf", b"hello"),
        ("wrong.gguf", &wrong),
    ] {
        std::fs::write(dir.join(name), bytes).expect("it can be written");
    }
    let names = ["cut.gguf", "text.gguf", "wrong.gguf", "missing.gguf"];
    let files = names.map(|name| dir.join(name)).into_iter();
    for file in files.chain([artifacts::model()]) {
        let name = file.file_name().expect("a name").to_str().expect("UTF-8");
        let output = run([
            "run",
            artifacts::plugin("generate").to_str().expect("UTF-8"),
            "--model",
            artifacts::model().to_str().expect("UTF-8"),
            "--mmproj",
            file.to_str().expect("UTF-8"),
            "--",
            "1+1=",
        ]);
        assert_eq!(output.code, Some(1), "{name}: {output:?}");
        assert!(output.stderr.contains(name), "{name}: {output:?}");
    }
}
