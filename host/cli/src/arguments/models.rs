//! Which models there are, and how they are loaded.

use super::whole;
use crate::complaint::Complaint;
use crate::memory::Memory;
use crate::offload::Offloading;
use crate::residence::Residence;
use clap::Args;
use corral_engine::{DeviceSampling, Overlap};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// What both commands need for models and plugins.
#[derive(Args, Debug)]
pub(crate) struct Models {
    /// A GGUF file, and the name under which plugins find it (by default the file's name without
    /// its ending); may be given several times, the first is the default model. The others are loaded
    /// when they are first asked for.
    #[arg(long = "model", value_name = "[NAME=]FILE", required = true)]
    pub(crate) models: Vec<ModelArgument>,
    /// A LoRA adapter of a model, a GGUF file, and the name under which plugins ask for it; of the first
    /// model unless another one is named. May be given several times, up to 16 for a model.
    #[arg(long = "adapter", value_name = "[MODEL:]NAME=FILE")]
    pub(crate) adapters: Vec<AdapterArgument>,
    /// Positions that a sequence may have; by default what the model was trained on, at most 8192.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) context: Option<u32>,
    /// KV cells that all sequences of a model share; by default 16384, or one context.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) cells: Option<u32>,
    /// Sequences of a model that run at once, at most 64; others wait for their turn.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) sequences: Option<u16>,
    /// Select the likeliest tokens where they are computed, and copy no more than those for whoever needs
    /// no more: 'auto' does it on GPUs, a number says how many and does it anywhere. What is generated is
    /// the same.
    #[arg(long, value_name = "auto|off|K", default_value = "off", value_parser = device_sampling)]
    pub(crate) device_sampling: DeviceSampling,
    /// Read prompts while tokens are sampled and while plugins that sample themselves think: 'auto' does it
    /// where a device computes all layers and it is expected to save time. What is generated is the same.
    #[arg(long, value_name = "auto|off", default_value = "auto", value_parser = overlap)]
    pub(crate) overlap: Overlap,
    #[command(flatten)]
    pub(crate) memory: Memory,
    #[command(flatten)]
    pub(crate) residence: Residence,
    #[command(flatten)]
    pub(crate) offloading: Offloading,
    /// Threads that compute, for each model; by default one for each core.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: Option<u32>,
    /// Threads that run plugins and connections.
    #[arg(long, value_name = "N", value_parser = whole(1..=1024))]
    pub(crate) workers: Option<u64>,
    /// Folder for compiled plugins, of this user alone; by default corral/ in the user's cache.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) cache: Option<PathBuf>,
}

impl Models {
    /// What can be known to be wrong without touching a file.
    pub(super) fn check(&self) -> Result<(), Complaint> {
        self.memory.check()?;
        let mut names = HashSet::new();
        for model in &self.models {
            if !names.insert(&model.name) {
                return Err(Complaint::Usage(format!(
                    "two models are named '{}'; give one another name: --model NAME={}",
                    model.name,
                    model.file.display()
                )));
            }
        }
        for adapter in &self.adapters {
            let named = adapter.model.as_ref();
            if let Some(model) = named.filter(|model| !names.contains(model)) {
                return Err(Complaint::Usage(format!(
                    "--adapter names the model '{model}', which no --model has"
                )));
            }
        }
        let known = |model: &str| self.models.iter().any(|one| one.name == model);
        self.offloading.check(known)
    }

    /// Names and files of the adapters of the model with this place in the order given.
    pub(crate) fn adapters_of(&self, place: usize) -> Vec<(String, PathBuf)> {
        let name = self.models.get(place).map(|model| &model.name);
        let own = |adapter: &&AdapterArgument| match &adapter.model {
            None => place == 0,
            model => model.as_ref() == name,
        };
        let own = self.adapters.iter().filter(own);
        own.map(|adapter| (adapter.name.clone(), adapter.file.clone()))
            .collect()
    }
}

fn device_sampling(text: &str) -> Result<DeviceSampling, String> {
    match (text, text.parse::<u32>()) {
        ("auto", _) => Ok(DeviceSampling::Auto),
        ("off", _) => Ok(DeviceSampling::Off),
        (_, Ok(k @ 2..=65_536)) => Ok(DeviceSampling::On { k }),
        _ => Err("write auto, off or a number from 2 to 65536".to_owned()),
    }
}

fn overlap(text: &str) -> Result<Overlap, String> {
    match text {
        "auto" => Ok(Overlap::Auto),
        "off" => Ok(Overlap::Off),
        _ => Err("write auto or off".to_owned()),
    }
}

/// `[NAME=]FILE`. The text before the first `=` is a name if it looks like one, so a file whose
/// name holds `=` is written `./a=b.gguf`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModelArgument {
    pub(crate) name: String,
    pub(crate) file: PathBuf,
}

impl FromStr for ModelArgument {
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
        let stem = Path::new(file).file_stem().and_then(|stem| stem.to_str());
        let name = name.or(stem).unwrap_or_default();
        if name.is_empty() || name.len() > 128 || name.chars().any(char::is_control) {
            return Err(format!(
                "'{}' is no name for a model; write NAME=FILE with a short NAME",
                name.escape_debug()
            ));
        }
        Ok(ModelArgument {
            name: name.to_owned(),
            file: PathBuf::from(file),
        })
    }
}

/// `[MODEL:]NAME=FILE`. The name of an adapter holds no colon, so the last one before the first `=`
/// ends the name of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AdapterArgument {
    /// Without one, the first.
    pub(crate) model: Option<String>,
    pub(crate) name: String,
    pub(crate) file: PathBuf,
}

impl FromStr for AdapterArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = "write NAME=FILE or MODEL:NAME=FILE, e.g. polite=polite.gguf";
        let (names, file) = text
            .split_once('=')
            .filter(|(_, file)| !file.is_empty())
            .ok_or_else(|| format!("there is no name or no file; {expected}"))?;
        let (model, name) = match names.rsplit_once(':') {
            Some((model, name)) => (Some(model.to_owned()), name),
            None => (None, names),
        };
        if name.is_empty() || name.len() > 128 || name.chars().any(char::is_control) {
            return Err(format!(
                "'{}' is no name for an adapter; {expected}",
                name.escape_debug()
            ));
        }
        Ok(AdapterArgument {
            model,
            name: name.to_owned(),
            file: PathBuf::from(file),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Command;
    use super::super::tests::parse;
    use super::*;

    #[test]
    fn adapters_are_of_the_first_model_unless_said_otherwise() {
        let line = "corral serve --model a=1 --model b:c=2 \
                    --adapter x=3 --adapter b:c:y=4 --adapter a:z=k=5";
        let Command::Serve(serve) = parse(line).expect("a good line").command else {
            panic!("it says serve");
        };
        let of = |place| serve.models.adapters_of(place);
        let adapter = |name: &str, file: &str| (name.to_owned(), PathBuf::from(file));
        assert_eq!(of(0), [adapter("x", "3"), adapter("z", "k=5")]);
        assert_eq!(of(1), [adapter("y", "4")]);
        for (wrong, said) in [
            ("x", "no name or no file"),
            ("x=", "no name or no file"),
            ("=x", "is no name"),
            ("a:=x", "is no name"),
            ("q:x=3", "'q'"),
        ] {
            let line = format!("corral serve --model a=1 --adapter {wrong}");
            let complaint = parse(&line).expect_err(wrong);
            assert!(complaint.contains(said), "{wrong}: {complaint}");
        }
    }

    #[test]
    fn what_the_device_selects_is_a_number_or_left_to_the_engine() {
        let of = |option: &str| {
            let line = format!("corral serve --model a{option}");
            parse(&line).map(|line| match line.command {
                Command::Serve(serve) => serve.models.device_sampling,
                other => panic!("it says serve: {other:?}"),
            })
        };
        assert_eq!(of(""), Ok(DeviceSampling::Off));
        assert_eq!(of(" --device-sampling auto"), Ok(DeviceSampling::Auto));
        assert_eq!(of(" --device-sampling off"), Ok(DeviceSampling::Off));
        let on = DeviceSampling::On { k: 64 };
        assert_eq!(of(" --device-sampling 64"), Ok(on));
        for wrong in ["1", "65537", "on", "-3"] {
            let complaint = of(&format!(" --device-sampling={wrong}")).expect_err(wrong);
            assert!(
                complaint.contains("write auto, off or a number"),
                "{complaint}"
            );
        }
    }

    #[test]
    fn whether_prompts_are_read_ahead_is_left_to_the_engine_or_never() {
        let of = |option: &str| {
            let line = format!("corral serve --model a{option}");
            parse(&line).map(|line| match line.command {
                Command::Serve(serve) => serve.models.overlap,
                other => panic!("it says serve: {other:?}"),
            })
        };
        assert_eq!(of(""), Ok(Overlap::Auto));
        assert_eq!(of(" --overlap auto"), Ok(Overlap::Auto));
        assert_eq!(of(" --overlap off"), Ok(Overlap::Off));
        let complaint = of(" --overlap on").expect_err("for tests alone");
        assert!(complaint.contains("write auto or off"), "{complaint}");
    }

    #[test]
    fn models_are_named_by_their_files_unless_said_otherwise() {
        for (text, name, file) in [
            ("models/tiny.gguf", "tiny", "models/tiny.gguf"),
            ("chat=models/tiny.gguf", "chat", "models/tiny.gguf"),
            ("a.b=c=d", "a.b", "c=d"),
            ("./a=b.gguf", "a=b", "./a=b.gguf"),
            ("tiny", "tiny", "tiny"),
        ] {
            let expected = ModelArgument {
                name: name.to_owned(),
                file: PathBuf::from(file),
            };
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        for text in ["", "=x.gguf", "x=", "..", "a\nb=x.gguf"] {
            let error = text.parse::<ModelArgument>().expect_err(text);
            assert!(error.contains("write NAME=FILE"), "{text:?}: {error}");
        }
    }
}
