//! Attention on the CPU: Corral's and llama.cpp's give the same results.

use corral_tests::{Corral, RELIABLE_SUMS, artifacts};
use serde_json::{Value, json};
use std::process::{Command, Output};

const OWN: [(&str, &str); 1] = [("CORRAL_ATTENTION", "own")];
const LLAMA: [(&str, &str); 1] = [("CORRAL_ATTENTION", "llama.cpp")];

fn doctor(attention: &str) -> Output {
    let mut command = Command::new(artifacts::binary());
    let command = command.arg("doctor").env("CORRAL_ATTENTION", attention);
    command.output().expect("the binary starts")
}

/// Whether this build has its own attention, according to `corral doctor`.
fn has_own_attention() -> bool {
    let output = doctor("own");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).contains("CORRAL_ATTENTION")
}

/// The likeliest tokens of each position of an answer, with their probabilities.
fn top_logprobs(corral: &Corral, prompt: &str) -> Vec<(u64, f64)> {
    let answer = corral.generate(&json!({
        "prompt": prompt, "max_tokens": 24, "ignore_eos": true, "logprobs": 1, "temperature": 0,
    }));
    let entry = |entry: &Value| {
        let token = entry["token"].as_u64().expect("a token");
        (token, entry["logprob"].as_f64().expect("a number"))
    };
    let entries = answer["logprobs"].as_array().expect("asked for");
    entries.iter().map(entry).collect()
}

#[test]
fn own_attention_matches_llama_cpp() {
    let [own, other] =
        [OWN, LLAMA].map(|variables| Corral::start_with_env(&variables, &["--device", "cpu"]));
    let long = "The owl and the fox walked home. ".repeat(20);
    let mut largest = 0.0_f64;
    for prompt in ["12+7=", "The owl", "repeat: Blue owls, 7!\n", &long] {
        let pairs = top_logprobs(&own, prompt)
            .into_iter()
            .zip(top_logprobs(&other, prompt));
        // After a different close choice the texts differ.
        let pairs: Vec<_> = pairs.take_while(|(own, other)| own.0 == other.0).collect();
        assert!(!pairs.is_empty(), "{prompt}: not even the first token");
        for ((_, own), (_, other)) in pairs {
            assert!((own - other).abs() < 0.02, "{prompt}: {own} and {other}");
            largest = largest.max((own - other).abs());
        }
    }
    if has_own_attention() {
        // They differ in the last bits, so each used its own implementation.
        assert!(largest > 0.0);
    }
    for corral in [own, other] {
        for sum in RELIABLE_SUMS {
            assert_eq!(corral.text(&sum.question()), sum.answer());
        }
        corral.wait_until_idle();
    }
}

#[test]
fn doctor_reports_attention_implementation() {
    let output = doctor("llama.cpp");
    assert!(output.status.success(), "{output:?}");
    assert!(!String::from_utf8_lossy(&output.stdout).contains("CORRAL_ATTENTION"));
    if has_own_attention() {
        let output = doctor("mine");
        assert!(!output.status.success(), "{output:?}");
        let error = String::from_utf8_lossy(&output.stderr);
        let expected = "CORRAL_ATTENTION is mine; set it to `own`, for Corral's attention on the CPU, or `llama.cpp`";
        assert!(error.contains(expected), "{error}");
    }
}
