//! `corral bench`: runs it, and reads what it tells programs.

use crate::{Ended, artifacts, run, run_within};
use serde_json::Value;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// An option of [`bench`] whose value is a file, and that file.
pub type WithFile<'a> = (&'a str, PathBuf);

/// The demo model.
pub fn model() -> WithFile<'static> {
    ("--model", artifacts::model())
}

/// The component `name` as the plugin.
pub fn plugin(name: &str) -> WithFile<'static> {
    ("--plugin", artifacts::plugin(name))
}

/// Runs `corral bench` with these words, which blanks part, and with these files.
pub fn bench(words: &str, files: &[WithFile<'_>]) -> Ended {
    run(line(words, files))
}

/// [`bench`] for what may take so long.
pub fn bench_within(patience: Duration, words: &str, files: &[WithFile<'_>]) -> Ended {
    run_within(patience, line(words, files))
}

fn line(words: &str, files: &[WithFile<'_>]) -> Vec<OsString> {
    let mut line = vec![OsString::from("bench")];
    line.extend(words.split_whitespace().map(OsString::from));
    for (option, file) in files {
        line.extend([OsString::from(*option), OsString::from(file)]);
    }
    line
}

/// What [`bench`] finds with `--json`; it has to succeed.
pub fn measure(words: &str, files: &[WithFile<'_>]) -> Value {
    let ended = bench(&format!("{words} --json"), files);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    object(words, &ended)
}

/// The one object on standard output: that of the bench whose name `words` begin with.
pub fn object(words: &str, ended: &Ended) -> Value {
    let read = serde_json::from_str(&ended.stdout);
    let found: Value = read.unwrap_or_else(|error| panic!("no JSON, {error}: {ended:?}"));
    let name = words.split_whitespace().next();
    assert_eq!(found["bench"].as_str(), name, "{found}");
    found
}

/// Checks that [`bench`] ended with this code and told programs nothing, and that its complaint has these
/// texts in it.
pub fn check_refused(ended: &Ended, code: i32, expected: &[&str]) {
    assert_eq!(ended.code, Some(code), "{ended:?}");
    assert_eq!(ended.stdout, "", "{ended:?}");
    // How far it came stands before it.
    let mut lines = ended.stderr.lines();
    let complaint = lines.rfind(|line| line.starts_with("corral: "));
    let complaint = complaint.unwrap_or_else(|| panic!("no complaint: {ended:?}"));
    for text in expected {
        assert!(complaint.contains(text), "{text:?} in {ended:?}");
    }
}

/// The rows of what was found.
pub fn rows(found: &Value) -> &[Value] {
    found["rows"].as_array().expect("rows")
}

/// A member that is a text.
pub fn text<'a>(value: &'a Value, member: &str) -> &'a str {
    let text = value[member].as_str();
    text.unwrap_or_else(|| panic!("no text {member:?} in {value}"))
}

/// A member that is a whole number, 0 at least.
pub fn count(value: &Value, member: &str) -> u64 {
    let count = value[member].as_u64();
    count.unwrap_or_else(|| panic!("no count {member:?} in {value}"))
}

/// A member that is a number.
pub fn number(value: &Value, member: &str) -> f64 {
    let number = value[member].as_f64();
    number.unwrap_or_else(|| panic!("no number {member:?} in {value}"))
}

/// Checks that these members are numbers above 0.
pub fn check_positive(value: &Value, members: &[&str]) {
    for member in members {
        assert!(number(value, member) > 0.0, "{member:?} in {value}");
    }
}

/// Checks that these members are numbers, none of them larger than the one after it.
pub fn check_rising(value: &Value, members: &[&str]) {
    let numbers: Vec<_> = members.iter().map(|name| number(value, name)).collect();
    assert!(numbers.is_sorted(), "{members:?} in {value}");
}

/// Checks that all members of `expected` are there with their values; there may be others.
pub fn check_members(value: &Value, expected: &Value) {
    let members = expected.as_object().expect("an object");
    for (member, expected) in members {
        assert_eq!(value.get(member), Some(expected), "{member:?} in {value}");
    }
}
