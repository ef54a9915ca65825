//! Sampling over HTTP: sampler chains and logprobs.

use corral_tests::{Corral, EventStream};
use serde_json::{Value, json};
use std::collections::HashSet;

const QUESTION: &str = "repeat: Blue owls, 7!\n";
const ANSWER: &str = "Blue owls, 7!";

/// The answer to [`QUESTION`] with this chain.
fn sampled_text(corral: &Corral, samplers: &Value) -> Value {
    let request = json!({"prompt": QUESTION, "seed": 3, "max_tokens": 40, "samplers": samplers});
    corral.generate(&request)["text"].clone()
}

/// The generated tokens of an answer with logprobs.
fn tokens(answer: &Value) -> Vec<u64> {
    let entries = answer["logprobs"].as_array().expect("asked for");
    let token = |entry: &Value| entry["token"].as_u64().expect("a token has a number");
    entries.iter().map(token).collect()
}

#[test]
fn one_token_chains_are_greedy() {
    let corral = Corral::start();
    let hot = json!({"temperature": 20});
    for samplers in [
        json!([]),
        json!([{"temperature": 0}]),
        json!([{"top_k": 1}, hot]),
        json!([hot, {"top_k": 1}]),
        json!([{"top_p": 0}, hot]),
        json!([{"min_p": 1}, hot]),
        json!([{"top_n_sigma": 0.0001}, hot]),
        json!([{"dynamic_temperature": {"temperature": 0, "range": 0}}]),
        json!([hot, {"mirostat": {"tau": 0, "eta": 0}}]),
        json!([{"penalties": {}}, {"logit_bias": []}, {"temperature": 0}]),
        json!([{"dry": {"multiplier": 0}}, {"typical_p": 1}, {"top_k": 1}]),
    ] {
        assert_eq!(sampled_text(&corral, &samplers), ANSWER, "{samplers}");
    }
    for samplers in [
        json!([hot]),
        json!([hot, {"typical_p": 1}]),
        json!([hot, {"top_n_sigma": 0}]),
        json!([hot, {"mirostat": {"tau": 20, "eta": 0.1}}]),
        json!([{"dynamic_temperature": {"temperature": 20, "range": 0.5, "exponent": 2}}]),
        // The least likely token of all.
        json!([{"xtc": {"probability": 1, "threshold": 0}}, {"temperature": 0}]),
    ] {
        assert_ne!(sampled_text(&corral, &samplers), ANSWER, "{samplers}");
    }
    corral.wait_until_idle();
}

#[test]
fn samplers_apply_in_given_order() {
    let corral = Corral::start();
    let request = json!({"prompt": "1+1=", "max_tokens": 5, "logprobs": 0});
    let two = tokens(&corral.generate(&request))[0];
    let request = json!({"prompt": "3+4=", "max_tokens": 5, "logprobs": 0});
    let seven = tokens(&corral.generate(&request))[0];
    let post = |samplers: Value| {
        let request = json!({"prompt": "1+1=", "max_tokens": 5, "samplers": samplers});
        corral.generate(&request)["text"].clone()
    };
    let (best, seven) = (json!({"top_k": 1}), json!({"logit_bias": [[seven, 1000]]}));
    assert_eq!(post(json!([best, seven])), "2", "7 is gone before its bias");
    assert_eq!(post(json!([seven, best])), "77777");
    let banned = post(json!([{"logit_bias": [[two, "-inf"]]}, best]));
    let banned = banned.as_str().expect("a text");
    assert!(!banned.contains('2'), "{banned:?}");
    corral.wait_until_idle();
}

#[test]
fn penalties_cover_the_prompt() {
    let corral = Corral::start();
    let prompt = "1+1=";
    let post = |samplers: Value| {
        let request = json!({
            "prompt": prompt, "ignore_eos": true, "max_tokens": 60, "samplers": samplers,
            "logprobs": 0,
        });
        tokens(&corral.generate(&request))
    };
    let before: Vec<u64> = prompt.bytes().map(u64::from).collect();
    let all = |generated: Vec<u64>| [before.clone(), generated].concat();
    let pairs = |tokens: &[u64]| -> HashSet<(u64, u64)> {
        tokens.windows(2).map(|pair| (pair[0], pair[1])).collect()
    };

    let plain = all(post(json!([])));
    assert!(pairs(&plain).len() < plain.len() - 1, "it repeats itself");
    let penalties = json!([{"penalties": {"last_n": 100, "presence": 1000}}, {"temperature": 0}]);
    let tokens = post(penalties);
    let different: HashSet<_> = tokens.iter().chain(&before).collect();
    // The prompt has one token twice.
    assert_eq!(different.len(), 60 + 3, "{tokens:?}");
    let penalties = json!({"last_n": 100, "presence": 1000});
    let tokens = post(json!([{"output_penalties": penalties}, {"temperature": 0}]));
    let different: HashSet<_> = tokens.iter().collect();
    assert_eq!(different.len(), 60, "{tokens:?}");
    let is_in_prompt = |token: u64| before.contains(&token);
    assert!(
        tokens.iter().copied().any(is_in_prompt),
        "no token of the prompt: {tokens:?}"
    );
    let dry = json!({"multiplier": 1000, "allowed_length": 1, "base": 1, "breakers": []});
    let tokens = all(post(json!([{"dry": dry}, {"temperature": 0}])));
    assert_eq!(pairs(&tokens).len(), tokens.len() - 1, "{tokens:?}");
    corral.wait_until_idle();
}

#[test]
fn same_seed_gives_same_text_per_chain() {
    // Cell positions affect rounding and close choices, so each request starts with empty cells.
    let corral = Corral::start_with(&["--no-prefix-cache"]);
    for samplers in [
        json!([{"temperature": 4}]),
        json!([{"top_k": 100}, {"typical_p": 0.999}, {"temperature": 4}]),
        json!([{"xtc": {"probability": 0.5, "threshold": 0.1}}, {"temperature": 4}]),
        json!([{"temperature": 4}, {"mirostat": {"tau": 6, "eta": 0.1}}]),
    ] {
        let post = |seed: Value| {
            let request = json!({
                "prompt": "1+1=", "max_tokens": 60, "ignore_eos": true, "seed": seed,
                "samplers": samplers,
            });
            corral.generate(&request)["text"].clone()
        };
        for seed in [1, u64::MAX] {
            assert_eq!(post(json!(seed)), post(json!(seed)), "{samplers}");
        }
        assert_ne!(post(json!(1)), post(json!(2)), "{samplers}");
        // Without a seed the host draws one.
        assert_ne!(post(Value::Null), post(Value::Null), "{samplers}");
    }
    corral.wait_until_idle();
}

#[test]
fn host_refuses_invalid_sampler_values() {
    let corral = Corral::start();
    for (link, expected) in [
        (json!({"logit_bias": [[264, 1]]}), "token 264"),
        (
            json!({"logit_bias": [[65, 1], [65, 2]]}),
            "two logit biases",
        ),
        (
            json!({"dry": {"multiplier": 1, "breakers": ["x".repeat(41)]}}),
            "41 bytes",
        ),
        (
            json!({"dry": {"multiplier": 1, "breakers": vec!["x"; 65]}}),
            "65 DRY breakers",
        ),
    ] {
        let request = json!({"prompt": "1+1=", "samplers": [link]});
        let answer = corral.post("/generate", request.to_string());
        let detail = answer.problem(400, "invalid");
        assert!(detail.contains(expected), "{link}: {detail}");
    }
    corral.check_alive();
    corral.wait_until_idle();
}

/// A completion of the plugin `openai`.
fn completion(corral: &Corral, fields: &Value) -> Value {
    let mut request = json!({"prompt": QUESTION, "seed": 3, "max_tokens": 40});
    let members = request.as_object_mut().expect("an object");
    members.extend(fields.as_object().expect("an object").clone());
    let answer = corral.post("/v1/completions", request.to_string());
    answer.ok_json()["choices"][0].clone()
}

#[test]
fn openai_samplers_equal_chains_of_generate() {
    // Equal cells give equal rounding, so each request starts with empty cells.
    let corral = Corral::start_with_routes(&[("/v1", "openai")], &["--no-prefix-cache"]);
    let prompt = "The quiet owl";
    let generated = |samplers: &Value| {
        let request = json!({
            "prompt": prompt, "seed": 3, "max_tokens": 60, "ignore_eos": true, "samplers": samplers,
        });
        corral.generate(&request)["text"].clone()
    };
    let hot = json!({"temperature": 3});
    let dry =
        json!({"multiplier": 2, "base": 1.5, "allowed_length": 1, "last_n": 50, "breakers": ["7"]});
    for (fields, samplers) in [
        (
            json!({"typical_p": 0.9, "top_k": 30}),
            json!([{"top_k": 30}, {"typical_p": 0.9}, hot]),
        ),
        (
            json!({"top_n_sigma": 2, "xtc_probability": 0.5, "xtc_threshold": 0.05, "min_p": 0.01}),
            json!([{"top_n_sigma": 2}, {"min_p": 0.01}, {"xtc": {"probability": 0.5, "threshold": 0.05}}, hot]),
        ),
        (
            json!({
                "dry_multiplier": 2, "dry_base": 1.5, "dry_allowed_length": 1,
                "dry_penalty_last_n": 50, "dry_sequence_breakers": ["7"], "top_p": 0.99,
            }),
            json!([{"dry": dry}, {"top_p": 0.99}, hot]),
        ),
        (
            json!({"dynatemp_range": 2, "dynatemp_exponent": 0.5, "repeat_penalty": 1.2}),
            json!([
                {"penalties": {"last_n": 64, "repeat": 1.2}},
                {"dynamic_temperature": {"temperature": 3, "range": 2, "exponent": 0.5}},
            ]),
        ),
        (
            json!({"mirostat": 2, "mirostat_tau": 4, "mirostat_eta": 0.3, "top_k": 1}),
            json!([hot, {"mirostat": {"tau": 4, "eta": 0.3}}]),
        ),
    ] {
        let mut fields = fields;
        for (name, value) in [
            ("temperature", json!(3)),
            ("prompt", json!(prompt)),
            ("max_tokens", json!(60)),
            ("ignore_eos", json!(true)),
        ] {
            fields[name] = value;
        }
        let text = generated(&samplers);
        assert_eq!(completion(&corral, &fields)["text"], text, "{fields}");
        assert_ne!(text, generated(&json!([])), "{samplers}");
        let mut reversed = samplers.as_array().expect("a list").clone();
        reversed.reverse();
        // Mirostat must be the last.
        if reversed[0].get("mirostat").is_none() {
            let other = generated(&Value::Array(reversed));
            assert_ne!(text, other, "the order matters: {samplers}");
        }
    }
    corral.wait_until_idle();
}

fn logprob(of: &Value) -> f64 {
    of["logprob"].as_f64().expect("a number")
}

/// Checks the entries of a greedy answer and returns the text of its tokens.
fn check_greedy(entries: &[Value], top: usize) -> String {
    let mut text = String::new();
    for entry in entries {
        let likeliest = entry["top"].as_array().expect("a list");
        assert_eq!(likeliest.len(), top, "{entry}");
        assert!(logprob(entry) <= 0.0, "{entry}");
        for pair in likeliest.windows(2) {
            assert!(logprob(&pair[0]) >= logprob(&pair[1]), "{entry}");
        }
        if let Some(first) = likeliest.first() {
            for member in ["token", "text", "logprob"] {
                assert_eq!(first[member], entry[member], "{entry}");
            }
        }
        let mass: f64 = likeliest.iter().map(|token| logprob(token).exp()).sum();
        assert!(mass < 1.0001, "{entry}");
        text += entry["text"].as_str().expect("a text");
    }
    text
}

/// All events of a stream: text, entries, report.
fn collect(mut stream: EventStream) -> (String, Vec<Value>, Value) {
    let (mut text, mut entries) = (String::new(), Vec::new());
    loop {
        let event = stream.event().expect("the report comes before the end");
        let event: Value = serde_json::from_str(&event).expect("events hold JSON");
        if event.get("finish_reason").is_some() {
            assert!(event.get("logprobs").is_none(), "{event}");
            return (text, entries, event);
        }
        text += event["text"].as_str().expect("an event has a text");
        let more = event["logprobs"].as_array();
        entries.extend_from_slice(more.map_or(&[][..], Vec::as_slice));
    }
}

#[test]
fn greedy_output_is_likeliest_tokens() {
    let corral = Corral::start();
    for top in [0, 1, 5, 20] {
        let request = json!({"prompt": QUESTION, "logprobs": top});
        let answer = corral.generate(&request);
        let entries = answer["logprobs"].as_array().expect("asked for");
        assert_eq!(answer["tokens"], entries.len(), "one for each token");
        // The end is a token too, without text.
        assert_eq!(check_greedy(entries, top), format!("{ANSWER}<|endoftext|>"));
        assert_eq!(answer["text"], ANSWER);

        let (text, streamed, report) = collect(corral.generate_stream(&request));
        assert_eq!(text, ANSWER);
        assert_eq!(report["tokens"], streamed.len());
        check_greedy(&streamed, top);
        for (one, other) in entries.iter().zip(&streamed) {
            assert_eq!(one["token"], other["token"]);
            // Steps of other sizes may add in another order.
            assert!((logprob(one) - logprob(other)).abs() < 0.01);
        }
    }
    let without = corral.generate(&json!({"prompt": QUESTION}));
    assert!(without.get("logprobs").is_none(), "{without}");
    corral.wait_until_idle();
}

#[test]
fn logprobs_ignore_samplers() {
    let corral = Corral::start();
    let request = json!({
        "prompt": "1+1=", "logprobs": 20, "max_tokens": 30, "ignore_eos": true, "seed": 4,
        "samplers": [{"temperature": 5}],
    });
    let answer = corral.generate(&request);
    let entries = answer["logprobs"].as_array().expect("asked for");
    assert_eq!(entries.len(), 30);
    let mut unlikely = 0;
    for entry in entries {
        let top = entry["top"].as_array().expect("a list");
        assert_eq!(top.len(), 20);
        assert!(logprob(entry) <= logprob(&top[0]), "{entry}");
        match top.iter().find(|likely| likely["token"] == entry["token"]) {
            Some(same) => assert_eq!(same["logprob"], entry["logprob"]),
            None => {
                assert!(logprob(entry) <= logprob(&top[19]), "{entry}");
                unlikely += 1;
            }
        }
    }
    assert!(unlikely > 0, "so hot a chain draws from all tokens");
    // The first token follows a sum with a clear answer.
    assert_eq!(entries[0]["top"][0]["text"], "2");
    assert!(logprob(&entries[0]["top"][0]) > -0.2, "{}", entries[0]);
    corral.wait_until_idle();
}
