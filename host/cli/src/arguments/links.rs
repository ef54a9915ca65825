//! `--link`: what a component is linked with, where no corral.toml says it.

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
            Some(LinkArgument {
                sampler,
                file: file.into(),
            })
        };
        read().ok_or_else(|| "write templating=FILE or sampling.NAME=FILE".to_owned())
    }
}

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
        let (template, other) = (link("templating=a"), link("sampling.b=a"));
        assert_eq!(twice(&[template.clone(), other.clone(), sampler]), None);
        let again = twice(&[other.clone(), template, other]);
        assert_eq!(again.as_deref(), Some("sampling.b"));
    }
}
