//! Runs benches and reads their JSON objects.

use crate::command_line::run_program;
use crate::server::PATIENCE;
use crate::{Ended, artifacts};
use serde_json::Value;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// An option of a bench, and the file that is its value.
pub type WithFile<'a> = (&'a str, PathBuf);

/// The demo model.
pub fn model() -> WithFile<'static> {
    ("--model", artifacts::model())
}

/// The component `name` as the plugin.
pub fn plugin(name: &str) -> WithFile<'static> {
    ("--plugin", artifacts::plugin(name))
}

/// Runs a bench with these words, separated by blanks, and these files: `load` of `corral`, all others of
/// `corral-bench`.
pub fn bench(words: &str, files: &[WithFile<'_>]) -> Ended {
    bench_within(PATIENCE, words, files)
}

/// [`bench()`] with another time limit.
pub fn bench_within(patience: Duration, words: &str, files: &[WithFile<'_>]) -> Ended {
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
    run_program(&program, patience, arguments)
}

/// The JSON object of a bench, which must succeed.
pub fn measure(words: &str, files: &[WithFile<'_>]) -> Value {
    let ended = bench(&format!("{words} --json"), files);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    object(words, &ended)
}

/// The JSON object on standard output, of the bench that `words` start with.
pub fn object(words: &str, ended: &Ended) -> Value {
    let read = serde_json::from_str(&ended.stdout);
    let result: Value = read.unwrap_or_else(|error| panic!("no JSON, {error}: {ended:?}"));
    let name = words.split_whitespace().next();
    assert_eq!(result["bench"].as_str(), name, "{result}");
    result
}

/// Asserts that a bench ended with this exit code, without output, and with an error that contains these texts.
pub fn check_refused(ended: &Ended, code: i32, expected: &[&str]) {
    assert_eq!(ended.code, Some(code), "{ended:?}");
    assert_eq!(ended.stdout, "", "{ended:?}");
    // Progress precedes the error.
    let mut lines = ended.stderr.lines();
    let is_error = |line: &&str| line.starts_with("corral: ") || line.starts_with("corral-bench: ");
    let error = lines.rfind(is_error);
    let error = error.unwrap_or_else(|| panic!("no error: {ended:?}"));
    for text in expected {
        assert!(error.contains(text), "{text:?} in {ended:?}");
    }
}

/// The rows of a result.
pub fn rows(result: &Value) -> &[Value] {
    result["rows"].as_array().expect("rows")
}

/// A text member.
pub fn text<'a>(value: &'a Value, member: &str) -> &'a str {
    let text = value[member].as_str();
    text.unwrap_or_else(|| panic!("no text {member:?} in {value}"))
}

/// A whole number member.
pub fn count(value: &Value, member: &str) -> u64 {
    let count = value[member].as_u64();
    count.unwrap_or_else(|| panic!("no count {member:?} in {value}"))
}

/// A number member.
pub fn number(value: &Value, member: &str) -> f64 {
    let number = value[member].as_f64();
    number.unwrap_or_else(|| panic!("no number {member:?} in {value}"))
}

/// Asserts that these members are positive numbers.
pub fn check_positive(value: &Value, members: &[&str]) {
    for member in members {
        assert!(number(value, member) > 0.0, "{member:?} in {value}");
    }
}

/// Asserts that these members are numbers in ascending order.
pub fn check_rising(value: &Value, members: &[&str]) {
    let numbers: Vec<_> = members.iter().map(|name| number(value, name)).collect();
    assert!(numbers.is_sorted(), "{members:?} in {value}");
}

/// Asserts that an object contains all members of `expected`.
pub fn check_members(value: &Value, expected: &Value) {
    let members = expected.as_object().expect("an object");
    for (member, expected) in members {
        assert_eq!(value.get(member), Some(expected), "{member:?} in {value}");
    }
}
