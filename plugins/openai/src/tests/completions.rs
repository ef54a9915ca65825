//! `/v1/completions`.

use corral_sdk::testing::Script;
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

    let events = events(&script(), PATH, &body);
    let told_in_pieces = |member: &str| -> Vec<Value> {
        let lists = events
            .iter()
            .filter_map(|event| event["choices"][0]["logprobs"][member].as_array());
        lists.flatten().cloned().collect()
    };
    for member in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(
            Value::from(told_in_pieces(member)),
            told[member],
            "{member}"
        );
    }
}

#[test]
fn too_many_texts_are_refused() {
    for (prompts, n, member) in [(65, 2, "n"), (129, 1, "prompt")] {
        let body = json!({"prompt": vec!["abc"; prompts], "n": n});
        let (status, answer) = post(&script(), PATH, &body);
        assert_eq!((status, &answer["error"]["param"]), (400, &member.into()));
    }
}
