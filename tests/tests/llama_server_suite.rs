//! The suite of llama.cpp's server against the `openai` plugin. `tests/clients/llama_server` has the program that takes
//! the place of llama-server, and the list of tests that do not apply.

use corral_random_model::{Architecture, write_model};
use corral_tests::{artifacts, free_ports, run_suite, scratch_dir};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Time limit of the suite. Far above what it takes, because machines are busy.
const TIMEOUT: Duration = Duration::from_secs(1800);
/// Tests that pass; fewer means that some were left out.
const PASSING: u32 = 148;

#[test]
fn llama_server_suite_passes() {
    let wrapper = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/llama_server");
    let suite = artifacts::llama_server_suite();
    let plugin = artifacts::plugin("openai");
    let scratch = scratch_dir();
    let ranking = scratch.join("rank.gguf");
    let reranker = Architecture::Bert { ranks: true };
    write_model(&reranker, &artifacts::model(), &ranking, 1).expect("written");
    let tests = suite.join("tests");
    let modules = [&wrapper, &suite.join("packages"), &tests];
    let modules = std::env::join_paths(modules).expect("paths without colons");
    let mut python = Command::new(suite.join("clients/python/bin/python"));
    python
        .args(["-m", "pytest", "-p", "suite", "-p", "no:cacheprovider"])
        .args([
            "-q",
            "--color=no",
            "--durations=10",
            "--show-capture=no",
            "unit",
        ])
        .current_dir(&tests)
        .env("PYTHONPATH", modules)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("CORRAL_BIN", artifacts::binary())
        .env("CORRAL_MODEL", artifacts::model())
        .env("CORRAL_RANKING_MODEL", ranking)
        .env("CORRAL_PLUGINS", plugin.parent().expect("a directory"))
        // The suite starts its servers at this port.
        .env("PORT", free_ports().to_string())
        .env("TMPDIR", &scratch);
    let output = run_suite(&mut python, TIMEOUT);
    let passed = output.split_once(" passed").expect("a count").0;
    let passed = passed
        .rsplit(|letter: char| !letter.is_ascii_digit())
        .next();
    let passed = passed.and_then(|count| count.parse().ok());
    let passed: u32 = passed.expect("a count");
    assert!(passed >= PASSING, "only {passed} tests passed");
}
