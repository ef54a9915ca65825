//! What the command line says about devices: which backends there are, and what of a model goes where.

use crate::complaint::Complaint;
use clap::Args;
use corral_engine::{DeviceSelection, GpuLayers, KvType, PlacementOptions};
use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

#[derive(Args, Debug)]
pub(crate) struct Offloading {
    #[command(flatten)]
    pub(crate) backends: Backends,
    /// The devices that compute a model, as 'corral doctor' lists them: auto (every GPU, else the processor),
    /// cpu (the processor alone), or names. Several share its layers by their free memory. Of all models
    /// unless one is named. May be given several times.
    #[arg(long = "device", value_name = "[MODEL=]DEVICE,DEVICE")]
    pub(crate) devices: Vec<ForModel<DeviceSelection>>,
    /// How many layers of a model are offloaded to its devices, the output counted as one: auto is as many as
    /// find room there. Of all models unless one is named. May be given several times.
    #[arg(long = "gpu-layers", value_name = "[MODEL=]auto|N")]
    pub(crate) layers: Vec<ForModel<GpuLayers>>,
    /// How the KV cells of a model are stored: f16, or q8_0, which takes about half the memory and is less
    /// exact. Of all models unless one is named. May be given several times.
    #[arg(long = "kv-type", value_name = "[MODEL=]f16|q8_0")]
    pub(crate) kv: Vec<ForModel<KvType>>,
}

#[derive(Args, Debug)]
pub(crate) struct Backends {
    /// Folder with llama.cpp's backends, libggml-*.so; by default the folder backends beside this program, or
    /// else its own. Only for a program that was built with dynamic-backends: others have theirs built in.
    #[arg(id = "backends", long = "backends", value_name = "FOLDER")]
    pub(crate) folder: Option<PathBuf>,
}

impl Backends {
    /// Loads them. Before anything else is asked of the engine.
    pub(crate) fn load(&self) -> Result<(), Complaint> {
        let Some(folder) = &self.folder else {
            return Ok(());
        };
        for file in corral_engine::load_backends(folder)? {
            if let Some(problem) = &file.problem {
                tracing::warn!(file = %file.path.display(), problem, "a backend was not loaded");
            }
        }
        Ok(())
    }
}

/// `[MODEL=]VALUE`: the last `=` ends the name of the model, as no value holds one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ForModel<T> {
    /// Without one, every model that none names.
    pub(crate) model: Option<String>,
    pub(crate) value: T,
}

impl<T: FromStr<Err = String>> FromStr for ForModel<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (model, value) = match text.rsplit_once('=') {
            Some(("", _)) => {
                return Err("the name of the model is empty; leave '=' away".to_owned());
            }
            Some((model, value)) => (Some(model.to_owned()), value),
            None => (None, text),
        };
        Ok(Self {
            model,
            value: value.parse()?,
        })
    }
}

/// What was said last of this model, or else of all.
fn of<T: Clone + Default>(said: &[ForModel<T>], model: &str) -> T {
    let own = |one: &&ForModel<T>| one.model.as_deref() == Some(model);
    let found = said.iter().rfind(own);
    let found = found.or_else(|| said.iter().rfind(|one| one.model.is_none()));
    found.map_or_else(T::default, |one| one.value.clone())
}

fn named<'a, T>(option: &'static str, said: &'a [ForModel<T>]) -> Vec<(&'static str, &'a str)> {
    let models = said.iter().filter_map(|one| one.model.as_deref());
    models.map(|model| (option, model)).collect()
}

impl Offloading {
    /// The models that are named, each by which option.
    pub(crate) fn models(&self) -> Vec<(&'static str, &str)> {
        [
            named("--device", &self.devices),
            named("--gpu-layers", &self.layers),
            named("--kv-type", &self.kv),
        ]
        .concat()
    }

    /// Says so if one of them is unknown.
    pub(crate) fn check(&self, known: impl Fn(&str) -> bool) -> Result<(), Complaint> {
        let mut models = self.models().into_iter();
        match models.find(|&(_, model)| !known(model)) {
            None => Ok(()),
            Some((option, model)) => Err(Complaint::Usage(format!(
                "{option} names the model '{model}', which no --model has"
            ))),
        }
    }

    /// What was said of this model.
    pub(crate) fn of(&self, model: &str) -> PlacementOptions {
        PlacementOptions {
            devices: of(&self.devices, model),
            gpu_layers: of(&self.layers, model),
            kv_type: of(&self.kv, model),
        }
    }

    /// The same in words of a command line.
    pub(crate) fn words(&self) -> Vec<String> {
        fn add<T: Display>(words: &mut Vec<String>, option: &str, said: &[ForModel<T>]) {
            for ForModel { model, value } in said {
                let value = match model {
                    Some(model) => format!("{model}={value}"),
                    None => value.to_string(),
                };
                words.extend([option.to_owned(), value]);
            }
        }
        let mut words = Vec::new();
        if let Some(folder) = &self.backends.folder {
            words.extend(["--backends".to_owned(), folder.display().to_string()]);
        }
        add(&mut words, "--device", &self.devices);
        add(&mut words, "--gpu-layers", &self.layers);
        add(&mut words, "--kv-type", &self.kv);
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::{Command, CommandLine};
    use clap::Parser;

    fn offloading(line: &str) -> Offloading {
        let line = format!("corral serve --model a=1 --model b=c=2 {line}");
        let parsed = CommandLine::try_parse_from(line.split_whitespace());
        let Command::Serve(serve) = parsed.expect("a good line").command else {
            panic!("it says serve");
        };
        serve.models.offloading
    }

    #[test]
    fn what_is_said_of_one_model_goes_before_what_is_said_of_all() {
        let said = offloading(
            "--device CUDA0,CUDA1 --device b=cpu --device b=Vulkan0 --gpu-layers 7 --gpu-layers a=auto \
             --kv-type q8_0",
        );
        let names = |names: &[&str]| {
            DeviceSelection::Named(names.iter().map(|name| (*name).to_owned()).collect())
        };
        let expected = PlacementOptions {
            devices: names(&["CUDA0", "CUDA1"]),
            gpu_layers: GpuLayers::Auto,
            kv_type: KvType::Q8_0,
        };
        assert_eq!(said.of("a"), expected);
        let expected = PlacementOptions {
            devices: names(&["Vulkan0"]),
            gpu_layers: GpuLayers::Exactly(7),
            kv_type: KvType::Q8_0,
        };
        assert_eq!(said.of("b"), expected);
        assert_eq!(offloading("").of("a"), PlacementOptions::default());
        let words = said.words().join(" ");
        assert_eq!(offloading(&words).words().join(" "), words);
    }

    #[test]
    fn a_model_that_is_not_there_is_named_with_its_option() {
        let said = offloading("--kv-type c=f16 --device a=cpu");
        let complaint = said.check(|model| model == "a");
        let Err(Complaint::Usage(text)) = complaint else {
            panic!("{complaint:?}");
        };
        assert!(text.contains("--kv-type names the model 'c'"), "{text}");
        assert!(said.check(|_| true).is_ok());
        assert!("=cpu".parse::<ForModel<DeviceSelection>>().is_err());
    }
}
