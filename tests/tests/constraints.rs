//! Constrained generation over HTTP: valid and invalid grammars of every kind.

use corral_tests::{Corral, artifacts, concurrently, distinct_sums, run_plugin};
use serde_json::{Value, json};

/// The answer to a prompt under a constraint.
fn constrained(corral: &Corral, prompt: &str, constraint: &Value) -> Value {
    let request = json!({"prompt": prompt, "constraint": constraint, "max_tokens": 100});
    corral.generate(&request)
}

/// A schema whose values are all short.
fn card() -> Value {
    json!({
        "type": "object",
        "properties": {
            "color": {"enum": ["red", "blue"]},
            "count": {"type": "integer", "minimum": 0, "maximum": 9},
            "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
        },
        "required": ["color", "count", "tags"],
        "additionalProperties": false,
    })
}

/// Asserts that a text is a value of [`card`].
fn check_card(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let members: Vec<_> = value.as_object().expect("an object").keys().collect();
    assert_eq!(members.len(), 3, "{text}");
    assert!(["red", "blue"].map(Value::from).contains(&value["color"]));
    assert!(value["count"].as_u64().is_some_and(|count| count <= 9));
    let tags = value["tags"].as_array().expect("a list");
    assert!(tags.len() <= 2 && tags.iter().all(Value::is_boolean));
}

#[test]
fn json_schema_output_validates() {
    let corral = Corral::start();
    // Output that satisfies the constraint anyway is unchanged. A string, since `json!` sorts members.
    let ask = |properties: &str| {
        let schema = format!(
            r#"{{"type":"object","properties":{{{properties}}},"required":["name","age"],"additionalProperties":false}}"#
        );
        let request = format!(
            r#"{{"prompt":"Ada is 36 years old\n","constraint":{{"json_schema":{schema}}}}}"#
        );
        let answer = corral.post("/generate", request);
        let answer = answer.ok_json();
        assert_eq!(answer["finish_reason"], "end");
        answer["text"].as_str().expect("a text").to_owned()
    };
    let (name, age) = (r#""name":{"type":"string"}"#, r#""age":{"type":"integer"}"#);
    assert_eq!(ask(&format!("{name},{age}")), r#"{"name":"Ada","age":36}"#);
    // Members appear in schema order.
    let reversed = ask(&format!("{age},{name}"));
    assert!(reversed.starts_with("{\"age\":"), "{reversed}");
    let value: Value = serde_json::from_str(&reversed).expect("JSON");
    assert!(value["age"].is_i64() && value["name"].is_string());
    // A constraint forces text that the model would not generate.
    for seed in 0..10 {
        let request = json!({
            "prompt": "1+1=", "constraint": {"json_schema": card()}, "max_tokens": 300,
            "samplers": [{"temperature": 3}], "seed": seed,
        });
        let answer = corral.generate(&request);
        assert_eq!(answer["finish_reason"], "end", "{answer}");
        check_card(answer["text"].as_str().expect("a text"));
        let (texts, report) = corral.generate_stream(&request).texts();
        assert_eq!(report["finish_reason"], "end");
        check_card(&texts.concat());
    }
    corral.wait_until_idle();
}

#[test]
fn every_grammar_kind_is_followed() {
    let corral = Corral::start();
    for (prompt, constraint, text) in [
        ("45+54=", json!({"regex": "[0-9]{1,3}"}), "99"),
        (
            "45+54=",
            json!({"regex": "The sum is 99[.]"}),
            "The sum is 99.",
        ),
        ("45+54=", json!({"lark": "start: /[0-9]{1,3}/"}), "99"),
        ("45+54=", json!({"gbnf": "root ::= [0-9] [0-9]?"}), "99"),
        ("45+54=", json!({"json_schema": {"type": "integer"}}), "99"),
        ("45+54=", json!({"json_schema": {"const": "no"}}), "\"no\""),
        (
            "Ada is 36 years old\n",
            json!({"json_object": true}),
            r#"{"name":"Ada","age":36}"#,
        ),
    ] {
        let answer = constrained(&corral, prompt, &constraint);
        assert_eq!(answer["text"], text, "{constraint}");
        assert_eq!(answer["finish_reason"], "end", "{constraint}");
    }
    corral.wait_until_idle();
}

#[test]
fn grammar_error_names_position() {
    let corral = Corral::start();
    // The unit tests of each kind have all errors.
    let schema = json!({"items": {"type": "strin"}});
    for (constraint, position, problem) in [
        (
            json!({"json_schema": schema}),
            "at /items/type",
            "\"strin\" is not a type",
        ),
        (
            json!({"regex": "ab(c"}),
            "line 1, column 3",
            "unclosed group",
        ),
        (
            json!({"lark": "start: \"a\"\n  | thing\n"}),
            "line 1, column 8",
            "thing",
        ),
        (
            json!({"gbnf": "root ::= \"a\"\nx ::= [b"}),
            "line 2, column 7",
            "not closed",
        ),
        (json!({"regex": "a".repeat(16_385)}), "", "16385 bytes"),
    ] {
        let request = json!({"prompt": "1+1=", "constraint": constraint});
        let answer = corral.post("/generate", request.to_string());
        let detail = answer.problem(400, "invalid-constraint");
        let is_explained = detail.contains(position) && detail.contains(problem);
        assert!(is_explained, "{constraint}: {detail}");
    }
    corral.check_alive();
    corral.wait_until_idle();
}

#[test]
fn schema_keywords_are_expressed_refused_or_ignored() {
    let corral = Corral::start_with_routes(&[("/v1", "openai")], &[]);
    let exact = json!({
        "type": "object",
        "properties": {"color": {"enum": ["red", "blue"]}, "count": {"const": 2}},
        "required": ["color"],
        "additionalProperties": false,
        "not": {"properties": {"color": {"const": "blue"}}},
        "if": {"properties": {"color": {"const": "red"}}},
        "then": {"required": ["count"]},
    });
    let request = json!({"prompt": "1+1=", "constraint": {"json_schema": exact}});
    let text = corral.generate(&request)["text"].clone();
    let value: Value = serde_json::from_str(text.as_str().expect("a text")).expect("JSON");
    assert_eq!(value, json!({"color": "red", "count": 2}));

    // The same error in an answer, in the arguments of a tool, and over plain JSON.
    let partly = json!({"type": "object", "properties": {"a": {"const": 1, "format": "odd"}},
        "required": ["a"], "additionalProperties": false});
    let place =
        "the JSON schema is invalid: at /properties/a/format: the format \"odd\" is unknown";
    let request = json!({"prompt": "1+1=", "constraint": {"json_schema": partly}});
    let answer = corral.post("/generate", request.to_string());
    let detail = answer.problem(400, "invalid-constraint");
    assert!(detail.contains(place), "{detail}");
    let chat = |strict: bool, as_tool: bool| {
        let mut request = json!({"model": "tiny", "temperature": 0,
            "messages": [{"role": "user", "content": "1+1="}]});
        if as_tool {
            let function = json!({"name": "f", "parameters": partly, "strict": strict});
            request["tools"] = json!([{"type": "function", "function": function}]);
            request["tool_choice"] = json!("required");
            request["parallel_tool_calls"] = json!(false);
        } else {
            let schema = json!({"name": "x", "schema": partly, "strict": strict});
            request["response_format"] = json!({"type": "json_schema", "json_schema": schema});
        }
        corral.post("/v1/chat/completions", request.to_string())
    };
    for (as_tool, field) in [(false, "response_format"), (true, "tools[0]")] {
        let refused = chat(true, as_tool);
        assert_eq!(refused.status, 400, "{refused:?}");
        let error = &refused.json()["error"];
        assert_eq!(error["param"], field, "{error}");
        let message = error["message"].as_str().expect("a message");
        assert!(message.contains(place), "{message}");

        let answer = chat(false, as_tool);
        assert_eq!(answer.status, 200, "{answer:?}");
        let ignored = answer.header("x-corral-ignored").expect("a header");
        let field = field.replace("[0]", "[]");
        assert_eq!(ignored, format!("{field}/properties/a/format"));
        let message = &answer.json()["choices"][0]["message"];
        let text = match as_tool {
            true => &message["tool_calls"][0]["function"]["arguments"],
            false => &message["content"],
        };
        let value: Value = serde_json::from_str(text.as_str().expect("a text")).expect("JSON");
        assert_eq!(value, json!({"a": 1}), "the other keywords hold");
    }
    corral.wait_until_idle();
}

/// A schema whose patterns are disjoint, which only comparing all pairs shows.
fn pattern_properties(names: &str, count: usize) -> Value {
    let patterns = (0..count).map(|number| {
        let pattern = format!("^{names}{number}.*x{number}$");
        (pattern, json!({"type": "string"}))
    });
    json!({"type": "object", "patternProperties": Value::Object(patterns.collect())})
}

#[test]
fn costly_grammars_leave_the_compiler_to_others() {
    const FAILURES: &str = "corral_engine_grammar_compilation_failures_total";
    const ROUNDS: u64 = 1;
    let routes = [("/v1", "openai"), ("/other", "generate")];
    let corral = Corral::start_with_routes(&routes, &[]);
    let generate = |schema: &Value| {
        let request = json!({"prompt": "1+1=", "constraint": {"json_schema": schema}});
        let answer = corral.post("/generate", request.to_string());
        answer.problem(400, "invalid-constraint")
    };
    let chat = |schema: &Value| {
        let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
        let message = json!({"role": "user", "content": "1+1="});
        let request = json!({"model": "tiny", "messages": [message], "response_format": format});
        let answer = corral.post("/v1/chat/completions", request.to_string());
        assert_eq!(answer.status, 400, "{answer:?}");
        answer.body
    };
    let asked = corral.with_neighbors(|| {
        for round in 0..ROUNDS {
            let names = ["a", "b"].map(|letter| format!("{letter}{round}-"));
            std::thread::scope(|scope| {
                // Two at once, as many as compile at once. Each compares its 50 patterns 1,000 times.
                for names in &names {
                    let schema = json!({
                        "$defs": {"a": pattern_properties(names, 50)},
                        "allOf": vec![json!({"$ref": "#/$defs/a"}); 1_000],
                    });
                    let (generate, chat) = (&generate, &chat);
                    scope.spawn(move || {
                        let detail = generate(&schema);
                        assert!(detail.contains("too much work"), "{detail}");
                        let detail = chat(&pattern_properties(names, 4_000));
                        assert!(detail.contains("it has 4000 patterns"), "{detail}");
                    });
                }
            });
            // A refused compilation has ended, so another tenant's grammar compiles.
            let constraint = json!({"regex": format!("2|{round}x")});
            let request = json!({"prompt": "1+1=", "constraint": constraint});
            assert_eq!(corral.generate_at("/other", &request)["text"], "2");
        }
    });
    assert!(asked >= 10, "1+1 was answered {asked} times meanwhile");
    let metrics = corral.wait_until_idle();
    assert_eq!(metrics.get(FAILURES), (4 * ROUNDS) as f64);
}

#[test]
fn costly_token_of_grammar_fails_its_request() {
    let corral = Corral::start();
    let conjuncts: Vec<_> = (0..200).map(|n| format!("/.*a.{{{n}}}/")).collect();
    // The compiler only proves that the terminal matches "2". The next token may begin with "x", where the lexer needs
    // the intersection, which has 2^200 parts.
    let lark = format!(
        "start: A \"!\"\nA: \"2\" (\"x\" B)?\nB: {}\n",
        conjuncts.join(" & ")
    );
    let asked = corral.with_neighbors(|| {
        for _ in 0..3 {
            let request = json!({"prompt": "1+1=", "constraint": {"lark": lark}});
            let answer = corral.post("/generate", request.to_string());
            let detail = answer.problem(400, "invalid");
            assert!(detail.contains("one token takes too much work"), "{detail}");
        }
    });
    assert!(asked >= 3, "1+1 was answered {asked} times meanwhile");
    corral.wait_until_idle();
}

#[test]
fn constrained_load_leaves_sums_right() {
    let corral = Corral::start();
    let sums = distinct_sums(40);
    let numbered = Vec::from_iter(sums.iter().zip(0..));
    concurrently(12, &numbered, |&(sum, number)| {
        mixed(&corral, number);
        assert_eq!(corral.text(&sum.question()), sum.answer(), "{sum:?}");
        let digits = json!({"regex": "[0-9]{1,3}"});
        let answer = constrained(&corral, &sum.question(), &digits);
        assert_eq!(answer["text"], sum.answer(), "{sum:?}");
    });
    let metrics = corral.wait_until_idle();
    let found = metrics.get("corral_engine_requests_finished_total");
    assert_eq!(found, 3.0 * 40.0);
}

/// Sends one of several kinds of requests, chosen by `number`, and checks the answer.
fn mixed(corral: &Corral, number: u64) {
    let (constraint, samplers, fits): (_, _, fn(&str) -> bool) = match number % 5 {
        0 => (
            json!({"json_schema": card()}),
            json!([{"min_p": 0.01}, {"temperature": 2}]),
            |text| {
                check_card(text);
                true
            },
        ),
        1 => (
            json!({"regex": "(yes|no|perhaps)"}),
            json!([{"temperature": 4}, {"mirostat": {"tau": 5, "eta": 0.1}}]),
            |text| ["yes", "no", "perhaps"].contains(&text),
        ),
        2 => (
            json!({"lark": "start: (\"a\" | \"b\"){3,5} \"!\""}),
            json!([{"penalties": {"repeat": 1.5}}, {"temperature": 1.5}]),
            |text| text.ends_with('!') && (4..=6).contains(&text.len()),
        ),
        3 => (
            json!({"gbnf": "root ::= [a-c] [a-c]? \"-\" [0-9] [0-9]"}),
            json!([{"dry": {"multiplier": 0.8}}, {"typical_p": 0.9}, {"temperature": 1.5}]),
            |text| {
                let halves = text.split_once('-');
                halves.is_some_and(|(_, digits)| digits.len() == 2)
            },
        ),
        _ => (
            Value::Null,
            json!([{"xtc": {"probability": 0.5, "threshold": 0.1}}, {"temperature": 5}]),
            |_| true,
        ),
    };
    let request = json!({
        "prompt": "say: ", "constraint": constraint, "samplers": samplers, "seed": number,
        "max_tokens": 200, "speculate": number % 3 * 8,
    });
    let answer = corral.generate(&request);
    let text = answer["text"].as_str().expect("a text");
    if !constraint.is_null() {
        assert_eq!(answer["finish_reason"], "end", "{request}: {answer}");
    }
    assert!(fits(text), "{request}: {text:?}");
}

#[test]
fn run_accepts_constraints() {
    let command = |arguments: &[&str]| run_plugin(&artifacts::plugin("generate"), &[], arguments);
    let ended = command(&["--regex", "The sum is 99[.]", "45+54="]);
    assert_eq!(ended.code, Some(0));
    assert_eq!(ended.stdout.as_str(), "The sum is 99.\n");
    let ended = command(&["--regex", "ab(c", "45+54="]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("line 1, column 3"), "{ended:?}");
}
