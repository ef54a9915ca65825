//! `/v1/completions`.

use corral_sdk::Error;
use corral_sdk::testing::{Call, Script};
use serde_json::{Value, json};

use super::{events, post};

const PATH: &str = "/v1/completions";

fn script() -> Script {
    Script::new().answers("1+1=", "2").answers("abc", "defg")
}

#[test]
fn a_prompt_goes_on() {
    let (status, answer) = post(
        &script(),
        PATH,
        &json!({"prompt": "1+1=", "temperature": 0}),
    );
    assert_eq!(
        (status, &answer["object"]),
        (200, &"text_completion".into())
    );
    let choice = json!({"index": 0, "text": "2", "logprobs": null, "finish_reason": "stop"});
    assert_eq!(answer["choices"], json!([choice]));
    assert_eq!(answer["usage"]["total_tokens"], 6);
}

#[test]
fn several_prompts_have_several_texts() {
    let body = json!({"prompt": ["1+1=", [97, 98, 99]], "n": 2, "max_tokens": 3, "echo": true});
    let (_, answer) = post(&script(), PATH, &body);
    let choices = answer["choices"].as_array().unwrap();
    let texts: Vec<_> = choices
        .iter()
        .map(|choice| choice["text"].as_str().unwrap())
        .collect();
    assert_eq!(texts, ["1+1=2", "1+1=2", "abcdef", "abcdef"]);
    assert_eq!(
        (&choices[1]["finish_reason"], &choices[2]["finish_reason"]),
        (&"stop".into(), &"length".into())
    );
    assert_eq!(answer["usage"]["prompt_tokens"], 7);

    let events = events(&script(), PATH, &body);
    for (index, text) in texts.iter().enumerate() {
        let pieces = events
            .iter()
            .filter(|event| event["choices"][0]["index"] == index);
        let pieces: Vec<_> = pieces.map(|event| event["choices"][0].clone()).collect();
        let together: String = pieces
            .iter()
            .map(|piece| piece["text"].as_str().unwrap())
            .collect();
        assert_eq!(together, *text);
        assert_eq!(
            pieces.last().unwrap()["finish_reason"],
            choices[index]["finish_reason"]
        );
    }
    assert_eq!(events.last(), Some(&"[DONE]".into()));
}

#[test]
fn probabilities_are_lists_side_by_side() {
    let body = json!({"prompt": "abc", "logprobs": 2});
    let (_, answer) = post(&script(), PATH, &body);
    let told = &answer["choices"][0]["logprobs"];
    assert_eq!(told["tokens"], json!(["d", "e", "f", "g"]));
    assert_eq!(told["text_offset"], json!([0, 1, 2, 3]));
    let first = &told["top_logprobs"][0];
    assert_eq!(
        (first.as_object().unwrap().len(), &first["d"]),
        (2, &told["token_logprobs"][0])
    );
    let mut none = body.clone();
    none["logprobs"] = 0.into();
    let (_, answer) = post(&script(), PATH, &none);
    assert_eq!(
        answer["choices"][0]["logprobs"]["top_logprobs"],
        Value::Null
    );

    told_in_pieces(&script(), &body, told);
}

/// A stream brings the same lists, piece by piece.
fn told_in_pieces(script: &Script, body: &Value, told: &Value) {
    let events = events(script, PATH, body);
    for member in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        let events = events.iter().map(|event| &event["choices"][0]);
        let first = events.filter(|choice| choice["index"] == 0);
        let lists = first.filter_map(|choice| choice["logprobs"][member].as_array());
        let all: Vec<_> = lists.flatten().cloned().collect();
        assert_eq!(Value::from(all), told[member], "{member}");
    }
}

/// Knows what comes after each of the tokens of "abé", of which the last two are halves of a character.
fn known() -> Script {
    Script::new()
        .next("a", &[("b", 2.0), ("x", 1.0)])
        .next("ab", &[("x", 3.0), ("y", 2.0)])
        .answers("ab", "é!")
}

fn looks(script: &Script) -> usize {
    let calls = script.calls().into_iter();
    calls.filter(|call| matches!(call, Call::Next(_))).count()
}

#[test]
fn a_prompt_is_told_with_its_probabilities() {
    let body = json!({"prompt": "abé", "echo": true, "logprobs": 2, "max_tokens": 0});
    let script = known();
    let (status, answer) = post(&script, PATH, &body);
    assert_eq!(status, 200, "{answer}");
    let choice = &answer["choices"][0];
    assert_eq!(
        (&choice["text"], &choice["finish_reason"]),
        (&"abé".into(), &"length".into())
    );
    let usage = &answer["usage"];
    assert_eq!(
        (&usage["prompt_tokens"], &usage["completion_tokens"]),
        (&4.into(), &0.into())
    );
    let told = &choice["logprobs"];
    assert_eq!(told["tokens"], json!(["a", "b", "\u{fffd}", "\u{fffd}"]));
    assert_eq!(told["text_offset"], json!([0, 1, 2, 3]));
    let (logs, top) = (&told["token_logprobs"], &told["top_logprobs"]);
    assert_eq!((&logs[0], &top[0]), (&Value::Null, &Value::Null));
    let near = |value: &Value, expected: f64| {
        assert!(
            (value.as_f64().unwrap() - expected).abs() < 1e-4,
            "{value}, {expected}"
        );
    };
    let all = |one: f64, other: f64| (one.exp() + other.exp()).ln();
    near(&logs[1], 2.0 - all(2.0, 1.0));
    near(&top[1]["x"], 1.0 - all(2.0, 1.0));
    assert_eq!(top[1]["b"], logs[1]);
    // Too unlikely to be among those that a look shows, so it took one more.
    near(&logs[2], -30.0 - all(3.0, 2.0));
    near(&top[2]["y"], 2.0 - all(3.0, 2.0));
    near(&logs[3], 0.0);
    // The token itself is told too, if it is not among them.
    assert_eq!(top[2]["\u{fffd}"], logs[2]);
    for (place, count) in [(1, 2), (2, 3), (3, 2)] {
        assert_eq!(top[place].as_object().unwrap().len(), count);
    }
    assert_eq!(looks(&script), 4);
    assert_eq!(script.generations(), []);
    told_in_pieces(&known(), &body, told);

    // As a list of tokens, and without others in each place: one look for each.
    let body = json!({"prompt": [97, 98, 195, 169], "echo": true, "logprobs": 0, "max_tokens": 0});
    let script = known();
    let (_, answer) = post(&script, PATH, &body);
    let choice = &answer["choices"][0];
    assert_eq!(choice["text"], "abé");
    assert_eq!(choice["logprobs"]["token_logprobs"], *logs);
    assert_eq!(choice["logprobs"]["top_logprobs"], Value::Null);
    assert_eq!(looks(&script), 3);
}

#[test]
fn a_model_that_can_not_fork_shows_more_at_once() {
    let body = json!({"prompt": "abé", "echo": true, "logprobs": 2, "max_tokens": 0});
    let script = known().info(|info| info.can_fork = false);
    let (_, answer) = post(&script, PATH, &body);
    let (_, forking) = post(&known(), PATH, &body);
    assert_eq!(
        answer["choices"][0]["logprobs"],
        forking["choices"][0]["logprobs"]
    );
    assert_eq!(looks(&script), 3);
}

/// As evaluations read it: the prompt's entries are all but the last one.
#[test]
fn a_token_that_ends_the_text_is_told_after_a_prompt_that_is() {
    let script = || Script::new().next("a", &[("b", 1.0)]).answers("ab", "");
    let body = json!({"prompt": "ab", "echo": true, "logprobs": 1, "max_tokens": 1});
    let (_, answer) = post(&script(), PATH, &body);
    let choice = &answer["choices"][0];
    assert_eq!(
        (&choice["text"], &choice["finish_reason"]),
        (&"ab".into(), &"stop".into())
    );
    let told = &choice["logprobs"];
    assert_eq!(told["tokens"], json!(["a", "b", "<|im_end|>"]));
    assert_eq!(told["text_offset"], json!([0, 1, 2]));
    assert_eq!(
        told["top_logprobs"][2]["<|im_end|>"],
        told["token_logprobs"][2]
    );
    told_in_pieces(&script(), &body, told);
    // Of an answer alone it is not.
    let mut alone = body;
    alone["echo"] = false.into();
    let (_, answer) = post(&script(), PATH, &alone);
    assert_eq!(answer["choices"][0]["logprobs"]["tokens"], json!([]));
}

/// The texts that looks came after.
fn looked(script: Script, prompts: &[&str]) -> Vec<String> {
    let script = script
        .next("a", &[("b", 1.0)])
        .next("ab", &[("c", 1.0)])
        .next("abc", &[("d", 1.0)]);
    let body = json!({"prompt": prompts, "echo": true, "logprobs": 0, "max_tokens": 0});
    let (status, answer) = post(&script, PATH, &body);
    assert_eq!(status, 200, "{answer}");
    let calls = script.calls().into_iter();
    calls
        .filter_map(|call| match call {
            Call::Next(after) => Some(after),
            _ => None,
        })
        .collect()
}

#[test]
fn prompts_are_read_side_by_side_as_far_as_they_fit() {
    let prompts = ["abcd", "ab", "ab"];
    let room = |positions| looked(Script::new().context(positions), &prompts);
    assert_eq!(room(8), ["a", "a", "a", "ab", "abc"]);
    // The third one comes when the second one has been read.
    assert_eq!(room(6), ["a", "a", "ab", "a", "abc"]);
    // At first there is room for the long one alone.
    assert_eq!(room(5), ["a", "ab", "abc", "a", "a"]);
    let of = |a, ab| [vec!["a"; a], vec!["ab"; ab]].concat();
    assert_eq!(
        looked(Script::new(), &["abc"; 17]),
        [of(16, 16), of(1, 1)].concat()
    );
    // Those of one token are over as soon as they begin.
    assert_eq!(looked(Script::new(), &["a"; 40]), of(0, 0));
}

#[test]
fn more_than_can_be_told_is_refused_before_anything_is_read() {
    let prompts = vec!["a".repeat(4000); 8];
    let mut body = json!({"prompt": prompts, "echo": true, "logprobs": 20, "max_tokens": 1});
    for stream in [false, true] {
        body["stream"] = stream.into();
        let script = script();
        let (status, answer) = post(&script, PATH, &body);
        assert_eq!(
            (status, &answer["error"]["param"]),
            (400, &"prompt".into()),
            "{answer}"
        );
        assert_eq!(looks(&script), 0);
    }
}

#[test]
fn an_answer_follows_a_prompt_that_is_told() {
    let body = json!({"prompt": "abé", "echo": true, "logprobs": 1, "max_tokens": 1, "n": 2});
    let script = known();
    let (_, answer) = post(&script, PATH, &body);
    for index in 0..2 {
        let choice = &answer["choices"][index];
        assert_eq!(choice["text"], "abé!");
        let told = &choice["logprobs"];
        assert_eq!(told["tokens"][4], "!");
        assert_eq!(told["text_offset"], json!([0, 1, 2, 3, 3]));
        assert_eq!(told["top_logprobs"][4]["!"], told["token_logprobs"][4]);
    }
    assert_eq!(script.generations()[1].after, "abé");
    let usage = &answer["usage"];
    assert_eq!(
        (&usage["prompt_tokens"], &usage["completion_tokens"]),
        (&4.into(), &2.into())
    );
    // It was computed for this request.
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 0);
    told_in_pieces(&known(), &body, &answer["choices"][0]["logprobs"]);
}

#[test]
fn prompts_are_told_in_their_order_however_long_they_are() {
    let prompts: Vec<_> = (0..100)
        .map(|at| ["a", "ab", "abé"][at % 3].to_owned())
        .collect();
    let body = json!({"prompt": prompts, "echo": true, "logprobs": 1, "max_tokens": 0});
    let (_, answer) = post(&known(), PATH, &body);
    for (index, prompt) in prompts.iter().enumerate() {
        let choice = &answer["choices"][index];
        assert_eq!(
            (&choice["index"], &choice["text"]),
            (&index.into(), &prompt.clone().into())
        );
        let logs = choice["logprobs"]["token_logprobs"].as_array().unwrap();
        assert_eq!(logs.len(), prompt.len());
        assert!(logs[1..].iter().all(Value::is_number));
    }
}

#[test]
fn what_a_model_wants_at_the_beginning_is_a_token_of_the_prompt() {
    let script = || {
        Script::new()
            .control_token("<s>")
            .begins_with("<s>")
            .next("<s>", &[("a", 1.0)])
            .next("a", &[("b", 2.0)])
    };
    for (prompt, offsets) in [("ab", [0, 0, 1]), ("<s>ab", [0, 3, 4])] {
        let body = json!({"prompt": prompt, "echo": true, "logprobs": 1, "max_tokens": 0});
        let (_, answer) = post(&script(), PATH, &body);
        let choice = &answer["choices"][0];
        assert_eq!(choice["text"], prompt);
        assert_eq!(choice["logprobs"]["tokens"], json!(["<s>", "a", "b"]));
        assert_eq!(choice["logprobs"]["text_offset"], json!(offsets));
    }
}

#[test]
fn no_tokens_are_a_text_of_none() {
    // There is no room for any, and none is needed.
    let script = || Script::new().context(3);
    let body = json!({"prompt": ["abc", "ab"], "max_tokens": 0, "n": 2, "logprobs": 1});
    let asked = script();
    let (status, answer) = post(&asked, PATH, &body);
    assert_eq!(status, 200, "{answer}");
    assert_eq!((looks(&asked), asked.generations().len()), (0, 0));
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 4);
    for (index, choice) in choices.iter().enumerate() {
        assert_eq!(
            (&choice["index"], &choice["text"], &choice["finish_reason"]),
            (&index.into(), &"".into(), &"length".into())
        );
        assert_eq!(choice["logprobs"]["tokens"], json!([]));
    }
    assert_eq!(answer["usage"]["total_tokens"], 5);
    let events = events(&script(), PATH, &body);
    assert_eq!(events.len(), 5);
    assert_eq!(events[3]["choices"][0]["finish_reason"], "length");
    let long = json!({"prompt": "abc", "max_tokens": 1});
    assert_eq!(post(&script(), PATH, &long).1["error"]["param"], "prompt");
}

#[test]
fn what_fails_while_a_prompt_is_read_has_its_status() {
    let refused = Error::Refused {
        reason: "the queue is full".to_owned(),
        retry_after: std::time::Duration::from_secs(1),
    };
    let script = known().fails("next", refused);
    let body = json!({"prompt": "ab", "echo": true, "logprobs": 1, "stream": true});
    let (status, answer) = post(&script, PATH, &body);
    assert_eq!(
        (status, &answer["error"]["code"]),
        (429, &"rate_limit_exceeded".into())
    );
}

#[test]
fn too_many_texts_are_refused() {
    for (prompts, n, member) in [(65, 2, "n"), (129, 1, "prompt")] {
        let body = json!({"prompt": vec!["abc"; prompts], "n": n});
        let (status, answer) = post(&script(), PATH, &body);
        assert_eq!((status, &answer["error"]["param"]), (400, &member.into()));
    }
}
