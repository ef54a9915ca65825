//! `--linked`: linked components given on the command line instead of in a corral.toml.

use corral_server::deployments::check_sampler_name;
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

/// The role that two arguments name, if any.
pub(crate) fn find_duplicate(linked: &[LinkedArg]) -> Option<String> {
    let duplicate = linked.iter().enumerate().find(|(index, arg)| {
        let mut earlier = linked.iter().take(*index);
        earlier.any(|earlier| earlier.sampler == arg.sampler)
    });
    duplicate.map(|(_, arg)| match &arg.sampler {
        Some(name) => format!("sampling.{name}"),
        None => "templating".to_owned(),
    })
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
        assert_eq!(find_duplicate(&distinct), None);
        let duplicate = find_duplicate(&[other.clone(), template, other]);
        assert_eq!(duplicate.as_deref(), Some("sampling.b"));
    }
}
