//! Why a manifest is invalid.

/// Why a manifest is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// It is not TOML, or not a manifest.
    #[error("line {line}, column {column}: {message}")]
    Syntax {
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// What is wrong, and what was expected.
        message: String,
    },
    /// A field is invalid.
    #[error("the field '{field}' {problem}")]
    Field {
        /// Path of the field.
        field: String,
        /// What is wrong with it, and what to do.
        problem: String,
    },
}

impl ManifestError {
    pub(crate) fn field(field: impl Into<String>, problem: impl Into<String>) -> Self {
        ManifestError::Field {
            field: field.into(),
            problem: problem.into(),
        }
    }

    /// Refuses a field of more than `max` entries.
    pub(crate) fn check_count(field: &str, count: usize, max: usize) -> Result<(), Self> {
        match count > max {
            true => Err(ManifestError::field(
                field,
                format!("has {count} entries; at most {max} are allowed"),
            )),
            false => Ok(()),
        }
    }
}
