//! The web console in a real browser: runs `tests/console/console.test.mjs` with Chromium against a server.

use corral_tests::authoring::root;
use corral_tests::deployments::{deploy_plugin, variant};
use corral_tests::{Corral, MANY_CELLS, artifacts, run_suite, scratch_dir};
use serde_json::json;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Time limit of the suite. Far above what it takes, because machines are busy.
const TIMEOUT: Duration = Duration::from_secs(1200);

/// Tests of the suite. More may be added; none may be left out.
const TESTS: usize = 24;

#[test]
fn console_works_in_a_browser() {
    let arguments = ["--test", "--test-reporter=tap", "console.test.mjs"];
    let output = run_in_browser(&arguments, &[]);
    let passed = output.lines().filter(|line| line.starts_with("ok "));
    assert!(passed.count() >= TESTS, "tests were left out");
}

/// Writes the pictures of docs/console.md to `CORRAL_PICTURES`. Not a check: it shows what people see.
#[test]
#[ignore = "makes pictures"]
fn pictures_of_every_page() {
    let target =
        std::env::var("CORRAL_PICTURES").expect("CORRAL_PICTURES=DIR, such as docs/images");
    let target = std::path::absolute(root().join(target)).expect("a path");
    run_in_browser(&["pictures.mjs"], &[("CORRAL_PICTURES", &target)]);
}

/// Runs a program of `tests/console` against a server. Returns its output.
fn run_in_browser(arguments: &[&str], variables: &[(&str, &Path)]) -> String {
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
    let suite = Path::new(env!("CARGO_MANIFEST_DIR")).join("console");
    let mut node = Command::new("node");
    node.args(arguments)
        .current_dir(suite)
        .env("CORRAL_CONSOLE", artifacts::console())
        .env("CORRAL_ADMIN", format!("http://{}", corral.admin()))
        .env("CORRAL_PUBLIC", format!("http://{}", corral.public()))
        .env("CORRAL_TOKEN", corral.token().expect("it has a store"))
        .env("CORRAL_COMPONENTS", &components)
        .envs(variables.iter().copied());
    let output = run_suite(&mut node, TIMEOUT);
    corral.wait_until_idle();
    output
}
