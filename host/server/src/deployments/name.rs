//! The name of a deployment.

use std::fmt;
use std::str::FromStr;

/// Longest name, in bytes.
const MAX_LENGTH: usize = 63;

/// A deployment's name: lower-case letters, digits and `-`, 1 to 63 of them, and no `-` at either end.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeploymentName(String);

impl DeploymentName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DeploymentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The text is not a valid name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{}' is not a valid name of a deployment; use 1 to {MAX_LENGTH} lower-case letters, digits and '-', with no '-' at either end",
    .0.escape_debug()
)]
pub struct DeploymentNameError(String);

impl FromStr for DeploymentName {
    type Err = DeploymentNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let valid = (1..=MAX_LENGTH).contains(&text.len())
            && text.chars().all(fits)
            && !text.starts_with('-')
            && !text.ends_with('-');
        if valid {
            Ok(DeploymentName(text.to_owned()))
        } else {
            Err(DeploymentNameError(
                text.chars().take(2 * MAX_LENGTH).collect(),
            ))
        }
    }
}

corral_runtime::serde_as_text!(DeploymentName);

#[cfg(test)]
impl schemars::JsonSchema for DeploymentName {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "DeploymentName".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_lower_case() {
        for good in ["a", "chat", "chat-2", "7", &"a".repeat(63)] {
            assert_eq!(good.parse::<DeploymentName>().expect(good).as_str(), good);
        }
        for bad in [
            "",
            "Chat",
            "a b",
            "-a",
            "a-",
            "é",
            "a/b",
            "..",
            &"a".repeat(64),
        ] {
            let error = bad.parse::<DeploymentName>().expect_err(bad).to_string();
            assert!(error.contains("lower-case letters"), "{bad}: {error}");
        }
    }
}
