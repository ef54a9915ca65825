//! The examples of agents, pipelines and caches, on a server with the demo model. Each gives right answers, and the
//! engine's counters show what it saves.

use corral_tests::deployments::{deploy_dir, deploy_plugin};
use corral_tests::{
    Corral, NOT_WORTH_WAITING, RELIABLE_SUMS, Sum, artifacts, distinct_sums, scratch_dir,
};
use serde_json::{Value, json};

/// A server with one example at the route of its name.
fn start(example: &str, arguments: &[&str]) -> Corral {
    let route = format!("/{example}");
    Corral::start_with_routes(&[(&route, example)], arguments)
}

/// A member that is a number.
fn number(body: &Value, member: &str) -> f64 {
    let value = body[member].as_f64();
    value.unwrap_or_else(|| panic!("no number {member} in {body}"))
}

/// What the engine computed for a response.
struct Measured<T> {
    tokens: f64,
    steps: f64,
    response: T,
}

fn measure<T>(corral: &Corral, ask: impl FnOnce() -> T) -> Measured<T> {
    let before = corral.wait_until_idle();
    let response = ask();
    let after = corral.wait_until_idle();
    Measured {
        tokens: after.growth("corral_engine_computed_tokens_total", &before),
        steps: after.growth("corral_engine_steps_total", &before),
        response,
    }
}

fn measured_post(corral: &Corral, path: &str, body: &Value) -> Measured<Value> {
    measure(corral, || corral.post_json(path, body))
}

/// Tokens of a user's turn with this text, and of the begin of the answer.
fn turn_tokens(text: &str) -> usize {
    "|user\n".len() + text.len() + "|\n|assistant\n".len()
}

#[test]
fn agent_computes_each_token_once() {
    let corral = start("react-agent", &[]);
    let questions = [
        "What is 12+7?",
        "What is 123*45?",
        "reverse: table",
        "Compute 1000-1.",
    ];
    let run = measured_post(&corral, "/react-agent", &json!({"questions": questions}));
    let body = &run.response;
    let expected = json!(["19", "5535", "elbat", "999"]);
    assert_eq!(body["answers"], expected, "{body}");
    let calls = body["calls"].as_array().expect("calls").iter();
    let expressions: Vec<_> = calls.map(|call| &call["arguments"]["expression"]).collect();
    assert_eq!(expressions, ["12+7", "123*45", "1000-1"]);
    // Nothing needed the last token, the end of the last answer.
    assert_eq!(run.tokens, number(body, "tokens") - 1.0, "{body}");
    assert!(number(body, "prompt_tokens") > 5.0 * run.tokens, "{body}");
}

#[test]
fn map_reduce_computes_instructions_once() {
    let corral = start("map-reduce", &[]);
    let ages = [
        ("Ada", 12),
        ("Max", 7),
        ("Eva", 20),
        ("Lea", 22),
        ("Tom", 3),
        ("Uma", 4),
    ];
    let document =
        |(name, age): &(&str, u32)| format!("The quiet owl looks.\n{name} is {age} years old");
    let documents: Vec<_> = ages.iter().map(document).collect();
    let run = measured_post(&corral, "/map-reduce", &json!({"documents": documents}));
    let body = &run.response;
    let people = ages.map(|(name, age)| json!({"name": name, "age": age}));
    assert_eq!(body["people"], json!(people));
    assert_eq!(body["total"], 68);
    let sums = "12+7= 20+22= 3+4= 19+42= 61+7=".replace(' ', "");
    let own: usize = documents.iter().map(|document| document.len() + 1).sum();
    let instructions =
        (number(body, "prompt_tokens") - (own + sums.len()) as f64) / ages.len() as f64;
    let answers: usize = people.iter().map(|person| person.to_string().len()).sum();
    let own = own + sums.len() + answers + "194276168".len();
    let most = instructions + (own + (ages.len() - 1) * NOT_WORTH_WAITING) as f64;
    assert!(instructions > 200.0, "{} > {most}: {body}", run.tokens);
    assert!(run.tokens <= most, "{} > {most}: {body}", run.tokens);
}

/// The plugin itself is the page's server.
#[test]
fn fetched_page_is_computed_once() {
    let corral = Corral::start_with_store(&[]);
    let server = format!("http://{}", corral.public());
    let grants = json!({"grants": {"outbound": [{"url": server, "methods": ["GET"]}]}});
    deploy_plugin(&corral, "http-fetch", "http-fetch", grants);
    let [first, second] =
        [("What is 12+7?", "19"), ("What is 20+22?", "42")].map(|(question, answer)| {
            let url = format!("{server}/http-fetch");
            let body = json!({"url": url, "question": question});
            let run = measured_post(&corral, "/http-fetch", &body);
            assert_eq!(run.response["text"], answer);
            // Nothing needed the last token, the end of the answer.
            let computed = number(&run.response, "prompt_tokens")
                - number(&run.response, "cached_tokens")
                + answer.len() as f64;
            assert_eq!(run.tokens, computed, "{}", run.response);
            run
        });
    let cached = number(&second.response, "cached_tokens");
    let page = number(&first.response, "page_characters");
    assert!(cached > page, "{}", second.response);
    assert!(second.tokens < first.tokens / 10.0, "{}", second.tokens);
}

#[test]
fn conversation_continues_after_a_restart() {
    let dir = scratch_dir();
    let snapshots = ["--snapshot-dir", dir.to_str().expect("a path in UTF-8")];
    let say = |corral: &Corral, name: &str, message: &str| {
        measure(corral, || {
            let answer = corral.post(&format!("/stored-conversation/{name}"), message);
            answer.ok_json()
        })
    };
    let corral = start("stored-conversation", &snapshots);
    let sum = RELIABLE_SUMS[0];
    // Long enough that loading its state is cheaper than computing it.
    let first = say(&corral, "ada", &sum.question_in(1000)).response;
    assert_eq!(first["text"], json!(sum.answer()));
    assert_eq!(number(&first, "history_tokens"), 0.0);
    drop(corral);

    let corral = start("stored-conversation", &snapshots);
    let second = say(&corral, "ada", "reverse: table");
    let body = &second.response;
    assert_eq!(body["text"], "elbat");
    assert_eq!(body["history_tokens"], first["tokens"]);
    // The end of the first answer and its newline were never computed, nor are those of the second.
    let new = number(body, "tokens") - number(&first, "tokens");
    assert_eq!(
        (second.tokens, number(body, "cached_tokens")),
        (new, number(&first, "tokens") - 2.0)
    );
    let other = say(&corral, "bob", "20+22=").response;
    assert_eq!(other["text"], "42");
    assert_eq!(number(&other, "history_tokens"), 0.0);
    let delete = || {
        corral
            .request("DELETE", "/stored-conversation/ada", &[], "")
            .status
    };
    assert_eq!((delete(), delete()), (204, 404));
}

#[test]
fn batch_computes_the_prompt_once() {
    let corral = start("batch-map", &[]);
    let sums: Vec<Sum> = distinct_sums(24);
    let inputs = sums.iter().map(|sum| format!("{}+{}", sum.a, sum.b));
    let inputs: Vec<_> = inputs.collect();
    let before = "The quiet owl looks at the river and the stone. ".repeat(4) + "\nWhat is ";
    let body = json!({"prompt": format!("{before}{{}}?\n"), "inputs": inputs, "concurrency": 8});
    let run = measure(&corral, || corral.post("/batch-map", body.to_string()));
    assert_eq!(run.response.status, 200, "{:?}", run.response);
    let mut answers = vec![Value::Null; sums.len()];
    for line in run.response.body.lines() {
        let result: Value = serde_json::from_str(line).expect(line);
        let index = result["index"].as_u64().expect(line);
        answers[index as usize] = result["text"].clone();
    }
    let expected: Vec<_> = sums.iter().map(|sum| json!(sum.answer())).collect();
    assert_eq!(answers, expected);
    let own: usize = inputs.iter().map(|input| input.len() + "?\n".len()).sum();
    let answers: usize = sums.iter().map(|sum| sum.answer().len()).sum();
    let most = (before.len() + own + answers + (inputs.len() - 1) * NOT_WORTH_WAITING) as f64;
    assert!(run.tokens <= most, "{} > {most}", run.tokens);
}

#[test]
fn points_share_the_outline() {
    let corral = start("skeleton-of-thought", &[]);
    let points = ["12+7", "20+22", "3+4"];
    let outline = format!("Please repeat: {}", points.join(", "));
    let body = json!({"outline": outline, "point": "What is {}?"});
    let run = measured_post(&corral, "/skeleton-of-thought", &body);
    let expected = ["19", "42", "7"];
    let written = points.iter().zip(expected);
    let written = written.map(|(point, text)| json!({"point": point, "text": text}));
    let written: Vec<_> = written.collect();
    assert_eq!(run.response["points"], json!(written));
    let outline = turn_tokens(&outline) + points.join(", ").len();
    // Each fork also computes the end of the outline.
    let own = points
        .iter()
        .map(|point| "|\n".len() + turn_tokens(&format!("What is {point}?")));
    let most = outline + own.sum::<usize>() + expected.concat().len();
    assert!(
        run.tokens <= most as f64,
        "{} > {most}: {}",
        run.tokens,
        run.response
    );
}

#[test]
fn second_question_reuses_the_document() {
    let corral = start("cached-documents", &[]);
    let subjects = [
        "The owls in the barn.",
        "The owls in the barn.",
        "The last ferry.",
    ];
    let mut runs = Vec::new();
    for (subject, sum) in subjects.into_iter().zip(RELIABLE_SUMS) {
        let question = format!("{subject}\nWhat is {}+{}?", sum.a, sum.b);
        let run = measured_post(&corral, "/cached-documents", &json!({"question": question}));
        assert_eq!(run.response["text"], sum.answer(), "{question}");
        runs.push((run, question));
    }
    let documents = runs.iter().map(|(run, _)| run.response["document"].clone());
    let documents: Vec<_> = documents.collect();
    assert_eq!(documents, ["barn", "barn", "ferry"]);
    let (second, question) = &runs[1];
    let most = turn_tokens(question) + RELIABLE_SUMS[1].answer().len();
    assert!(second.tokens <= most as f64, "{} > {most}", second.tokens);
    assert!(runs[0].0.tokens > 500.0, "other documents are computed");
    assert!(runs[2].0.tokens > 500.0, "other documents are computed");
}

#[test]
fn regex_forces_tokens_without_steps() {
    let corral = start("guided-regex", &[]);
    let ask = |prompt: &str, regex: &str| {
        measured_post(
            &corral,
            "/guided-regex",
            &json!({"prompt": prompt, "regex": regex}),
        )
    };
    for sum in RELIABLE_SUMS {
        let answer = ask(&sum.question(), "[0-9]{1,3}").response;
        assert_eq!(answer["text"], json!(sum.answer()));
        assert_eq!(answer["matches"], true);
    }
    let regex = r#"\{"name":"[A-Za-z]+","age":[0-9]+,"unit":"years"\}"#;
    let run = ask("Ada is 36 years old\n", regex);
    let body = &run.response;
    assert_eq!(body["text"], r#"{"name":"Ada","age":36,"unit":"years"}"#);
    let most = number(body, "tokens");
    assert!(run.steps * 3.0 < most, "{} steps: {body}", run.steps);
    let cached = corral.metrics();
    ask("Max is 7 years old\n", regex);
    let growth = |name: &str| {
        corral
            .metrics()
            .growth(&format!("corral_engine_grammar_{name}_total"), &cached)
    };
    assert_eq!((growth("cache_hits"), growth("compilations")), (1.0, 0.0));
    let wrong = json!({"prompt": "12+7=", "regex": "["}).to_string();
    corral.post("/guided-regex", wrong).problem(400, "invalid");
}

#[test]
fn similar_question_costs_no_generation() {
    let dir = scratch_dir();
    let mut corral = Corral::start_in(&dir, &[]);
    let manifest = include_str!("../../../examples/semantic-cache/corral.toml");
    deploy_dir(&corral, manifest, &["openai", "semantic-cache"]);
    let cases = [
        ("What is 12+7?", "19", false),
        ("What's 12+7?", "19", true),
        ("What is 12+8?", "20", false),
        ("reverse: table", "elbat", false),
        ("What's 12+8?", "20", true),
    ];
    for (question, text, is_cached) in cases {
        let body = json!({"prompt": format!("{question}\n"), "max_tokens": 20});
        let before = corral.wait_until_idle();
        let run = measure(&corral, || corral.post("/v1/completions", body.to_string()));
        let answer = &run.response;
        assert_eq!(answer.ok_json()["choices"][0]["text"], text, "{answer:?}");
        let cache = if is_cached { "hit" } else { "miss" };
        assert_eq!(answer.header("x-cache"), Some(cache), "{answer:?}");
        assert_eq!(
            run.steps == 0.0 && run.tokens == 0.0,
            is_cached,
            "{question}"
        );
        let embedded = corral
            .metrics()
            .growth("corral_engine_embedding_inputs_total", &before);
        assert_eq!(embedded, 1.0);
        if question == "reverse: table" {
            drop(corral);
            corral = Corral::start_in(&dir, &[]);
        }
    }
}

#[test]
fn sure_model_spares_the_expensive_one() {
    let model = artifacts::long_model();
    let large = format!("large={}", model.to_str().expect("a path in UTF-8"));
    let corral = start("model-router", &["--model", &large]);
    let finished = || {
        let samples = corral
            .wait_until_idle()
            .samples("corral_engine_requests_finished_total");
        samples
            .get("model=\"large\"")
            .copied()
            .expect("the model is loaded")
    };
    for sum in RELIABLE_SUMS {
        let answer = corral.post_json("/model-router", &json!({"prompt": sum.question()}));
        assert_eq!(answer["model"], "tiny");
        assert_eq!(answer["text"], json!(sum.answer()));
        assert!(number(&answer["tried"][0], "confidence") > 0.9, "{answer}");
    }
    assert_eq!(finished(), 0.0);
    let body = json!({"prompt": "Who wrote Hamlet?\n"});
    let answer = corral.post_json("/model-router", &body);
    assert_eq!(answer["model"], "large");
    assert_eq!(answer["tried"][0]["model"], "tiny");
    assert!(number(&answer["tried"][0], "confidence") < 0.5, "{answer}");
    assert_eq!(finished(), 1.0);
}
