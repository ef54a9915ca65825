//! `hf:ORG/REPO[:QUANT|/FILE]`, and which files of a repository it means.

use corral_engine::split_files;
use std::collections::HashSet;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

const SCHEME: &str = "hf:";
const EXPECTED: &str = "write hf:ORG/REPO, hf:ORG/REPO:QUANT or hf:ORG/REPO/FILE.gguf";
/// Longest name of an organization, a repository, a quantization or a part of a path.
const MAX_NAME_BYTES: usize = 128;
/// Quantizations from the best default on: four bits first, then smaller losses, then smaller files.
const DEFAULT_QUANTS: [&str; 17] = [
    "Q4_K_M", "Q4_K_S", "MXFP4", "IQ4_XS", "IQ4_NL", "Q4_0", "Q4_1", "Q5_K_M", "Q5_K_S", "Q5_0",
    "Q6_K", "Q8_0", "Q3_K_M", "Q3_K_L", "BF16", "F16", "F32",
];
/// Texts in the names of files that are no models by themselves: image encoders, importance matrices.
const OTHER_FILES: [&str; 2] = ["mmproj", "imatrix"];

/// A model in a repository of a hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubReference {
    /// `ORG/REPO`.
    pub repo: String,
    pub choice: FileChoice,
}

/// Which of the repository's models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileChoice {
    /// The first of [`DEFAULT_QUANTS`] that there is, or the only model.
    Default,
    /// The one whose name contains this text, in any case.
    Quant(String),
    /// This file, or the split model that it is a part of.
    File(String),
}

impl FromStr for HubReference {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::parse(text)
            .ok_or_else(|| format!("'{}' is no model; {EXPECTED}", text.escape_debug()))
    }
}

impl fmt::Display for HubReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.choice {
            FileChoice::Default => write!(f, "{SCHEME}{}", self.repo),
            FileChoice::Quant(quant) => write!(f, "{SCHEME}{}:{quant}", self.repo),
            FileChoice::File(file) => write!(f, "{SCHEME}{}/{file}", self.repo),
        }
    }
}

impl HubReference {
    /// The reference in a model argument; nothing if the argument is a path. An error for other schemes.
    pub fn parse_model(text: &str) -> Result<Option<Self>, String> {
        if text.starts_with(SCHEME) {
            return text.parse().map(Some);
        }
        match text.split_once("://") {
            Some((scheme, _)) => Err(format!(
                "'{}' is not a known scheme; {EXPECTED}, or the path of a GGUF file",
                scheme.escape_debug()
            )),
            None => Ok(None),
        }
    }

    /// The reference to one file.
    pub fn of_file(repo: &str, file: &str) -> Self {
        Self {
            repo: repo.to_owned(),
            choice: FileChoice::File(file.to_owned()),
        }
    }

    /// A name for plugins: that of the file, or of the repository without `-GGUF`.
    pub fn model_name(&self) -> &str {
        match &self.choice {
            FileChoice::File(file) => {
                let stem = Path::new(file).file_stem().and_then(|stem| stem.to_str());
                stem.unwrap_or(file)
            }
            _ => {
                let (_, repo) = self.repo.split_once('/').unwrap_or(("", &self.repo));
                let ending = repo.len().saturating_sub("-GGUF".len());
                match repo.split_at_checked(ending) {
                    Some((name, "-GGUF" | "-gguf")) if !name.is_empty() => name,
                    _ => repo,
                }
            }
        }
    }

    /// The files to use of those in the repository, the one to load first; nothing if none fits.
    pub fn choose(&self, names: &[String]) -> Option<Vec<String>> {
        let all = models(names);
        if let FileChoice::File(file) = &self.choice {
            return all.into_iter().find(|files| files.contains(file));
        }
        let is_model = |files: &Vec<String>| {
            let name = files[0].to_lowercase();
            !OTHER_FILES.iter().any(|other| name.contains(other))
        };
        let all: Vec<_> = all.into_iter().filter(is_model).collect();
        // The shortest name has the fewest other words.
        let shortest = |fits: &dyn Fn(&str) -> bool| {
            let fitting = all.iter().filter(|files| fits(&files[0]));
            fitting.min_by_key(|files| (files[0].len(), &files[0]))
        };
        let chosen = match &self.choice {
            FileChoice::Quant(quant) => shortest(&|name| contains_word(name, quant))
                .or_else(|| shortest(&|name| name.to_lowercase().contains(&quant.to_lowercase()))),
            _ => DEFAULT_QUANTS
                .iter()
                .find_map(|quant| shortest(&|name| contains_word(name, quant)))
                .or(match &all[..] {
                    [only] => Some(only),
                    _ => None,
                }),
        };
        chosen.cloned()
    }

    fn parse(text: &str) -> Option<Self> {
        let (org, rest) = text.strip_prefix(SCHEME)?.split_once('/')?;
        let (repo, choice) = match rest.find([':', '/']) {
            None => (rest, FileChoice::Default),
            Some(at) => {
                let (repo, rest) = rest.split_at(at);
                let choice = match rest.strip_prefix(':') {
                    Some(quant) if is_plain(quant) => FileChoice::Quant(quant.to_owned()),
                    Some(_) => return None,
                    None => {
                        let file = &rest[1..];
                        let fits = is_safe_path(file) && file.ends_with(".gguf");
                        FileChoice::File(Some(file).filter(|_| fits)?.to_owned())
                    }
                };
                (repo, choice)
            }
        };
        let repo = (is_plain(org) && is_plain(repo)).then(|| format!("{org}/{repo}"))?;
        Some(Self { repo, choice })
    }
}

/// The complete models among the files of a repository: each with its files, the one to load first.
pub fn models(names: &[String]) -> Vec<Vec<String>> {
    let known: HashSet<_> = names.iter().map(String::as_str).collect();
    let is_model = |name: &&String| name.ends_with(".gguf") && !is_later_part(name);
    let parts = |name: &String| {
        let parts = split_files(Path::new(name)).into_iter();
        parts
            .filter_map(|part| part.into_os_string().into_string().ok())
            .collect::<Vec<_>>()
    };
    let models = names.iter().filter(is_model).map(parts);
    models
        .filter(|parts| parts.iter().all(|part| known.contains(part.as_str())))
        .collect()
}

/// Whether a relative path stays in its directory and names no hidden file. Paths come from servers, too.
pub fn is_safe_path(path: &str) -> bool {
    let is_safe = |part: &str| {
        (1..=MAX_NAME_BYTES).contains(&part.len())
            && !part.starts_with('.')
            && !part.contains(|c: char| c.is_control() || c == '\\')
    };
    path.split('/').all(is_safe)
}

fn is_plain(name: &str) -> bool {
    is_safe_path(name)
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

/// Whether a file is a part of a split model, but not the first.
fn is_later_part(name: &str) -> bool {
    let number = || {
        let (first, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
        let (_, number) = first.rsplit_once('-')?;
        (number.len() == 5 && count.len() == 5).then_some(number)?;
        number.parse::<u32>().ok()
    };
    number().is_some_and(|number| number > 1)
}

/// Whether `name` contains `word` in any case, between characters that are no part of a quantization's name.
fn contains_word(name: &str, word: &str) -> bool {
    let (name, word) = (name.to_lowercase(), word.to_lowercase());
    let continues = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    name.match_indices(&word).any(|(at, _)| {
        !continues(name[..at].chars().next_back())
            && !continues(name[at + word.len()..].chars().next())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(reference: &str, names: &[&str]) -> Option<Vec<String>> {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let reference: HubReference = reference.parse().expect(reference);
        reference.choose(&names)
    }

    #[test]
    fn references_are_printed_as_written() {
        for (text, name) in [
            ("hf:a/b", "b"),
            ("hf:Qwen/Qwen3-0.6B-GGUF:Q8_0", "Qwen3-0.6B"),
            ("hf:a/b-gguf/dir/c-Q4_0.gguf", "c-Q4_0"),
        ] {
            let reference: HubReference = text.parse().expect(text);
            assert_eq!(reference.to_string(), text);
            assert_eq!(reference.model_name(), name);
        }
        for text in [
            "hf:",
            "hf:a",
            "hf:a/",
            "hf:/b",
            "hf:a/b:",
            "hf:a/b/",
            "hf:a/b/c",
            "hf:a/..",
            "hf:a b/c",
            "hf:a/b/../c.gguf",
            "hf:a/b/.c.gguf",
            "hf:a/b:Q4/x",
            "hf:a/b//c.gguf",
            "hf://a/b",
            "x",
        ] {
            let error = text.parse::<HubReference>().expect_err(text);
            assert!(error.contains("write hf:ORG/REPO"), "{error}");
        }
    }

    #[test]
    fn quant_is_matched_as_word_first() {
        let names = [
            "m-Q4_K_M_L.gguf",
            "m-Q4_K_M.gguf",
            "m-Q8_0.gguf",
            "m-bf16.gguf",
            "m-F16.gguf",
        ];
        for (reference, expected) in [
            ("hf:a/b:q4_k_m", Some("m-Q4_K_M.gguf")),
            ("hf:a/b:Q4_K_M_L", Some("m-Q4_K_M_L.gguf")),
            ("hf:a/b:Q8", Some("m-Q8_0.gguf")),
            ("hf:a/b:f16", Some("m-F16.gguf")),
            ("hf:a/b:Q2_K", None),
            ("hf:a/b/m-bf16.gguf", Some("m-bf16.gguf")),
            ("hf:a/b/m.gguf", None),
            ("hf:a/b", Some("m-Q4_K_M.gguf")),
        ] {
            let chosen = choose(reference, &names).map(|mut files| files.remove(0));
            assert_eq!(chosen.as_deref(), expected, "{reference}");
        }
    }

    #[test]
    fn default_is_listed_quant_or_only_model() {
        let first = |names: &[&str]| choose("hf:a/b", names).map(|mut files| files.remove(0));
        let chosen = first(&["m-F16.gguf", "m-Q8_0.gguf", "mmproj-m-Q4_K_M.gguf"]);
        assert_eq!(chosen.as_deref(), Some("m-Q8_0.gguf"));
        let chosen = first(&["README.md", "m.gguf", "imatrix.gguf"]);
        assert_eq!(chosen.as_deref(), Some("m.gguf"));
        assert_eq!(first(&["a.gguf", "b.gguf"]), None);
        assert_eq!(first(&["README.md"]), None);
    }

    #[test]
    fn split_models_are_complete_or_absent() {
        let part = |number| format!("q/m-Q4_0-{number:05}-of-00002.gguf");
        let (one, two) = (part(1), part(2));
        let both = Some(vec![one.clone(), two.clone()]);
        assert_eq!(choose("hf:a/b", &[&two, &one]), both);
        assert_eq!(choose(&format!("hf:a/b/{two}"), &[&two, &one]), both);
        assert_eq!(choose("hf:a/b", &[&one]), None);
        assert_eq!(choose("hf:a/b", &[&two]), None);
    }
}
