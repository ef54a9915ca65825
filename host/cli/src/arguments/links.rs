//! `--link`: what a component is linked with, where no corral.toml says it.

use corral_server::deployments::check_sampler;
use std::path::PathBuf;
use std::str::FromStr;

/// `templating=FILE` or `sampling.NAME=FILE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LinkArgument {
    /// The name of a sampler; nothing for a template.
    pub(crate) sampler: Option<String>,
    pub(crate) file: PathBuf,
}

impl FromStr for LinkArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read = || {
            let (link, file) = text.split_once('=').filter(|(_, file)| !file.is_empty())?;
            let sampler = match link {
                "templating" => None,
                _ => Some(link.strip_prefix("sampling.")?.to_owned()),
            };
            Some((sampler, file.into()))
        };
        let (sampler, file) =
            read().ok_or_else(|| "write templating=FILE or sampling.NAME=FILE".to_owned())?;
        if let Some(name) = &sampler {
            check_sampler(name).map_err(|problem| format!("'{name}' {problem}"))?;
        }
        Ok(LinkArgument { sampler, file })
    }
}

/// For who is told that a link is missing, where this option is there.
pub(crate) const ADVICE: &str =
    "; or on this command line: --link templating=FILE or --link sampling.NAME=FILE";

/// A link that is given twice, if one is.
pub(crate) fn twice(links: &[LinkArgument]) -> Option<String> {
    let same = |(place, link): (usize, &LinkArgument)| {
        let before = links.get(..place).unwrap_or_default();
        let twice = before.iter().any(|before| before.sampler == link.sampler);
        twice.then(|| match &link.sampler {
            Some(name) => format!("sampling.{name}"),
            None => "templating".to_owned(),
        })
    };
    links.iter().enumerate().find_map(same)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_read() {
        let link = |text: &str| text.parse::<LinkArgument>().expect(text);
        assert_eq!(link("templating=a=b.wasm").file, PathBuf::from("a=b.wasm"));
        let sampler = link("sampling.min-p=x/m.wasm");
        assert_eq!(sampler.sampler.as_deref(), Some("min-p"));
        for bad in ["templating", "templating=", "min-p=a.wasm", "=a", ""] {
            assert!(bad.parse::<LinkArgument>().is_err(), "{bad}");
        }
        for bad in ["A", "", "a.b", &"x".repeat(65)] {
            let error = format!("sampling.{bad}=a.wasm").parse::<LinkArgument>();
            let error = error.expect_err(bad);
            assert!(
                error.contains("no name for a sampler; use 1 to 64"),
                "{error}"
            );
        }
        let (template, other) = (link("templating=a"), link("sampling.b=a"));
        assert_eq!(twice(&[template.clone(), other.clone(), sampler]), None);
        let again = twice(&[other.clone(), template, other]);
        assert_eq!(again.as_deref(), Some("sampling.b"));
    }
}
