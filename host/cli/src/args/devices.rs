//! Arguments for backends and devices.

use crate::Error;
use clap::Args;
use corral_engine::{DeviceSelection, GpuLayers, KvType, PlacementOptions};
use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

#[derive(Args, Debug)]
#[command(next_help_heading = "Devices")]
pub struct DeviceArgs {
    #[command(flatten)]
    pub backends: BackendArgs,
    /// Devices of a model: auto (all GPUs, else the CPU), cpu, or names from 'corral doctor'; repeatable
    #[arg(long = "device", value_name = "[MODEL=]DEVICE,DEVICE")]
    pub devices: Vec<ForModel<DeviceSelection>>,
    /// Layers of a model on its devices, the output counted as one; auto: as many as fit; repeatable
    #[arg(long = "gpu-layers", value_name = "[MODEL=]auto|N")]
    pub layers: Vec<ForModel<GpuLayers>>,
    /// Type of a model's KV cells; q8_0 takes half the memory and is less exact; repeatable
    #[arg(long = "kv-type", value_name = "[MODEL=]f16|q8_0")]
    pub kv: Vec<ForModel<KvType>>,
}

#[derive(Args, Debug)]
pub struct BackendArgs {
    /// Directory of llama.cpp's backends, for programs built with dynamic-backends [default: backends beside corral]
    #[arg(long, value_name = "DIR", help_heading = "Devices")]
    pub backend_dir: Option<PathBuf>,
}

impl BackendArgs {
    /// Loads the backends; must precede all other calls of the engine.
    pub fn load(&self) -> Result<(), Error> {
        let Some(dir) = &self.backend_dir else {
            return Ok(());
        };
        for file in corral_engine::load_backends(dir)? {
            if let Some(problem) = &file.problem {
                tracing::warn!(file = %file.path.display(), problem, "backend not loaded");
            }
        }
        Ok(())
    }
}

/// `[MODEL=]VALUE`: the last `=` ends the model's name, as no value contains one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForModel<T> {
    /// Nothing for all models without a value of their own.
    model: Option<String>,
    value: T,
}

impl<T: FromStr<Err = String>> FromStr for ForModel<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (model, value) = match text.rsplit_once('=') {
            Some(("", _)) => {
                return Err("the name of the model is empty; remove the '='".to_owned());
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

/// The last value for this model, or else the last for all models.
fn last_value<T: Clone + Default>(values: &[ForModel<T>], model: &str) -> T {
    let own = |value: &&ForModel<T>| value.model.as_deref() == Some(model);
    let found = values.iter().rfind(own);
    let found = found.or_else(|| values.iter().rfind(|value| value.model.is_none()));
    found.map_or_else(T::default, |found| found.value.clone())
}

fn named<'a, T>(option: &'static str, values: &'a [ForModel<T>]) -> Vec<(&'static str, &'a str)> {
    let models = values.iter().filter_map(|value| value.model.as_deref());
    models.map(|model| (option, model)).collect()
}

impl DeviceArgs {
    /// The options that name a model, each with the name.
    pub fn models(&self) -> Vec<(&'static str, &str)> {
        [
            named("--device", &self.devices),
            named("--gpu-layers", &self.layers),
            named("--kv-type", &self.kv),
        ]
        .concat()
    }

    /// Refuses names of unknown models.
    pub(crate) fn check(&self, is_known: impl Fn(&str) -> bool) -> Result<(), Error> {
        let mut models = self.models().into_iter();
        match models.find(|&(_, model)| !is_known(model)) {
            None => Ok(()),
            Some((option, model)) => Err(Error::usage(format!(
                "{option} names the model '{model}', which no --model has"
            ))),
        }
    }

    /// The values for this model.
    pub fn for_model(&self, model: &str) -> PlacementOptions {
        PlacementOptions {
            devices: last_value(&self.devices, model),
            gpu_layers: last_value(&self.layers, model),
            kv_type: last_value(&self.kv, model),
        }
    }

    /// The same values as arguments for another process.
    pub fn to_arguments(&self) -> Vec<String> {
        fn add<T: Display>(arguments: &mut Vec<String>, option: &str, values: &[ForModel<T>]) {
            for ForModel { model, value } in values {
                let value = match model {
                    Some(model) => format!("{model}={value}"),
                    None => value.to_string(),
                };
                arguments.extend([option.to_owned(), value]);
            }
        }
        let mut arguments = Vec::new();
        if let Some(dir) = &self.backends.backend_dir {
            arguments.extend(["--backend-dir".to_owned(), dir.display().to_string()]);
        }
        add(&mut arguments, "--device", &self.devices);
        add(&mut arguments, "--gpu-layers", &self.layers);
        add(&mut arguments, "--kv-type", &self.kv);
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::tests::parse_serve;

    fn device_args(line: &str) -> DeviceArgs {
        let line = format!("--model a=1 --model b=c=2 {line}");
        parse_serve(&line).expect("valid arguments").models.devices
    }

    #[test]
    fn value_for_one_model_overrides_value_for_all() {
        let args = device_args(
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
        assert_eq!(args.for_model("a"), expected);
        let expected = PlacementOptions {
            devices: names(&["Vulkan0"]),
            gpu_layers: GpuLayers::Exactly(7),
            kv_type: KvType::Q8_0,
        };
        assert_eq!(args.for_model("b"), expected);
        assert_eq!(device_args("").for_model("a"), PlacementOptions::default());
        let arguments = args.to_arguments().join(" ");
        assert_eq!(device_args(&arguments).to_arguments().join(" "), arguments);
    }

    #[test]
    fn empty_model_name_is_refused() {
        assert!("=cpu".parse::<ForModel<DeviceSelection>>().is_err());
    }
}
