//! Runs benches and reads their JSON objects.

use crate::command_line::run_program;
use crate::server::TIMEOUT;
use crate::{RunOutput, artifacts};
use serde_json::Value;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// An option of a bench, and the file that is its value.
pub type FileOption<'a> = (&'a str, PathBuf);

/// The demo model.
pub fn model() -> FileOption<'static> {
    ("--model", artifacts::model())
}

/// The component `name` as the plugin.
pub fn plugin(name: &str) -> FileOption<'static> {
    ("--plugin", artifacts::plugin(name))
}

/// Runs a bench with these words, separated by blanks, and these files: `load` of `corral`, all others of
/// `corral-bench`.
pub fn bench(words: &str, files: &[FileOption<'_>]) -> RunOutput {
    bench_within(TIMEOUT, words, files)
}

/// [`bench()`] with another time limit.
pub fn bench_within(limit: Duration, words: &str, files: &[FileOption<'_>]) -> RunOutput {
    let is_load = words.split_whitespace().next() == Some("load");
    let (program, command) = match is_load {
        true => (artifacts::binary(), Some("bench")),
        false => (artifacts::bench_binary(), None),
    };
    let words = command.into_iter().chain(words.split_whitespace());
    let mut arguments: Vec<_> = words.map(OsString::from).collect();
    for (option, file) in files {
        arguments.extend([OsString::from(*option), OsString::from(file)]);
    }
    run_program(&program, limit, arguments)
}

/// The JSON object of a bench, which must succeed.
pub fn measure(words: &str, files: &[FileOption<'_>]) -> Value {
    let ended = bench(&format!("{words} --json"), files).check_success();
    object(words, &ended)
}

/// The JSON object on standard output, of the bench that `words` start with.
pub fn object(words: &str, ended: &RunOutput) -> Value {
    let read = serde_json::from_str(&ended.stdout);
    let result: Value = read.unwrap_or_else(|error| panic!("no JSON, {error}: {ended:?}"));
    let name = words.split_whitespace().next();
    assert_eq!(result["bench"].as_str(), name, "{result}");
    result
}

/// The rows of a result.
pub fn rows(result: &Value) -> &[Value] {
    result["rows"].as_array().expect("rows")
}

/// Asserts that these members are positive numbers.
pub fn check_positive(value: &Value, members: &[&str]) {
    for member in members {
        let is_positive = value[member].as_f64().is_some_and(|number| number > 0.0);
        assert!(is_positive, "{member:?} in {value}");
    }
}

/// Asserts that these members are numbers in ascending order.
pub fn check_rising(value: &Value, members: &[&str]) {
    let numbers = members.iter().map(|member| value[member].as_f64());
    let numbers: Vec<_> = numbers.collect();
    assert!(numbers[0].is_some(), "{members:?} in {value}");
    assert!(numbers.is_sorted(), "{members:?} in {value}");
}

/// Asserts that an object contains all members of `expected`.
pub fn check_members(value: &Value, expected: &Value) {
    let members = expected.as_object().expect("an object");
    for (member, expected) in members {
        assert_eq!(value.get(member), Some(expected), "{member:?} in {value}");
    }
}
