//! Checks of the errors for a request's fields.

use serde_json::Value;

use crate::Error;

/// Checks that `read` rejects each input of a table with lines `INPUT => FIELD: DETAIL`.
pub fn check_field_errors<T>(table: &str, read: impl Fn(Value) -> Result<T, Error>) {
    for line in table.trim().lines() {
        let (input, error) = line.split_once(" => ").unwrap();
        let (field, detail) = error.split_once(": ").unwrap();
        let error = read(serde_json::from_str(input).unwrap()).err().unwrap();
        assert_eq!(
            (error.status(), error.field()),
            (400, Some(field)),
            "{line}"
        );
        assert!(error.to_string().contains(detail), "{line}: {error}");
    }
}
