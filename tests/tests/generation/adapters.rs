//! A model with a LoRA adapter, over HTTP. `plus-one` adds one to each sum, so a request that gets the wrong
//! adapter, or cells computed with another one, gives a wrong sum.

use corral_tests::{Corral, artifacts, concurrently, distinct_sums};
use serde_json::{Value, json};

/// Starts a server whose model has the adapter.
fn with_adapter() -> Corral {
    let argument = format!("plus-one={}", artifacts::adapter().display());
    Corral::start_with(&["--adapter", &argument])
}

#[test]
fn sums_are_right_with_and_without_adapter() {
    let corral = with_adapter();
    let sums = distinct_sums(100);
    let work = sums.iter().flat_map(|sum| [(sum, false), (sum, true)]);
    concurrently(16, &Vec::from_iter(work), |&(sum, has_adapter)| {
        let adapter = has_adapter.then_some("plus-one");
        let request = json!({"prompt": sum.question(), "adapter": adapter});
        let right = sum.a + sum.b + u32::from(has_adapter);
        let answer = corral.generate(&request);
        assert_eq!(answer["text"], right.to_string(), "{sum:?}, {adapter:?}");
    });
    let metrics = corral.wait_until_idle();
    assert_eq!(metrics.get("corral_engine_requests_finished_total"), 200.0);
    assert!(metrics.get("corral_engine_adapter_switches_total") > 2.0);
    // They still shared steps.
    let rows = metrics.get("corral_engine_rows_total");
    let steps = metrics.get("corral_engine_steps_total");
    assert!(rows > steps * 1.2, "{rows} rows in {steps} steps");
}

#[test]
fn adapter_combines_with_constraint_and_stream() {
    let corral = with_adapter();
    let request = json!({
        "prompt": "45+54=", "adapter": "plus-one", "constraint": {"regex": "It is [0-9]{1,3}[.]"},
    });
    let constrained = corral.generate(&request);
    let text = constrained["text"].as_str().expect("a text");
    assert!(text.starts_with("It is ") && text.ends_with('.'), "{text}");
    let request = json!({"prompt": "45+54=", "adapter": "plus-one", "speculate": 8});
    let (texts, _) = corral.generate_stream(&request).texts();
    assert_eq!(texts.concat(), "100");
    assert_eq!(corral.text("45+54="), "99");
    corral.wait_until_idle();
}

#[test]
fn openai_selects_adapter_with_lora() {
    let argument = format!("plus-one={}", artifacts::adapter().display());
    let corral = Corral::start_with_routes(
        &[("/v1", "openai")],
        &["--adapter", &argument, "--error-format", "/v1=openai"],
    );
    let post = |lora: &Value| {
        let messages = json!([{"role": "user", "content": "45+54="}]);
        let completion = json!({"prompt": "45+54=", "temperature": 0, "lora": lora});
        let chat = json!({"messages": messages, "temperature": 0, "lora": lora});
        [
            corral.post("/v1/completions", completion.to_string()),
            corral.post("/v1/chat/completions", chat.to_string()),
        ]
    };
    for (scale, right) in [(json!(1), "100"), (json!(0), "99")] {
        let [completion, chat] = post(&json!([{"id": 0, "scale": scale}]));
        assert_eq!(completion.json()["choices"][0]["text"], right);
        assert_eq!(chat.json()["choices"][0]["message"]["content"], right);
    }
    for (entry, param, expected) in [
        (json!({"id": 0, "scale": 0.5}), "lora[0].scale", "0, or 1"),
        (json!({"id": 1, "scale": 1}), "lora", "plus-one"),
    ] {
        for answer in post(&json!([entry])) {
            assert_eq!(answer.status, 400, "{answer:?}");
            let error = &answer.json()["error"];
            assert_eq!(error["param"], param, "{error}");
            let text = error["message"].as_str().expect("a text");
            assert!(text.contains(expected), "{text}");
        }
    }
    corral.wait_until_idle();
}

#[test]
fn unknown_adapter_error_lists_adapters() {
    let ask = |corral: &Corral, adapter: Value| {
        let request = json!({"prompt": "1+1=", "adapter": adapter});
        corral.post("/generate", request.to_string())
    };
    let corral = with_adapter();
    for name in ["minus-one", "", "PLUS-ONE"] {
        let detail = ask(&corral, json!(name)).problem(404, "unknown-adapter");
        assert!(detail.contains(&format!("{name:?}")), "{detail}");
        let expected = "expected one of [\"plus-one\"]";
        assert!(detail.contains(expected), "{detail}");
    }
    corral.check_alive();
    corral.wait_until_idle();
    let without = Corral::start();
    let detail = ask(&without, json!("plus-one")).problem(404, "unknown-adapter");
    assert!(detail.contains("this model has none"), "{detail}");
}
