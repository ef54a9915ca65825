//! Checks of the errors for a request's fields.

use serde_json::Value;

use crate::Error;
use crate::fields::ignored;

/// Checks that `read` rejects each input of a table with lines `INPUT => FIELD: DETAIL`, whether the
/// request is strict or not.
pub fn check_field_errors<T>(table: &str, read: impl Fn(Value) -> Result<T, Error>) {
    for strict in [true, false] {
        for line in table.trim().lines() {
            check_error(line, strict, &read);
        }
    }
}

/// Checks that `read` rejects each input of such a table if the request is strict, and otherwise adds
/// FIELD to [`ignored`].
pub fn check_ignored_fields<T>(table: &str, read: impl Fn(Value) -> Result<T, Error>) {
    for line in table.trim().lines() {
        let field = check_error(line, true, &read);
        ignored::begin(false);
        let (input, _) = line.split_once(" => ").unwrap();
        let error = read(serde_json::from_str(input).unwrap()).err();
        let names = ignored::header_value().unwrap_or_default();
        assert_eq!(error, None, "{line}");
        ignored::begin(false);
        ignored::add(field);
        assert_eq!(Some(names), ignored::header_value(), "{line}");
    }
}

/// Returns the error's field.
fn check_error<'a, T>(
    line: &'a str,
    strict: bool,
    read: &impl Fn(Value) -> Result<T, Error>,
) -> &'a str {
    ignored::begin(strict);
    let (input, error) = line.split_once(" => ").unwrap();
    let (field, detail) = error.split_once(": ").unwrap();
    let result = read(serde_json::from_str(input).unwrap());
    let error = result.err().unwrap_or_else(|| panic!("no error: {line}"));
    assert_eq!(error.status(), 400, "{line}");
    assert_eq!(error.field(), Some(field), "{line}");
    assert!(error.to_string().contains(detail), "{line}: {error}");
    field
}
