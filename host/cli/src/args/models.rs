//! Arguments for models, shared by `serve` and `run`.

use super::devices::DeviceArgs;
use super::memory::MemoryArgs;
use super::model_pool::ModelPoolArgs;
use super::parsers::whole;
use crate::Error;
use crate::model::{self, HubReference};
use clap::Args;
use corral_engine::{DeviceTopKMode, Overlap};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::str::FromStr;

#[derive(Args, Debug)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// GGUF file, or hf:ORG/REPO[:QUANT|/FILE] of a hub; NAME is for plugins; repeatable, the first is the default
    #[arg(long = "model", value_name = "[NAME=]FILE", required = true)]
    pub models: Vec<ModelArg>,
    /// LoRA adapter in a GGUF file, of the first model unless named; repeatable, up to 16 for a model
    #[arg(long = "adapter", value_name = "[MODEL:]NAME=FILE")]
    pub adapters: Vec<AdapterArg>,
    /// Projector file (mmproj) for images or audio, of the first model unless named; repeatable
    #[arg(long = "mmproj", value_name = "[MODEL=]FILE")]
    pub projectors: Vec<ModelFileArg>,
    /// GGUF file of a smaller model of the same family, which drafts tokens for the first model unless one is named
    #[arg(long = "draft", value_name = "[MODEL=]FILE")]
    pub drafts: Vec<ModelFileArg>,
    /// Map model files instead of reading them; a file that shrinks while it is served then ends the process
    #[arg(long, help_heading = "Memory")]
    pub mmap: bool,
    /// Most tokens of a sequence [default: the model's training context, at most 8192]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub context: Option<u32>,
    #[command(flatten)]
    pub pool: ModelPoolArgs,
    #[command(flatten)]
    pub memory: MemoryArgs,
    #[command(flatten)]
    pub devices: DeviceArgs,
    /// Most compute threads of each model [default: one for each core]
    #[arg(long, value_name = "N", help_heading = "Devices", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// Compute with fewer threads while other threads keep the cores busy; auto: where results stay the same
    #[arg(long, value_name = "auto|off", default_value = "auto", help_heading = "Advanced",
          value_parser = parse_adaptive_threads, action = clap::ArgAction::Set)]
    pub adaptive_threads: bool,
    /// How many of the likeliest tokens the device selects and copies, not all logits; auto: on GPUs
    #[arg(long, value_name = "auto|off|K", default_value = "off", help_heading = "Advanced",
          value_parser = parse_device_top_k)]
    pub device_top_k: DeviceTopKMode,
    /// Prefill while tokens are sampled; auto: if a GPU computes all layers and it saves time
    #[arg(long, value_name = "auto|off", default_value = "auto", help_heading = "Advanced",
          value_parser = parse_overlap)]
    pub overlap: Overlap,
    /// Threads for plugins and connections [default: a quarter of the cores, from 2 to 16]
    #[arg(long, value_name = "N", help_heading = "Advanced", value_parser = whole(1..=1024))]
    pub workers: Option<u64>,
    /// Directory for compiled plugins [default: corral/plugins in the user's cache]
    #[arg(long, value_name = "DIR", help_heading = "Advanced")]
    pub cache_dir: Option<PathBuf>,
}

impl ModelArgs {
    /// Finds errors that need no file access.
    pub(super) fn check(&self) -> Result<(), Error> {
        self.memory.check()?;
        let mut names = HashSet::new();
        for model in &self.models {
            if !names.insert(&model.name) {
                return Err(Error::usage(format!(
                    "two models are named '{}'; rename one: --model NAME={}",
                    model.name,
                    model.file.display()
                )));
            }
        }
        for adapter in &self.adapters {
            let model = adapter.model.as_ref();
            if let Some(model) = model.filter(|model| !names.contains(model)) {
                return Err(Error::usage(format!(
                    "--adapter names the model '{model}', which no --model has"
                )));
            }
        }
        self.check_files("--mmproj", "projectors", &self.projectors)?;
        self.check_files("--draft", "draft models", &self.drafts)?;
        let is_known = |model: &str| self.models.iter().any(|one| one.name == model);
        self.devices.check(is_known)
    }

    /// Finds the cached files of models from a hub, and downloads those that are missing.
    pub(crate) fn fetch(&mut self, note: impl Fn(String)) -> Result<(), Error> {
        for model in &mut self.models {
            if let Some(hub) = model.hub.take() {
                model.file = model::fetch(&hub, &note)?;
            }
        }
        Ok(())
    }

    /// The projector file of the model at this index.
    pub(crate) fn projector_of(&self, index: usize) -> Option<PathBuf> {
        self.file_of(index, &self.projectors)
    }

    /// The file of the draft model of the model at this index.
    pub(crate) fn draft_of(&self, index: usize) -> Option<PathBuf> {
        self.file_of(index, &self.drafts)
    }

    fn file_of(&self, index: usize, files: &[ModelFileArg]) -> Option<PathBuf> {
        let name = &self.models.get(index)?.name;
        let own = files.iter().find(|file| self.model_of(file) == name)?;
        Some(own.file.clone())
    }

    /// The name of the model that a file is for.
    fn model_of<'a>(&'a self, file: &'a ModelFileArg) -> &'a str {
        let first = self.models.first().map(|model| model.name.as_str());
        file.model.as_deref().or(first).unwrap_or_default()
    }

    /// Refuses files for models that are not there, and two for one model.
    fn check_files(&self, option: &str, what: &str, files: &[ModelFileArg]) -> Result<(), Error> {
        for (index, file) in files.iter().enumerate() {
            let model = self.model_of(file);
            if !self.models.iter().any(|one| one.name == model) {
                return Err(Error::usage(format!(
                    "{option} names the model '{model}', which no --model has"
                )));
            }
            if files[..index]
                .iter()
                .any(|other| self.model_of(other) == model)
            {
                return Err(Error::usage(format!(
                    "the model '{model}' has two {what}; give one {option} MODEL=FILE for each model"
                )));
            }
        }
        Ok(())
    }

    /// Names and files of the adapters of the model at this index.
    pub(crate) fn adapters_of(&self, index: usize) -> Vec<(String, PathBuf)> {
        let name = self.models.get(index).map(|model| &model.name);
        let own = |adapter: &&AdapterArg| match &adapter.model {
            None => index == 0,
            model => model.as_ref() == name,
        };
        let own = self.adapters.iter().filter(own);
        own.map(|adapter| (adapter.name.clone(), adapter.file.clone()))
            .collect()
    }
}

fn parse_device_top_k(text: &str) -> Result<DeviceTopKMode, String> {
    match (text, text.parse::<u32>()) {
        ("auto", _) => Ok(DeviceTopKMode::Auto),
        ("off", _) => Ok(DeviceTopKMode::Off),
        (_, Ok(k @ 2..=65_536)) => Ok(DeviceTopKMode::On { k }),
        _ => Err("write auto, off or a number from 2 to 65536".to_owned()),
    }
}

fn parse_adaptive_threads(text: &str) -> Result<bool, String> {
    match text {
        "auto" => Ok(true),
        "off" => Ok(false),
        _ => Err("write auto or off".to_owned()),
    }
}

fn parse_overlap(text: &str) -> Result<Overlap, String> {
    match text {
        "auto" => Ok(Overlap::Auto),
        "off" => Ok(Overlap::Off),
        _ => Err("write auto or off".to_owned()),
    }
}

/// `[NAME=]FILE`, where FILE may be a [`HubReference`]. The text before the first `=` is a name unless it contains a
/// slash, so a file whose name contains `=` is written `./a=b.gguf`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelArg {
    pub name: String,
    /// As written, until [`ModelArgs::fetch`] replaces what is from a hub.
    pub file: PathBuf,
    /// Where the file comes from, until it is fetched.
    pub(crate) hub: Option<HubReference>,
}

impl FromStr for ModelArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = text
            .split_once('=')
            .filter(|(name, _)| !name.contains(['/', '\\']));
        let (name, file) = match named {
            Some(("", _)) => return Err("the name is empty; write NAME=FILE or FILE".to_owned()),
            Some((name, file)) => (Some(name), file),
            None => (None, text),
        };
        if file.is_empty() {
            return Err("there is no file; write NAME=FILE or FILE".to_owned());
        }
        let hub = HubReference::parse_model(file)?;
        let stem = Path::new(file).file_stem().and_then(|stem| stem.to_str());
        let stem = hub.as_ref().map(HubReference::model_name).or(stem);
        let name = name.or(stem).unwrap_or_default();
        if !is_name(name) {
            return Err(format!(
                "'{}' is not a valid model name; write NAME=FILE with a short NAME",
                name.escape_debug()
            ));
        }
        Ok(ModelArg {
            name: name.to_owned(),
            file: PathBuf::from(file),
            hub,
        })
    }
}

/// `[MODEL:]NAME=FILE`. The name of an adapter contains no colon, so the last colon before the first `=` ends the
/// name of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterArg {
    /// Nothing for the first model.
    pub model: Option<String>,
    pub name: String,
    pub file: PathBuf,
}

impl FromStr for AdapterArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = "write NAME=FILE or MODEL:NAME=FILE, e.g. polite=polite.gguf";
        let (names, file) = text
            .split_once('=')
            .filter(|(_, file)| !file.is_empty())
            .ok_or_else(|| format!("the name or the file is missing; {expected}"))?;
        let (model, name) = match names.rsplit_once(':') {
            Some((model, name)) => (Some(model.to_owned()), name),
            None => (None, names),
        };
        if !is_name(name) {
            let name = name.escape_debug();
            return Err(format!("'{name}' is not a valid adapter name; {expected}"));
        }
        Ok(AdapterArg {
            model,
            name: name.to_owned(),
            file: PathBuf::from(file),
        })
    }
}

/// `[MODEL=]FILE`. The text before the first `=` is a model's name unless it contains a slash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFileArg {
    /// Nothing for the first model.
    pub model: Option<String>,
    pub file: PathBuf,
}

impl FromStr for ModelFileArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = text
            .split_once('=')
            .filter(|(name, _)| !name.contains(['/', '\\']));
        let (model, file) = match named {
            Some((name, file)) => (Some(name), file),
            None => (None, text),
        };
        if file.is_empty() || model.is_some_and(|name| !is_name(name)) {
            return Err("the model or the file is missing; write FILE or MODEL=FILE".to_owned());
        }
        if file.starts_with("hf:") {
            return Err(
                "it must be a file; download it with `corral model pull`, which prints its path"
                    .to_owned(),
            );
        }
        Ok(ModelFileArg {
            model: model.map(str::to_owned),
            file: PathBuf::from(file),
        })
    }
}

fn is_name(name: &str) -> bool {
    (1..=128).contains(&name.len()) && !name.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::tests::parse_serve;

    #[test]
    fn adapters_default_to_first_model() {
        let serve = parse_serve(
            "--model a=1 --model b:c=2 --adapter x=3 --adapter b:c:y=4 --adapter a:z=k=5",
        )
        .expect("valid arguments");
        let adapter = |name: &str, file: &str| (name.to_owned(), PathBuf::from(file));
        let first = [adapter("x", "3"), adapter("z", "k=5")];
        assert_eq!(serve.models.adapters_of(0), first);
        assert_eq!(serve.models.adapters_of(1), [adapter("y", "4")]);
        for (wrong, expected) in [
            ("x", "name or the file is missing"),
            ("x=", "name or the file is missing"),
            ("=x", "not a valid adapter name"),
            ("a:=x", "not a valid adapter name"),
            ("q:x=3", "'q'"),
        ] {
            let line = format!("--model a=1 --adapter {wrong}");
            let error = parse_serve(&line).expect_err(wrong);
            assert!(error.contains(expected), "{wrong}: {error}");
        }
    }

    #[test]
    fn files_are_for_first_model_unless_named() {
        for (option, two) in [
            ("--draft", "two draft models"),
            ("--mmproj", "two projectors"),
        ] {
            let line = format!("--model a=1 --model b=2 {option} ./c=3 {option} b=x=4");
            let models = parse_serve(&line).expect("valid").models;
            let files = [0, 1, 2].map(|index| match option {
                "--draft" => models.draft_of(index),
                _ => models.projector_of(index),
            });
            assert_eq!(files, [Some("./c=3".into()), Some("x=4".into()), None]);
            for (wrong, expected) in [
                ("=x".to_owned(), "write FILE or MODEL=FILE"),
                ("a=".to_owned(), "write FILE or MODEL=FILE"),
                ("q=x".to_owned(), "'q'"),
                (format!("x {option} a=y"), two),
                ("a=hf:org/repo".to_owned(), "corral model pull"),
            ] {
                let line = format!("--model a=1 {option} {wrong}");
                let error = parse_serve(&line).expect_err(&line);
                assert!(error.contains(expected), "{line}: {error}");
            }
        }
    }

    #[test]
    fn device_top_k_is_number_or_mode() {
        let top_k = |option: &str| {
            parse_serve(&format!("--model a{option}"))
                .expect(option)
                .models
                .device_top_k
        };
        assert_eq!(top_k(""), DeviceTopKMode::Off);
        assert_eq!(top_k(" --device-top-k auto"), DeviceTopKMode::Auto);
        assert_eq!(top_k(" --device-top-k off"), DeviceTopKMode::Off);
        let on = DeviceTopKMode::On { k: 64 };
        assert_eq!(top_k(" --device-top-k 64"), on);
        for wrong in ["1", "65537", "on", "-3"] {
            let line = format!("--model a --device-top-k={wrong}");
            let error = parse_serve(&line).expect_err(wrong);
            assert!(error.contains("write auto, off or a number"), "{error}");
        }
    }

    #[test]
    fn adaptive_threads_are_auto_or_off() {
        let adaptive = |option: &str| parse_serve(&format!("--model a{option}"));
        let adaptive = |option: &str| adaptive(option).map(|serve| serve.models.adaptive_threads);
        assert_eq!(adaptive("").ok(), Some(true));
        assert_eq!(adaptive(" --adaptive-threads auto").ok(), Some(true));
        assert_eq!(adaptive(" --adaptive-threads off").ok(), Some(false));
        let error = adaptive(" --adaptive-threads 3").expect_err("3");
        assert!(error.contains("write auto or off"), "{error}");
    }

    #[test]
    fn overlap_is_auto_or_off() {
        let overlap = |option: &str| {
            parse_serve(&format!("--model a{option}"))
                .expect(option)
                .models
                .overlap
        };
        assert_eq!(overlap(""), Overlap::Auto);
        assert_eq!(overlap(" --overlap auto"), Overlap::Auto);
        assert_eq!(overlap(" --overlap off"), Overlap::Off);
        // The engine can force it, for tests.
        let error = parse_serve("--model a --overlap on").expect_err("on");
        assert!(error.contains("write auto or off"), "{error}");
    }

    #[test]
    fn model_name_defaults_to_file_stem() {
        for (text, name, file) in [
            ("models/tiny.gguf", "tiny", "models/tiny.gguf"),
            ("chat=models/tiny.gguf", "chat", "models/tiny.gguf"),
            ("a.b=c=d", "a.b", "c=d"),
            ("./a=b.gguf", "a=b", "./a=b.gguf"),
            ("tiny", "tiny", "tiny"),
        ] {
            let expected = ModelArg {
                name: name.to_owned(),
                file: PathBuf::from(file),
                hub: None,
            };
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        for text in ["", "=x.gguf", "x=", "..", "a\nb=x.gguf"] {
            let error = text.parse::<ModelArg>().expect_err(text);
            assert!(error.contains("write NAME=FILE"), "{text:?}: {error}");
        }
    }
}
