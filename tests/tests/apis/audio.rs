//! Audio through the APIs of the plugins: the demo model hears with a projector that makes a recording a row of characters, so it
//! answers a sum that is played as tones, and a wrong embedding, cell or cache entry shows as a wrong answer.

use corral_random_model::audio_projector::TONES;
use corral_tests::media::{answer, ask_about, check_only_same_file_is_cached};
use corral_tests::pictures::{drawn_sum, projector};
use corral_tests::recordings::{Samples, audio_projector, recorded, recorded_as, recorded_sum};
use corral_tests::{Corral, RELIABLE_SUMS, Response, run};
use data_encoding::{BASE64, HEXLOWER};
use serde_json::{Value, json};

const ROUTES: [(&str, &str); 2] = [("/", "openai"), ("/blocking", "blocking")];
/// Positions of half a minute.
const POSITIONS: u64 = TONES as u64;

fn start(projector: &str) -> Corral {
    Corral::start_with_routes(&ROUTES, &["--mmproj", projector])
}

/// A part of a chat with a file, of the format that the request names.
fn audio(file: &[u8], format: &str) -> Value {
    let data = BASE64.encode(file);
    json!({"type": "input_audio", "input_audio": {"data": data, "format": format}})
}

fn ask(corral: &Corral, file: &[u8]) -> Response {
    ask_about(corral, &audio(file, "wav"))
}

#[test]
fn recordings_are_heard_through_the_apis() {
    let corral = start(audio_projector());
    for sum in RELIABLE_SUMS {
        let file = recorded_sum(sum);
        assert_eq!(answer(&ask(&corral, &file)), sum.answer());

        let url = format!("data:audio/wav;base64,{}", BASE64.encode(&file));
        let part = json!({"type": "audio_url", "audio_url": {"url": url}});
        assert_eq!(answer(&ask_about(&corral, &part)), sum.answer());

        let text = json!({"type": "input_text", "text": "="});
        let content = json!([audio(&file, "wav"), text]);
        let body = json!({"input": [{"role": "user", "content": content}], "temperature": 0});
        let response = corral.post("/v1/responses", body.to_string());
        let text = response.ok_json()["output"][0]["content"][0]["text"].clone();
        assert_eq!(text, sum.answer());

        let answer = corral.post("/blocking/see", HEXLOWER.encode(&file));
        assert_eq!((answer.status, answer.body), (200, sum.answer()));
    }
}

#[test]
fn every_rate_and_type_of_sample_is_heard() {
    let corral = start(audio_projector());
    for (rate, samples) in [
        (8_000, Samples::Integer(8)),
        (16_000, Samples::Integer(16)),
        (11_025, Samples::Integer(24)),
        (9_600, Samples::Integer(32)),
        (44_100, Samples::Integer(8)),
        (12_000, Samples::Float),
    ] {
        let response = ask(&corral, &recorded_as("12+7", rate, samples));
        assert_eq!(answer(&response), "19", "{samples:?} at {rate}");
    }
    // Longer than what the encoder takes at once.
    let response = ask(&corral, &recorded("3\n14\n15\n92\n12+7"));
    assert_eq!(answer(&response), "19");
    let tokens = response.json()["usage"]["prompt_tokens"].as_u64();
    assert!(tokens > Some(2 * POSITIONS), "{response:?}");
}

#[test]
fn only_the_same_recording_is_cached() {
    let corral = start(audio_projector());
    check_only_same_file_is_cached(&corral, POSITIONS, |sum| ask(&corral, &recorded_sum(sum)));
}

#[test]
fn broken_recordings_harm_no_other_request() {
    let corral = start(audio_projector());
    let whole = recorded("12+7");
    let mut huge = whole.clone();
    // A rate of 16,777,216 Hz.
    huge[24..28].copy_from_slice(&[0, 0, 0, 1]);
    let mut flipped = whole[..60_000].to_vec();
    for at in (12..flipped.len()).step_by(7) {
        flipped[at] ^= 0x5a;
    }
    let cut = &whole[..whole.len() / 2];
    let answered = corral.with_neighbors(|| {
        for file in [&whole[..12], &whole[..30], cut, &huge, &flipped] {
            let refused = ask(&corral, file);
            assert_eq!(refused.status, 400, "{refused:?}");
            let error = refused.json()["error"].clone();
            assert_eq!(error["code"], "invalid-audio", "{error}");
        }
        for file in [&b"hello"[..], b"", b"ID3\x04", b"RIFF"] {
            let refused = ask(&corral, file);
            refused.check_refused(400, "convert the audio to WAV");
        }
    });
    assert!(answered > 0, "the neighbors answered meanwhile");
    assert_eq!(answer(&ask(&corral, &whole)), "19");
}

#[test]
fn models_refuse_what_they_cannot_hear() {
    let sum = RELIABLE_SUMS[0];
    let inputs = |corral: &Corral| {
        let props = corral.get("/props").json();
        let models = corral.get("/v1/models").json();
        let inputs = models["data"][0]["architecture"]["input_modalities"].clone();
        (props["modalities"].clone(), inputs)
    };
    let text = Corral::start_with_routes(&ROUTES, &[]);
    let seeing = start(projector());
    for (corral, reads) in [
        (&text, "reads text only"),
        (&seeing, "reads text and images"),
    ] {
        let refused = ask(corral, &recorded_sum(sum));
        refused.check_refused(400, reads);
        let refused = corral.post("/blocking/see", HEXLOWER.encode(&recorded_sum(sum)));
        refused.check_refused(400, "audio");
        assert_eq!(inputs(corral).0["audio"], false);
    }

    let hearing = start(audio_projector());
    let url = format!("data:image/png;base64,{}", BASE64.encode(&drawn_sum(sum)));
    let image = json!({"type": "image_url", "image_url": url});
    let refused = ask_about(&hearing, &image);
    refused.check_refused(400, "reads text and audio");
    let modalities = json!({"vision": false, "audio": true});
    assert_eq!(inputs(&hearing), (modalities, json!(["text", "audio"])));
    let refused = hearing.post("/blocking/see", HEXLOWER.encode(&drawn_sum(sum)));
    refused.check_refused(400, "no vision encoder");
}

#[test]
fn model_info_names_encoders() {
    for (projector, encodes) in [(projector(), "images"), (audio_projector(), "audio")] {
        let output = run(["model", "info", projector]).check_success();
        let row = output
            .stdout
            .lines()
            .find(|line| line.starts_with("encodes"));
        assert!(row.is_some_and(|row| row.ends_with(encodes)), "{output:?}");
        let output = run(["model", "info", projector, "--json"]);
        let facts: Value = serde_json::from_str(&output.stdout).expect("JSON");
        assert_eq!(facts["encodes"], json!([encodes]));
    }
}
