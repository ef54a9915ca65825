//! The web console in a real browser: runs `tests/console/console.test.mjs` with Chromium against a server.

use corral_tests::deployments::{deploy_plugin, variant};
use corral_tests::{Corral, MANY_CELLS, artifacts, scratch_dir, wait_for_suite};
use serde_json::json;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Time limit of the suite. Far above what it takes, because machines are busy.
const TIMEOUT: Duration = Duration::from_secs(1200);

/// Tests of the suite. More may be added; none may be left out.
const TESTS: usize = 21;

#[test]
fn console_works_in_a_browser() {
    let openai = format!("/v1={}", artifacts::plugin("openai").display());
    let corral = Corral::start_with_store(&[
        "--plugin",
        &openai,
        "--error-format=/v1=openai",
        "--kv-cells",
        MANY_CELLS,
    ]);
    deploy_plugin(&corral, "kept", "misbehave", json!({}));
    let components = scratch_dir();
    let component = artifacts::component("misbehave");
    for (name, bytes) in [
        ("browser-1.wasm", variant(&component, 1)),
        ("browser-2.wasm", variant(&component, 2)),
        ("unknown-import.wasm", artifacts::unknown_import()),
    ] {
        std::fs::write(components.join(name), bytes).expect("written");
    }
    let log = scratch_dir().join("log");
    let file = std::fs::File::create(&log).expect("created");
    let suite = Path::new(env!("CARGO_MANIFEST_DIR")).join("console");
    let child = Command::new("node")
        .args(["--test", "--test-reporter=tap", "console.test.mjs"])
        .current_dir(suite)
        .env("CORRAL_CONSOLE", artifacts::console())
        .env("CORRAL_ADMIN", format!("http://{}", corral.admin()))
        .env("CORRAL_PUBLIC", format!("http://{}", corral.public()))
        .env("CORRAL_TOKEN", corral.token().expect("it has a store"))
        .env("CORRAL_COMPONENTS", &components)
        .env("NO_PROXY", "*")
        .stdin(Stdio::null())
        .stdout(file.try_clone().expect("a second handle"))
        .stderr(file)
        .spawn()
        .expect("node starts");
    let status = wait_for_suite(child, TIMEOUT);
    let output = std::fs::read_to_string(&log).expect("readable");
    println!("{output}");
    let status = status.expect("the suite ends in time");
    assert!(status.success(), "the suite fails: {status}");
    let passed = output.lines().filter(|line| line.starts_with("ok "));
    assert!(passed.count() >= TESTS, "tests were left out");
    corral.wait_until_idle();
}
