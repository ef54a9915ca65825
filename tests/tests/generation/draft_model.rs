//! A server whose model has a draft model: the same texts in fewer steps, and errors that say what is wrong.

use corral_tests::{Corral, artifacts, run, serve};
use serde_json::{Value, json};

fn draft() -> String {
    let path = artifacts::draft_model();
    path.to_str().expect("a path in UTF-8").to_owned()
}

/// Texts and tokens of questions that the draft model predicts well, and the growth of two counters.
fn ask(corral: &Corral, options: &Value) -> (Vec<(Value, Value)>, [f64; 2]) {
    let before = corral.wait_until_idle();
    let mut texts = Vec::new();
    for question in [
        "tools: calculator\nWhat is 12+7?\n",
        "Ada is 36 years old\n",
        "tools: calculator\nWhat is 8+80?\n",
        "repeat: Blue owls, 7!\n",
        "12+7=",
    ] {
        let mut request = options.clone();
        request["prompt"] = json!(question);
        request["max_tokens"] = json!(80);
        let answer = corral.generate(&request);
        texts.push((answer["text"].clone(), answer["tokens"].clone()));
    }
    let after = corral.wait_until_idle();
    let grown = ["steps", "draft_model_tokens_accepted"]
        .map(|name| after.growth(&format!("corral_engine_{name}_total"), &before));
    (texts, grown)
}

#[test]
fn draft_model_keeps_text_and_saves_steps() {
    let corral = Corral::start_with(&["--draft", &draft()]);
    for options in [json!({}), json!({"temperature": 1.0, "seed": 5})] {
        let mut plain = options.clone();
        plain["speculate"] = json!(0);
        let (expected, [steps, none]) = ask(&corral, &plain);
        assert_eq!(none, 0.0);
        let (texts, [fewer, accepted]) = ask(&corral, &options);
        assert_eq!(texts, expected);
        // Each accepted draft saved a step. How many there are depends on the machine: drafts must pay.
        assert_eq!(fewer + accepted, steps);
    }
    let metrics = corral.wait_until_idle();
    let get = |name: &str| metrics.get(&format!("corral_engine_draft_model_{name}"));
    assert_eq!(get("steps_total") > 0.0, get("seconds_total") > 0.0);
    assert_eq!(get("kv_cells_used"), 0.0);
}

#[test]
fn check_lists_draft_model() {
    let model = artifacts::model();
    let model = model.to_str().expect("a path in UTF-8");
    let check = |draft: &str| run(["serve", "--check", "--model", model, "--draft", draft]);
    let plan = check(&draft()).check_success();
    assert!(plan.stdout.contains("draft model of tiny is"), "{plan:?}");
    check("missing.gguf").check_error(2, &["missing.gguf"]);
}

#[test]
fn unsuitable_draft_model_is_refused() {
    let adapter = artifacts::adapter();
    let adapter = adapter.to_str().expect("a path in UTF-8");
    serve(&["--draft", adapter]).check_error(1, &["plus-one.gguf"]);
    serve(&["--draft", "other=x.gguf"]).check_error(2, &["'other'", "--draft"]);
}
