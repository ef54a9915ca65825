//! The whole server gives right answers: sequentially, concurrently, in every form.

use corral_tests::{Corral, Sum, concurrently, distinct_sums};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Mutex;

#[test]
fn repeated_request_gives_same_answer() {
    let corral = Corral::start();
    // The request of the README.
    let request = r#"{"prompt":"1+1=","max_tokens":10}"#;
    for time in 1..=20 {
        let answer = corral.post("/generate", request);
        assert_eq!(answer.status, 200, "time {time}: {answer:?}");
        let answer = answer.json();
        assert_eq!(answer["text"], "2", "time {time}: {answer}");
        assert_eq!(answer["finish_reason"], "end", "time {time}: {answer}");
        // "2" and the end of the text.
        assert_eq!(answer["tokens"], 2, "time {time}: {answer}");
        assert_eq!(answer["prompt_tokens"], 4, "time {time}: {answer}");
        assert_eq!(answer["model"], "tiny");
        assert!(answer["tokens_per_second"].as_f64() > Some(0.0), "{answer}");
    }
    corral.wait_until_idle();
}

#[test]
fn concurrent_answers_equal_sequential_ones() {
    let corral = Corral::start();
    let sums = distinct_sums(200);
    let alone = sums.iter().map(|sum| (*sum, corral.text(&sum.question())));
    let alone: HashMap<Sum, String> = alone.collect();
    let before = corral.wait_until_idle();
    let together = Mutex::new(HashMap::new());
    concurrently(16, &sums, |sum| {
        let answer = corral.text(&sum.question());
        together
            .lock()
            .expect("no panic while held")
            .insert(*sum, answer);
    });
    let together = together.into_inner().expect("no panic while held");
    assert_eq!(together.len(), 200);
    for sum in &sums {
        assert_eq!(together[sum], alone[sum], "{sum:?} concurrently and alone");
        assert_eq!(alone[sum], sum.answer(), "{sum:?}");
    }
    // Requests share steps: 16 at once take far fewer steps than one after the other.
    let after = corral.wait_until_idle();
    let count = |name: &str| after.growth(&format!("corral_engine_{name}_total"), &before);
    let (rows, steps) = (count("rows"), count("steps"));
    assert!(rows > steps * 1.2, "{rows} rows in {steps} steps");
}

#[test]
fn every_task_is_answered_as_prompt_and_chat() {
    let corral = Corral::start();
    for (question, answer) in [
        ("12+7", "19"),
        ("What is 12+7?", "19"),
        ("Compute 3-8.", "-5"),
        ("reverse: table", "elbat"),
        ("repeat: Blue owls, 7!", "Blue owls, 7!"),
        ("Ada is 36 years old", r#"{"name":"Ada","age":36}"#),
    ] {
        assert_eq!(corral.chat(question), answer, "chat: {question}");
        let plain = corral.text(&format!("{question}\n"));
        assert_eq!(plain, answer, "plain: {question}");
    }
}

fn calculator() -> Value {
    json!({
        "type": "function",
        "function": {
            "name": "calculator",
            "description": "Evaluates an arithmetic expression",
            "parameters": {
                "type": "object",
                "properties": {"expression": {"type": "string"}},
                "required": ["expression"],
            },
        },
    })
}

#[test]
fn model_calls_offered_tool() {
    let corral = Corral::start();
    let mut messages = vec![json!({"role": "user", "content": "What is 12+7?"})];
    let ask = |messages: &[Value]| {
        let request = json!({"messages": messages, "tools": [calculator()], "max_tokens": 100});
        corral.generate(&request)["text"].clone()
    };
    assert_eq!(
        ask(&messages),
        "<tool_call>\n{\"name\": \"calculator\", \"arguments\": {\"expression\": \"12+7\"}}\n</tool_call>"
    );
    // A wrong result, so that the model cannot have computed it.
    messages.push(json!({
        "role": "assistant",
        "tool_calls": [{
            "type": "function",
            "function": {"name": "calculator", "arguments": {"expression": "12+7"}},
        }],
    }));
    messages.push(json!({"role": "tool", "content": "4711"}));
    assert_eq!(ask(&messages), "4711");
}

#[test]
fn question_is_answered_at_any_position() {
    let corral = Corral::start();
    let line = "The quiet owl looks at the river and the stone. ";
    for length in [100, 500, 511, 512, 513, 1024, 2000, 3500] {
        let before: String = line.chars().cycle().take(length).collect();
        let answer = corral.text(&format!("{before}\n12+7="));
        assert_eq!(answer, "19", "after {length} characters");
    }
    // Chunks of long prompts share steps with short ones.
    std::thread::scope(|scope| {
        for length in [3000, 3100, 3200] {
            let before: String = line.chars().cycle().take(length).collect();
            let corral = &corral;
            scope.spawn(move || {
                assert_eq!(corral.text(&format!("{before}\n20+22=")), "42");
            });
        }
        corral.check_sums(30);
    });
    corral.wait_until_idle();
}

#[test]
fn stream_joins_to_whole_text() {
    // Cell positions affect close choices, and 300 random tokens contain some, so the cache is emptied.
    let corral = Corral::start_with(&["--no-prefix-cache"]);
    for request in [
        json!({"prompt": "1+1="}),
        json!({"prompt": "repeat: Blue owls, 7!\n"}),
        json!({"messages": [{"role": "user", "content": "Ada is 36 years old"}]}),
        json!({"prompt": "repeat: Blue owls, 7!\n", "stop": "owls"}),
        json!({"prompt": "1+1=", "ignore_eos": true, "max_tokens": 300}),
        json!({"prompt": "x", "ignore_eos": true, "max_tokens": 300, "temperature": 3.0, "seed": 5}),
    ] {
        let whole = corral.generate(&request);
        let stream = corral.generate_stream(&request);
        let header = |name: &str| {
            let found = stream.headers.iter().find(|(header, _)| header == name);
            found.map(|(_, value)| value.clone())
        };
        assert_eq!(header("content-type").as_deref(), Some("text/event-stream"));
        assert!(header("x-request-id").is_some());
        let (texts, report) = stream.texts();
        assert_eq!(whole["text"], texts.concat(), "{request}");
        for member in ["tokens", "prompt_tokens", "finish_reason", "model"] {
            assert_eq!(whole[member], report[member], "{member} of {request}");
        }
        if whole["tokens"] == 300 {
            // A busy machine delivers many tokens at once.
            assert!(texts.len() > 1, "one event for 300 tokens");
        }
    }
}

#[test]
fn stop_string_ends_text_before_it() {
    let corral = Corral::start();
    let question = "repeat: Blue owls, 7!\n";
    for (stop, text) in [
        (json!("owls"), "Blue "),
        (json!("B"), ""),
        (json!(["nothing", "ls,", "7!"]), "Blue ow"),
        (json!("!"), "Blue owls, 7"),
    ] {
        let request = json!({"prompt": question, "stop": stop});
        let answer = corral.generate(&request);
        assert_eq!(answer["text"], text, "stop {stop}");
        assert_eq!(answer["finish_reason"], "stop", "stop {stop}");
        let (texts, report) = corral.generate_stream(&request).texts();
        assert_eq!(texts.concat(), text, "stop {stop}, streamed");
        assert_eq!(report["finish_reason"], "stop");
    }
    // Text held back for a possible stop string is delivered.
    for stop in ["owls!", "7!!", "Blue owls, 7!x"] {
        let answer = corral.generate(&json!({"prompt": question, "stop": stop}));
        assert_eq!(answer["text"], "Blue owls, 7!", "stop {stop}");
        assert_eq!(answer["finish_reason"], "end", "stop {stop}");
    }
}

#[test]
fn max_tokens_bounds_generation() {
    let corral = Corral::start();
    for (max_tokens, text) in [(1, "B"), (4, "Blue"), (13, "Blue owls, 7!")] {
        let request = json!({"prompt": "repeat: Blue owls, 7!\n", "max_tokens": max_tokens});
        let answer = corral.generate(&request);
        assert_eq!(answer["text"], text);
        assert_eq!(answer["tokens"], max_tokens);
        assert_eq!(answer["finish_reason"], "length");
    }
    let request = json!({"prompt": "1+1=", "ignore_eos": true, "max_tokens": 50});
    let answer = corral.generate(&request);
    assert_eq!(answer["tokens"], 50);
    assert_eq!(answer["finish_reason"], "length");
}

#[test]
fn context_fills_to_last_position() {
    // One byte is one token.
    let corral = Corral::start_with(&["--context", "4096"]);
    let ask = |length: usize| {
        let prompt = "a".repeat(length);
        corral.generate(&json!({"prompt": prompt, "ignore_eos": true, "max_tokens": 100}))
    };
    for (length, tokens) in [(4095, 1), (4090, 6), (3997, 99), (3996, 100), (3000, 100)] {
        let answer = ask(length);
        assert_eq!(answer["prompt_tokens"], length);
        assert_eq!(answer["tokens"], tokens, "after {length} tokens");
        assert_eq!(answer["finish_reason"], "length");
    }
    corral.wait_until_idle();
    corral.check_alive();
}

#[test]
fn characters_are_never_split() {
    let corral = Corral::start();
    // Characters of two, three and four bytes, each byte a token ("é" alone is one).
    for text in ["é", "ü", "€", "日本語", "🙂", "a🙂b🚀c"] {
        let request = json!({"prompt": format!("repeat: {text}\n"), "max_tokens": 60});
        let whole = corral.generate(&request);
        let (texts, _) = corral.generate_stream(&request).texts();
        assert_eq!(whole["text"], texts.concat(), "{text}");
        assert!(!texts.concat().contains('\u{fffd}'), "{text}: {texts:?}");
        for piece in &texts {
            let fits = piece.chars().all(|c| c.is_ascii() || text.contains(c));
            assert!(fits, "{text}: {texts:?}");
        }
    }
}

#[test]
fn two_threads_give_same_text() {
    let corral = Corral::start_with(&["--threads", "2"]);
    corral.check_sums(5);
}

#[test]
fn wasi_0_2_handler_runs() {
    let corral = Corral::start();
    let body: String = ('a'..='z').cycle().take(1_000_000).collect();
    let answer = corral.post("/wasi-p2-handler/x?y=1", &body);
    assert_eq!(answer.status, 200);
    let (path, echo) = answer.body.split_once('\n').expect("two lines");
    assert_eq!(path, "/wasi-p2-handler/x?y=1");
    assert!(echo == body, "the echo differs from the request's body");
    corral.wait_until_idle();
}

#[test]
fn readyz_answers_when_ready() {
    let corral = Corral::start();
    assert_eq!(corral.get("/readyz").body, "ready\n");
    assert_eq!(corral.get("/healthz").body, "ok\n");
    assert_eq!(corral.get_admin("/readyz").status, 200);
    let announced = corral.announced();
    let routes = announced.iter().filter(|line| line.starts_with("route /"));
    let routes: Vec<_> = routes.collect();
    assert_eq!(routes.len(), 4, "{announced:?}");
    assert_eq!(announced.len(), 6, "{announced:?}");
    // The public listener serves nothing of the operator's.
    corral.get("/metrics").problem(404, "no-route");
}
