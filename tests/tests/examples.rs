//! The examples of `examples/` about sampling, search and constraints: right answers, and the engine's counters show the
//! gain that each README states.

use corral_tests::{Corral, RELIABLE_SUMS, Sum, artifacts, run_plugin};
use serde_json::{Value, json};

const SUM: Sum = RELIABLE_SUMS[0];

/// A server with this example at `/NAME`.
fn start(name: &str) -> Corral {
    Corral::start_with_routes(&[(&format!("/{name}"), name)], &[])
}

/// The answer of an example, and the growth of the engine's counters while it answers.
fn ask(corral: &Corral, name: &str, body: &Value) -> (Value, Growth) {
    let before = corral.wait_until_idle();
    let answer = corral.post(&format!("/{name}"), body.to_string());
    assert_eq!(answer.status, 200, "{name} {body}: {answer:?}");
    let after = corral.wait_until_idle();
    let growth = |counter: &str| after.growth(&format!("corral_engine_{counter}_total"), &before);
    let growth = Growth {
        computed: growth("computed_tokens"),
        prompt: growth("prompt_tokens") - growth("prefix_cache_hit_tokens"),
        requests: growth("requests_finished"),
        distributions: growth("next_token_requests"),
        steps: growth("steps"),
    };
    (answer.json(), growth)
}

/// The growth of counters of the engine.
#[derive(Debug)]
struct Growth {
    /// Tokens computed.
    computed: f64,
    /// Tokens of prompts that were computed, not cached.
    prompt: f64,
    /// Generations by the host.
    requests: f64,
    /// Distributions for the plugin.
    distributions: f64,
    steps: f64,
}

fn list<'a>(answer: &'a Value, name: &str) -> &'a [Value] {
    answer[name].as_array().expect(name)
}

fn number(answer: &Value, name: &str) -> f64 {
    answer[name].as_f64().expect(name)
}

/// `corral run` prints what the handler answers.
fn check_command(name: &str, body: &Value, expected: &Value) {
    let ended = run_plugin(&artifacts::plugin(name), &[], &[&body.to_string()]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let answer: Value = serde_json::from_str(&ended.stdout).expect("JSON");
    for (member, value) in expected.as_object().expect("an object") {
        assert_eq!(&answer[member], value, "{member}: {answer}");
    }
}

#[test]
fn custom_sampler_costs_no_more_tokens_than_the_host() {
    let corral = start("custom-sampler");
    for sum in RELIABLE_SUMS {
        let body = json!({"prompt": sum.question(), "temperature": 0.5});
        let (answer, growth) = ask(&corral, "custom-sampler", &body);
        assert_eq!(answer["text"], sum.answer(), "{answer}");
        // The question and the digits; one distribution for each digit and the end.
        let digits = sum.answer().len() as f64;
        assert_eq!(growth.computed, sum.question().len() as f64 + digits);
        assert_eq!(growth.distributions, digits + 1.0);
    }
    // With an epsilon of 1 only the most likely token remains, at any temperature.
    let hot = |epsilon: f64| json!({"prompt": SUM.question(), "epsilon": epsilon, "temperature": 50, "max_tokens": 8});
    let (answer, growth) = ask(&corral, "custom-sampler", &hot(1.0));
    assert_eq!(answer["text"], SUM.answer());
    assert_eq!(answer["considered_tokens"], growth.distributions);
    let (answer, growth) = ask(&corral, "custom-sampler", &hot(0.0));
    assert_ne!(answer["text"], SUM.answer());
    assert_eq!(
        number(&answer, "considered_tokens"),
        256.0 * growth.distributions
    );
    let expected = json!({"text": SUM.answer(), "distributions": 3});
    check_command(
        "custom-sampler",
        &json!({"prompt": SUM.question(), "temperature": 0}),
        &expected,
    );
}

#[test]
fn best_of_n_computes_the_prompt_once() {
    const PROMPT: usize = 400;
    let corral = start("best-of-n");
    for (sum, n) in RELIABLE_SUMS.into_iter().zip([1, 4, 8, 16, 64]) {
        let body = json!({"prompt": sum.question_in(PROMPT), "n": n, "max_tokens": 8});
        let (answer, growth) = ask(&corral, "best-of-n", &body);
        assert_eq!(answer["text"], sum.answer(), "{answer}");
        let answers = list(&answer, "answers");
        assert_eq!(answers.len(), n);
        assert!(answers.is_sorted_by(
            |one, other| number(one, "mean_logprob") >= number(other, "mean_logprob")
        ));
        assert_eq!(growth.requests, n as f64);
        // The prompt once, and its last token for each further answer.
        assert!(growth.prompt <= (PROMPT + n - 1) as f64, "{n}: {growth:?}");
        assert_eq!(number(&answer, "prompt_tokens_computed"), growth.prompt);
    }
    check_command(
        "best-of-n",
        &json!({"prompt": SUM.question()}),
        &json!({"text": SUM.answer()}),
    );
}

#[test]
fn beams_share_the_prompt_and_their_steps() {
    const PROMPT: usize = 300;
    let corral = start("beam-search");
    for (sum, width) in RELIABLE_SUMS.into_iter().zip([1, 2, 4, 8, 32]) {
        let body = json!({"prompt": sum.question_in(PROMPT), "width": width, "max_tokens": 6});
        let (answer, growth) = ask(&corral, "beam-search", &body);
        assert_eq!(answer["text"], sum.answer(), "{answer}");
        assert_eq!(list(&answer, "beams").len(), width);
        // The prompt once; each further distribution costs one token.
        assert_eq!(number(&answer, "distributions"), growth.distributions);
        assert!(
            growth.computed <= PROMPT as f64 + growth.distributions - 1.0,
            "{growth:?}"
        );
        // All beams in one step per token, after the steps of the prompt.
        assert!(
            growth.steps <= 6.0 + PROMPT as f64 / 64.0,
            "{width}: {growth:?}"
        );
    }
    let (question, answer) = (SUM.question(), SUM.answer());
    check_command(
        "beam-search",
        &json!({"prompt": question}),
        &json!({"text": answer}),
    );
}

#[test]
fn tree_of_thought_keeps_the_state_of_earlier_steps() {
    const INSTRUCTIONS: usize = 300;
    let corral = start("tree-of-thought");
    let instructions = "Reach the target with sums. ".repeat(20)[..INSTRUCTIONS].to_owned();
    let body = json!({"numbers": [12, 7, 45, 20], "target": 44, "instructions": instructions});
    let (answer, growth) = ask(&corral, "tree-of-thought", &body);
    assert_eq!(
        answer["steps"],
        json!(["12+45=57", "57-20=37", "37+7=44"]),
        "{answer}"
    );
    let thoughts = number(&answer, "thoughts");
    assert!(number(&answer, "rollbacks") >= 3.0, "{answer}");
    assert_eq!(growth.requests, thoughts);
    // The instructions once. A thought is at most "\n99-99=", its result of two digits, and that of the step before.
    assert!(
        growth.computed <= INSTRUCTIONS as f64 + thoughts * 12.0,
        "{growth:?}"
    );
    let expected = json!({"solved": true, "steps": ["12+20=32", "32+7=39"]});
    check_command(
        "tree-of-thought",
        &json!({"numbers": [12, 7, 20], "target": 39}),
        &expected,
    );
}

#[test]
fn self_consistency_stops_at_the_majority() {
    const PROMPT: usize = 300;
    let corral = start("self-consistency");
    for sum in RELIABLE_SUMS {
        let body = json!({"prompt": sum.question_in(PROMPT), "votes": 9, "temperature": 0.3, "max_tokens": 8});
        let (answer, growth) = ask(&corral, "self-consistency", &body);
        // The model is sure: five equal answers of nine decide.
        let votes = [&answer["answer"], &answer["votes"], &answer["samples"]];
        assert_eq!(
            votes,
            [&json!(sum.answer()), &json!(5), &json!(5)],
            "{answer}"
        );
        assert_eq!(growth.requests, 5.0);
        assert!(growth.prompt <= PROMPT as f64 + 4.0, "{growth:?}");
    }
    // An unsure model: all answers may count, and each is counted once.
    let body = json!({"prompt": SUM.question(), "votes": 15, "temperature": 3, "max_tokens": 8});
    let (answer, growth) = ask(&corral, "self-consistency", &body);
    let counted: f64 = list(&answer, "answers")
        .iter()
        .map(|one| number(one, "votes"))
        .sum();
    assert_eq!(counted, growth.requests, "{answer}");
    assert!((8.0..=15.0).contains(&counted), "{answer}");
    check_command(
        "self-consistency",
        &json!({"prompt": SUM.question()}),
        &json!({"answer": SUM.answer()}),
    );
}

#[test]
fn classifier_generates_nothing() {
    const PROMPT: usize = 300;
    let corral = start("classifier");
    let labels: Vec<_> = RELIABLE_SUMS
        .into_iter()
        .map(|sum| format!("{:02}", sum.a + sum.b))
        .collect();
    for sum in RELIABLE_SUMS
        .into_iter()
        .filter(|sum| sum.answer().len() == 2)
    {
        let body = json!({"prompt": sum.question_in(PROMPT), "labels": labels});
        let (answer, growth) = ask(&corral, "classifier", &body);
        assert_eq!(answer["label"], sum.answer(), "{answer}");
        assert!(
            number(&list(&answer, "labels")[0], "share") > 0.9,
            "{answer}"
        );
        assert_eq!(growth.requests, 0.0);
        // The prompt once, and the first digit of each label.
        assert!(
            growth.computed <= (PROMPT + labels.len()) as f64,
            "{growth:?}"
        );
        assert_eq!(growth.distributions, 1.0 + labels.len() as f64);
    }
    let body = json!({"prompt": SUM.question(), "labels": ["18", "19", "27"]});
    check_command("classifier", &body, &json!({"label": "19"}));
}

#[test]
fn watermark_is_found_with_its_key_only() {
    let corral = Corral::start_with_store(&[]);
    for key in ["one", "two"] {
        let more = json!({"configuration": {"WATERMARK_KEY": key}});
        corral_tests::deployments::deploy_plugin(&corral, key, "watermark", more);
    }
    let found = |key: &str, text: &str| corral.post(&format!("/{key}/detect"), text).json();
    let text = |strength: f64| {
        let body = json!({"prompt": "Hello", "strength": strength, "temperature": 3, "min_tokens": 200, "max_tokens": 200});
        let (answer, _) = ask(&corral, "one", &body);
        assert_eq!(answer["tokens"], 200);
        answer["text"].as_str().expect("a text").to_owned()
    };
    let (marked, plain) = (text(8.0), text(0.0));
    let computed = corral.computed_tokens(|| {
        assert_eq!(
            found("one", &marked)["watermarked"],
            true,
            "{}",
            found("one", &marked)
        );
        assert_eq!(found("two", &marked)["watermarked"], false);
        assert_eq!(found("one", &plain)["watermarked"], false);
    });
    // The detector only tokenizes.
    assert_eq!(computed, 0.0);
    // The watermark does not change tokens of which the model is sure, and costs no tokens.
    for sum in RELIABLE_SUMS {
        let body = json!({"prompt": sum.question(), "temperature": 0.3, "strength": 1});
        let (answer, growth) = ask(&corral, "one", &body);
        assert_eq!(answer["text"], sum.answer());
        assert_eq!(
            growth.computed,
            (sum.question().len() + sum.answer().len()) as f64
        );
    }
    deploy_without_key(&corral);
}

/// A deployment without a key says what to do.
fn deploy_without_key(corral: &Corral) {
    corral_tests::deployments::deploy_plugin(corral, "none", "watermark", json!({}));
    let detail = corral.post("/none/detect", "text").problem(500, "no-key");
    assert!(detail.contains("WATERMARK_KEY"), "{detail}");
}

#[test]
fn json_extraction_matches_the_schema() {
    let corral = start("json-extraction");
    let schema = json!({
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 199}},
        "required": ["name", "age"],
        "additionalProperties": false,
    });
    let people = [("Ada", 36), ("Bob", 41), ("Eva", 7)];
    let texts = people.map(|(name, age)| format!("{name} is {age} years old"));
    let body = json!({"texts": texts, "schema": schema});
    let (answer, growth) = ask(&corral, "json-extraction", &body);
    let values = people.map(|(name, age)| json!({"value": {"name": name, "age": age}}));
    assert_eq!(answer["results"], json!(values));
    assert_eq!(growth.requests, 3.0);
    // A text about something else gives an object of the schema, too.
    let (answer, _) = ask(
        &corral,
        "json-extraction",
        &json!({"texts": ["Hello"], "schema": schema}),
    );
    let value = &list(&answer, "results")[0]["value"];
    assert!(
        value["name"].is_string() && value["age"].is_u64(),
        "{answer}"
    );
    let wrong = json!({"texts": ["Hello"], "schema": {"type": "oject"}});
    let detail = corral
        .post("/json-extraction", wrong.to_string())
        .problem(400, "invalid");
    assert!(detail.contains("oject"), "{detail}");
    let expected = json!({"results": [values[0]]});
    check_command(
        "json-extraction",
        &json!({"texts": [texts[0]], "schema": schema}),
        &expected,
    );
}
