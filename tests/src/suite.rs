//! Runs suites of other languages.

use crate::run_command;
use std::process::Command;
use std::time::Duration;

/// Runs a suite, which must succeed. Returns and prints its output.
pub fn run_suite(suite: &mut Command, limit: Duration) -> String {
    // The servers are local.
    suite.env("NO_PROXY", "*");
    for variable in ["OPENAI_API_KEY", "OPENAI_BASE_URL"] {
        suite.env_remove(variable);
    }
    let ended = run_command(suite, limit);
    println!("{}{}", ended.stdout, ended.stderr);
    assert_eq!(ended.code, Some(0), "the suite fails");
    ended.stdout
}
