//! The suite of llama.cpp's server against the `openai` plugin. `tests/clients/llama_server` has the program that takes
//! the place of llama-server, and the list of tests that do not apply.

use corral_tests::{artifacts, scratch_dir, wait_for_suite};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Time limit of the suite. Far above what it takes, because machines are busy.
const TIMEOUT: Duration = Duration::from_secs(1800);
/// Tests that pass; fewer means that some were left out.
const PASSING: u32 = 140;

#[test]
fn llama_server_suite_passes() {
    let wrapper = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/llama_server");
    let suite = artifacts::llama_server_suite();
    let plugin = artifacts::plugin("openai");
    let scratch = scratch_dir();
    let tests = suite.join("tests");
    let modules = [&wrapper, &suite.join("packages"), &tests];
    let modules = std::env::join_paths(modules).expect("paths without colons");
    let log = scratch.join("log");
    let file = std::fs::File::create(&log).expect("created");
    let child = Command::new(suite.join("clients/python/bin/python"))
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
        .env("CORRAL_PLUGINS", plugin.parent().expect("a directory"))
        // The suite starts its servers at this port.
        .env("PORT", free_port().to_string())
        .env("TMPDIR", &scratch)
        .env("NO_PROXY", "*")
        .env_remove("OPENAI_API_KEY")
        .env_remove("OPENAI_BASE_URL")
        .stdin(Stdio::null())
        .stdout(file.try_clone().expect("a second handle"))
        .stderr(file)
        .spawn()
        .expect("the suite starts");
    let status = wait_for_suite(child, TIMEOUT);
    let output = String::from_utf8_lossy(&std::fs::read(&log).expect("readable")).into_owned();
    println!("{output}");
    let status = status.expect("the suite ends in time");
    assert!(status.success(), "the suite fails: {status}");
    let passed = output.split_once(" passed").expect("a count").0;
    let passed = passed
        .rsplit(|letter: char| !letter.is_ascii_digit())
        .next();
    let passed: u32 = passed
        .and_then(|count| count.parse().ok())
        .expect("a count");
    assert!(passed >= PASSING, "only {passed} tests passed");
}

/// A port that is free now.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("bound").port()
}
