//! `--linked`: linked components given on the command line instead of in a corral.toml.

use crate::Error;
use corral_server::deployments::check_sampler_name;
use std::collections::HashSet;
use std::path::PathBuf;
use std::str::FromStr;

/// `templating=FILE` or `sampling.NAME=FILE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LinkedArg {
    /// The name of a sampling component; nothing for templating.
    pub(crate) sampler: Option<String>,
    pub(crate) file: PathBuf,
}

impl FromStr for LinkedArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read = || {
            let (role, file) = text.split_once('=').filter(|(_, file)| !file.is_empty())?;
            let sampler = match role {
                "templating" => None,
                _ => Some(role.strip_prefix("sampling.")?.to_owned()),
            };
            Some((sampler, file.into()))
        };
        let (sampler, file) =
            read().ok_or_else(|| "write templating=FILE or sampling.NAME=FILE".to_owned())?;
        if let Some(name) = &sampler {
            check_sampler_name(name).map_err(|problem| format!("'{name}' {problem}"))?;
        }
        Ok(LinkedArg { sampler, file })
    }
}

/// Appended to the error that a linked component is missing.
pub(crate) const LINKED_HINT: &str =
    "; or on this command line: --linked templating=FILE or --linked sampling.NAME=FILE";

/// Refuses two arguments for one role.
pub(crate) fn check_linked(linked: &[LinkedArg]) -> Result<(), Error> {
    let mut seen = HashSet::new();
    let Some(repeated) = linked.iter().find(|arg| !seen.insert(&arg.sampler)) else {
        return Ok(());
    };
    let role = match &repeated.sampler {
        Some(name) => format!("sampling.{name}"),
        None => "templating".to_owned(),
    };
    Err(Error::usage(format!(
        "--linked names {role} twice; remove one of them"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linked_components_parse() {
        let linked = |text: &str| text.parse::<LinkedArg>().expect(text);
        let file = linked("templating=a=b.wasm").file;
        assert_eq!(file, PathBuf::from("a=b.wasm"));
        let sampler = linked("sampling.min-p=x/m.wasm");
        assert_eq!(sampler.sampler.as_deref(), Some("min-p"));
        for bad in ["templating", "templating=", "min-p=a.wasm", "=a", ""] {
            assert!(bad.parse::<LinkedArg>().is_err(), "{bad}");
        }
        for bad in ["A", "", "a.b", &"x".repeat(65)] {
            let error = format!("sampling.{bad}=a.wasm").parse::<LinkedArg>();
            assert!(error.expect_err(bad).contains("sampler"), "{bad}");
        }
        let (template, other) = (linked("templating=a"), linked("sampling.b=a"));
        let distinct = [template.clone(), other.clone(), sampler];
        assert!(check_linked(&distinct).is_ok());
        let error = check_linked(&[other.clone(), template, other]);
        let message = error.expect_err("two for one role").message(false);
        assert!(message.contains("names sampling.b twice"), "{message}");
    }
}
