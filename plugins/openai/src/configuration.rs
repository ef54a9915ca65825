//! The deployment's configuration of this plugin: `[configuration]` in `corral.toml`.

use corral_sdk::Error;

/// The configuration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Configuration {
    /// Whether to refuse request members that have no effect, instead of naming them in the response.
    pub strict: bool,
}

impl Configuration {
    /// Reads the environment variables of the deployment.
    pub fn from_environment() -> Result<Self, Error> {
        Self::read(|name| std::env::var(name).ok())
    }

    fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let strict = match variable("strict").as_deref() {
            None | Some("false") => false,
            Some("true") => true,
            Some(other) => {
                let text = format!(
                    "the deployment's configuration has strict = {other:?}; expected \"true\" or \"false\""
                );
                return Err(Error::Failed(text));
            }
        };
        Ok(Configuration { strict })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strict_is_true_or_false() {
        let read = |value: Option<&str>| Configuration::read(|_| value.map(str::to_owned));
        assert_eq!(read(None), Ok(Configuration { strict: false }));
        assert_eq!(read(Some("false")), read(None));
        assert_eq!(read(Some("true")), Ok(Configuration { strict: true }));
        let error = read(Some("yes")).unwrap_err();
        assert_eq!(error.status(), 500);
        assert!(error.to_string().contains("strict = \"yes\""), "{error}");
    }
}
