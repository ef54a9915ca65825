//! Which devices compute a model, and how many of its layers.
//!
//! llama.cpp puts the last layers of a model on devices first, each with its cells; the output counts as one more layer
//! after the last. The other layers stay on the CPU. Several devices share layers by their free memory.
//!
//! [`PlacementOptions`] is the operator's choice. `plan.rs` turns it into numbers of layers to try, before anything is
//! loaded.

pub(crate) mod plan;

use crate::LoadError;
use corral_llama::{Device, DeviceKind, KvType, devices};
use std::fmt;
use std::str::FromStr;

/// Most devices of a model: llama.cpp ends the process on more than 16 together with the CPU and its accelerators.
const MAX_DEVICES: usize = 12;

/// Where to compute a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlacementOptions {
    /// The devices that share its layers.
    pub devices: DeviceSelection,
    /// The number of layers on these devices.
    pub gpu_layers: GpuLayers,
    /// Type of the cells.
    pub kv_type: KvType,
}

/// A choice of devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DeviceSelection {
    /// Every GPU; without one, integrated GPUs; without those, the CPU.
    #[default]
    Auto,
    /// The CPU alone.
    Cpu,
    /// The GPUs of these names, integrated ones included; each once.
    Named(Vec<String>),
}

/// Number of layers on devices; the output counts as one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GpuLayers {
    /// As many as fit into the devices' memory.
    #[default]
    Auto,
    /// This many, or all if there are fewer; 0 for the CPU alone. The load fails if they do not fit.
    Exactly(u32),
}

impl PlacementOptions {
    /// The chosen devices with their memory as it is now; none for the CPU alone.
    pub(crate) fn select_devices(&self) -> Result<Vec<Device>, LoadError> {
        // These cases do not query devices.
        match (&self.devices, self.gpu_layers) {
            (DeviceSelection::Cpu, GpuLayers::Exactly(layers @ 1..)) => {
                return Err(no_device_for(layers));
            }
            (DeviceSelection::Cpu, _) | (_, GpuLayers::Exactly(0)) => return Ok(Vec::new()),
            _ => {}
        }
        let selected = select(&self.devices, &devices()?).map_err(LoadError::Config)?;
        match self.gpu_layers {
            GpuLayers::Exactly(layers) if selected.is_empty() => Err(no_device_for(layers)),
            _ => Ok(selected),
        }
    }
}

impl DeviceSelection {
    /// Checks that named devices exist; the error lists the devices.
    pub fn check(&self) -> Result<(), LoadError> {
        if let Self::Named(_) = self {
            select(self, &devices()?).map_err(LoadError::Config)?;
        }
        Ok(())
    }
}

fn no_device_for(layers: u32) -> LoadError {
    LoadError::Config(format!(
        "{layers} GPU layers were requested, but there is no device except the CPU; `corral doctor` lists the \
         devices and why others are not used: name one, or request 0 layers"
    ))
}

fn select(selection: &DeviceSelection, all: &[Device]) -> Result<Vec<Device>, String> {
    match selection {
        DeviceSelection::Cpu => Ok(Vec::new()),
        DeviceSelection::Auto => Ok(select_auto(all)),
        DeviceSelection::Named(names) => select_named(names, all),
    }
}

/// Selects as llama.cpp does: every GPU once, however many backends list it; without one, the integrated GPUs of one
/// backend.
fn select_auto(all: &[Device]) -> Vec<Device> {
    let of_kind = |kind: DeviceKind| all.iter().filter(move |device| device.kind == kind);
    let mut selected: Vec<Device> = Vec::new();
    for device in of_kind(DeviceKind::Gpu) {
        let is_same = |other: &Device| device.id.is_some() && device.id == other.id;
        if !selected.iter().any(is_same) {
            selected.push(device.clone());
        }
    }
    if selected.is_empty()
        && let Some(first) = of_kind(DeviceKind::Integrated).next()
    {
        let same_backend = |device: &&Device| device.backend == first.backend;
        selected.extend(
            of_kind(DeviceKind::Integrated)
                .filter(same_backend)
                .cloned(),
        );
    }
    selected.truncate(MAX_DEVICES);
    selected
}

fn select_named(names: &[String], all: &[Device]) -> Result<Vec<Device>, String> {
    let mut selected: Vec<Device> = Vec::new();
    for name in names {
        let is_named = |device: &&Device| device.name.eq_ignore_ascii_case(name);
        let Some(device) = all.iter().find(is_named) else {
            return Err(format!(
                "there is no device {name:?}; {}; `corral doctor` says why others are not used",
                list_names(all)
            ));
        };
        if matches!(device.kind, DeviceKind::Cpu | DeviceKind::Accelerator) {
            return Err(format!(
                "{name} takes no GPU layers and is always used; name other devices, or 'cpu' alone"
            ));
        }
        // llama.cpp would give it two parts of a model, and count all of its memory for each.
        if selected.iter().any(|other| other.name == device.name) {
            return Err(named_twice(&device.name));
        }
        selected.push(device.clone());
    }
    if selected.len() > MAX_DEVICES {
        return Err(format!(
            "{} devices were named; a model may have {MAX_DEVICES}",
            selected.len()
        ));
    }
    Ok(selected)
}

fn list_names(all: &[Device]) -> String {
    let names: Vec<_> = all.iter().map(|device| device.name.as_str()).collect();
    match names.as_slice() {
        [] => "there is no device".to_owned(),
        names => format!("the devices are {}", names.join(", ")),
    }
}

fn named_twice(device: &str) -> String {
    format!("the device '{device}' is named twice; name it once")
}

impl FromStr for DeviceSelection {
    type Err = String;

    /// Parses `auto`, `cpu`, or names separated by commas.
    fn from_str(text: &str) -> Result<Self, String> {
        let names: Vec<&str> = text.split(',').map(str::trim).collect();
        let is = |name: &str, word: &str| name.eq_ignore_ascii_case(word);
        match names.as_slice() {
            [name] if is(name, "auto") => return Ok(Self::Auto),
            [name] if is(name, "cpu") => return Ok(Self::Cpu),
            _ => {}
        }
        for (index, name) in names.iter().enumerate() {
            if name.is_empty() {
                return Err(
                    "a device name is empty; write names as `corral doctor` lists them, separated by \
                     commas, or auto, or cpu"
                        .to_owned(),
                );
            }
            if is(name, "auto") || is(name, "cpu") {
                return Err(format!(
                    "'{name}' can't be combined with devices; omit it: the CPU always takes the layers \
                     that do not fit"
                ));
            }
            if names[..index].iter().any(|before| is(before, name)) {
                return Err(named_twice(name));
            }
        }
        Ok(Self::Named(names.into_iter().map(str::to_owned).collect()))
    }
}

impl FromStr for GpuLayers {
    type Err = String;

    /// Parses `auto` or a number.
    fn from_str(text: &str) -> Result<Self, String> {
        if text.eq_ignore_ascii_case("auto") {
            return Ok(Self::Auto);
        }
        let layers = text.parse().ok().map(Self::Exactly);
        layers.ok_or_else(|| {
            format!("'{text}' is not a number of layers; write auto or a number, e.g. 0 or 20")
        })
    }
}

impl fmt::Display for DeviceSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Named(names) => f.write_str(&names.join(",")),
        }
    }
}

impl fmt::Display for GpuLayers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Exactly(layers) => write!(f, "{layers}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, kind: DeviceKind, id: Option<&str>) -> Device {
        Device {
            name: name.to_owned(),
            description: String::new(),
            kind,
            backend: name.trim_end_matches(char::is_numeric).to_owned(),
            free: 1 << 30,
            total: 1 << 30,
            id: id.map(str::to_owned),
        }
    }

    fn names(devices: &[Device]) -> Vec<&str> {
        devices.iter().map(|device| device.name.as_str()).collect()
    }

    #[test]
    fn auto_selects_each_gpu_once() {
        use DeviceKind::{Accelerator, Cpu, Gpu, Integrated};
        let cpu = device("CPU", Cpu, None);
        let blas = device("BLAS", Accelerator, None);
        assert!(select_auto(&[cpu.clone(), blas]).is_empty());
        let gpus = [
            device("CUDA0", Gpu, Some("1")),
            device("CUDA1", Gpu, Some("2")),
            device("Vulkan0", Gpu, Some("1")),
            device("Vulkan1", Integrated, None),
            cpu.clone(),
        ];
        assert_eq!(names(&select_auto(&gpus)), ["CUDA0", "CUDA1"]);
        let integrated = [
            device("Vulkan0", Integrated, None),
            device("MTL0", Integrated, None),
            cpu,
        ];
        assert_eq!(names(&select_auto(&integrated)), ["Vulkan0"]);
        let many: Vec<_> = (0..20)
            .map(|n| device(&format!("CUDA{n}"), Gpu, None))
            .collect();
        assert_eq!(select_auto(&many).len(), MAX_DEVICES);
    }

    #[test]
    fn unknown_names_list_the_devices() {
        let all = [
            device("Vulkan0", DeviceKind::Gpu, None),
            device("Vulkan1", DeviceKind::Integrated, None),
            device("CPU", DeviceKind::Cpu, None),
        ];
        let select_text = |text: &str| select(&text.parse().unwrap(), &all);
        let selected = select_text("vulkan1,Vulkan0").unwrap();
        assert_eq!(names(&selected), ["Vulkan1", "Vulkan0"]);
        assert!(select_text("cpu").unwrap().is_empty());
        let twice = DeviceSelection::Named(vec!["Vulkan0".to_owned(), "vulkan0".to_owned()]);
        let error = select(&twice, &all).unwrap_err();
        assert!(error.contains("'Vulkan0' is named twice"), "{error}");
        let error = select_text("nonsense").unwrap_err();
        assert!(error.contains("Vulkan0, Vulkan1, CPU"), "{error}");
    }

    #[test]
    fn options_parse_and_errors_say_what_to_write() {
        for text in ["auto", "cpu", "CUDA0", "CUDA0,CUDA1"] {
            assert_eq!(text.parse::<DeviceSelection>().unwrap().to_string(), text);
        }
        assert_eq!("CPU".parse(), Ok(DeviceSelection::Cpu));
        for (text, expected) in [
            ("", "is empty"),
            ("a,", "is empty"),
            ("a,cpu", "omit it"),
            ("auto,a", "omit it"),
            ("a,b,A", "named twice"),
        ] {
            let error = text.parse::<DeviceSelection>().unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        for text in ["auto", "0", "99"] {
            assert_eq!(text.parse::<GpuLayers>().unwrap().to_string(), text);
        }
        for text in ["", "x", "-1", "1.5"] {
            let error = text.parse::<GpuLayers>().unwrap_err();
            assert!(error.contains("write auto"), "{text}: {error}");
        }
    }

    #[test]
    fn cpu_alone_takes_no_gpu_layers() {
        let options = |devices, gpu_layers| PlacementOptions {
            devices,
            gpu_layers,
            kv_type: KvType::F16,
        };
        let cpu = options(DeviceSelection::Cpu, GpuLayers::Auto).select_devices();
        assert!(cpu.expect("the CPU is always there").is_empty());
        let none = options(DeviceSelection::Auto, GpuLayers::Exactly(0)).select_devices();
        assert!(none.expect("0 layers need no device").is_empty());
        let error = options(DeviceSelection::Cpu, GpuLayers::Exactly(3)).select_devices();
        let error = error.expect_err("the CPU takes none").to_string();
        assert!(error.contains("3 GPU layers") && error.contains("corral doctor"));
    }
}
