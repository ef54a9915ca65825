//! Where a model is computed: on which devices, how many of its layers, and how its cells are stored.
//!
//! llama.cpp counts a model's layers and, as one more, its output. The last ones are offloaded first, each
//! with its cells; what is not stays with the processor. Several devices share them by their free memory.
//!
//! `plan.rs` reckons how many find room, before anything is loaded.

mod plan;

pub(crate) use plan::Plan;

use crate::LoadError;
use corral_llama::{Device, DeviceKind, KvType, devices};
use std::fmt;
use std::str::FromStr;

/// Most devices of a model: llama.cpp ends the process on more than 16 together with the processor and its
/// accelerators.
const MOST_DEVICES: usize = 12;

/// Where a model is computed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// The devices that share its layers.
    pub devices: Devices,
    /// How many layers they get.
    pub layers: Layers,
    /// How the cells are stored.
    pub kv: KvType,
}

/// Which devices share the layers of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Devices {
    /// Every GPU; where there is none, integrated ones; where there are none either, the processor.
    #[default]
    Auto,
    /// The processor alone.
    Cpu,
    /// The GPUs of these names, integrated ones too; each once.
    Named(Vec<String>),
}

/// How many layers of a model are offloaded, its output counted as one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layers {
    /// As many as find room.
    #[default]
    Auto,
    /// So many, or all if there are fewer; with 0 the processor does everything. Where they find no room the
    /// model is not loaded.
    Exactly(u32),
}

impl Offload {
    /// The devices that it means, as they are now; none for the processor alone. The error says what there
    /// is.
    pub(crate) fn chosen(&self) -> Result<Vec<Device>, LoadError> {
        // Nothing else is even looked at.
        if self.devices == Devices::Cpu || self.layers == Layers::Exactly(0) {
            return match (&self.devices, self.layers) {
                (Devices::Cpu, Layers::Exactly(layers @ 1..)) => Err(nobody(layers)),
                _ => Ok(Vec::new()),
            };
        }
        let chosen = choose(&self.devices, &devices()?).map_err(LoadError::Config)?;
        match self.layers {
            Layers::Exactly(layers) if chosen.is_empty() => Err(nobody(layers)),
            _ => Ok(chosen),
        }
    }
}

impl Devices {
    /// Whether there are such devices; the error says which there are.
    pub fn check(&self) -> Result<(), LoadError> {
        match self {
            Self::Auto | Self::Cpu => Ok(()),
            Self::Named(_) => {
                let chosen = choose(self, &devices()?);
                chosen.map(drop).map_err(LoadError::Config)
            }
        }
    }
}

fn nobody(layers: u32) -> LoadError {
    LoadError::Config(format!(
        "{layers} layers were to be offloaded, and there is no device for them but the processor; \
         `corral doctor` says which there are and why others are not used: name one, or offload none"
    ))
}

/// Those that are meant, of those that are there.
fn choose(wanted: &Devices, there: &[Device]) -> Result<Vec<Device>, String> {
    match wanted {
        Devices::Cpu => Ok(Vec::new()),
        Devices::Auto => Ok(usual(there)),
        Devices::Named(names) => named(names, there),
    }
}

/// What llama.cpp takes by itself: every GPU once, however many backends know it; without one, integrated
/// ones of one backend.
fn usual(there: &[Device]) -> Vec<Device> {
    let of = |kind: DeviceKind| there.iter().filter(move |device| device.kind == kind);
    let mut chosen: Vec<Device> = Vec::new();
    for device in of(DeviceKind::Gpu) {
        let same = |other: &Device| device.id.is_some() && device.id == other.id;
        if !chosen.iter().any(same) {
            chosen.push(device.clone());
        }
    }
    if chosen.is_empty() {
        let first = of(DeviceKind::Integrated).next();
        let backend = first.map(|device| &device.backend);
        let same = of(DeviceKind::Integrated).filter(|device| Some(&device.backend) == backend);
        chosen.extend(same.cloned());
    }
    chosen.truncate(MOST_DEVICES);
    chosen
}

fn named(names: &[String], there: &[Device]) -> Result<Vec<Device>, String> {
    let known = |name: &String| {
        let found = there
            .iter()
            .find(|device| device.name.eq_ignore_ascii_case(name));
        match found.map(|device| device.kind) {
            None => Err(format!(
                "there is no device {name:?}; {}; `corral doctor` says why others are not used",
                listed(there)
            )),
            Some(DeviceKind::Cpu | DeviceKind::Accelerator) => Err(format!(
                "no layers are offloaded to {name}, which is used in any case; name other devices, or \
                 'cpu' alone"
            )),
            Some(DeviceKind::Gpu | DeviceKind::Integrated) => Ok(found.cloned()),
        }
    };
    let chosen: Result<Vec<_>, _> = names.iter().map(known).collect();
    let chosen: Vec<Device> = chosen?.into_iter().flatten().collect();
    // llama.cpp would give it two parts of a model, reckoned with all of its memory each.
    let twice = |(index, one): &(usize, &Device)| {
        let mut before = chosen[..*index].iter();
        before.any(|other| other.name == one.name)
    };
    if let Some((_, device)) = chosen.iter().enumerate().find(twice) {
        return Err(format!(
            "the device '{}' is named twice; name it once",
            device.name
        ));
    }
    if chosen.len() > MOST_DEVICES {
        return Err(format!(
            "{} devices were named; a model may have {MOST_DEVICES}",
            chosen.len()
        ));
    }
    Ok(chosen)
}

fn listed(there: &[Device]) -> String {
    let names: Vec<_> = there.iter().map(|device| device.name.as_str()).collect();
    match names.as_slice() {
        [] => "there is none".to_owned(),
        [one] => format!("there is {one} alone"),
        all => format!("there are {}", all.join(", ")),
    }
}

impl FromStr for Devices {
    type Err = String;

    /// `auto`, `cpu`, or names with commas between them.
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
                    "a name is empty; write devices as `corral doctor` lists them, with \
                            commas between them, or auto, or cpu"
                        .to_owned(),
                );
            }
            if is(name, "auto") || is(name, "cpu") {
                return Err(format!(
                    "'{name}' stands for itself alone; leave it away: what finds no room on devices \
                     stays with the processor anyway"
                ));
            }
            if names[..index].iter().any(|before| is(before, name)) {
                return Err(format!("the device '{name}' is named twice; name it once"));
            }
        }
        Ok(Self::Named(names.into_iter().map(str::to_owned).collect()))
    }
}

impl FromStr for Layers {
    type Err = String;

    /// `auto`, or a number.
    fn from_str(text: &str) -> Result<Self, String> {
        if text.eq_ignore_ascii_case("auto") {
            return Ok(Self::Auto);
        }
        let layers = text.parse().ok().map(Self::Exactly);
        layers.ok_or_else(|| {
            format!("'{text}' is no number of layers; write auto, or how many, e.g. 0 or 20")
        })
    }
}

impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Named(names) => f.write_str(&names.join(",")),
        }
    }
}

impl fmt::Display for Layers {
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

    fn names(chosen: &[Device]) -> Vec<&str> {
        chosen.iter().map(|device| device.name.as_str()).collect()
    }

    #[test]
    fn every_gpu_is_taken_once_and_integrated_ones_where_there_is_none() {
        use DeviceKind::{Accelerator, Cpu, Gpu, Integrated};
        let auto = |there: &[Device]| choose(&Devices::Auto, there).unwrap();
        let cpu = device("CPU", Cpu, None);
        let blas = device("BLAS", Accelerator, None);
        assert!(auto(&[cpu.clone(), blas]).is_empty());
        let here = [
            device("CUDA0", Gpu, Some("1")),
            device("CUDA1", Gpu, Some("2")),
            device("Vulkan0", Gpu, Some("1")),
            device("Vulkan1", Integrated, None),
            cpu.clone(),
        ];
        assert_eq!(names(&auto(&here)), ["CUDA0", "CUDA1"]);
        let here = [
            device("Vulkan0", Integrated, None),
            device("MTL0", Integrated, None),
            cpu,
        ];
        assert_eq!(names(&auto(&here)), ["Vulkan0"]);
        let many: Vec<_> = (0..20)
            .map(|n| device(&format!("CUDA{n}"), Gpu, None))
            .collect();
        assert_eq!(auto(&many).len(), MOST_DEVICES);
    }

    #[test]
    fn devices_are_found_by_name_or_the_error_lists_them() {
        let here = [
            device("Vulkan0", DeviceKind::Gpu, None),
            device("Vulkan1", DeviceKind::Integrated, None),
            device("CPU", DeviceKind::Cpu, None),
        ];
        let named = |text: &str| choose(&text.parse().unwrap(), &here);
        assert_eq!(
            names(&named("vulkan1,Vulkan0").unwrap()),
            ["Vulkan1", "Vulkan0"]
        );
        assert!(named("cpu").unwrap().is_empty());
        let twice = Devices::Named(vec!["Vulkan0".to_owned(), "vulkan0".to_owned()]);
        let error = choose(&twice, &here).unwrap_err();
        assert!(error.contains("'Vulkan0' is named twice"), "{error}");
        let error = named("nonsense").unwrap_err();
        assert!(error.contains("there are Vulkan0, Vulkan1, CPU"), "{error}");
        let alone = choose(
            &"CUDA0".parse().unwrap(),
            &[device("CPU", DeviceKind::Cpu, None)],
        );
        assert!(alone.unwrap_err().contains("there is CPU alone"));
    }

    #[test]
    fn what_is_written_is_read_and_nonsense_says_what_to_write() {
        for text in ["auto", "cpu", "CUDA0", "CUDA0,CUDA1"] {
            assert_eq!(text.parse::<Devices>().unwrap().to_string(), text);
        }
        assert_eq!("CPU".parse(), Ok(Devices::Cpu));
        for (text, said) in [
            ("", "is empty"),
            ("a,", "is empty"),
            ("a,cpu", "leave it away"),
            ("auto,a", "leave it away"),
            ("a,b,A", "named twice"),
        ] {
            let error = text.parse::<Devices>().unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
        for text in ["auto", "0", "99"] {
            assert_eq!(text.parse::<Layers>().unwrap().to_string(), text);
        }
        for text in ["", "x", "-1", "1.5"] {
            let error = text.parse::<Layers>().unwrap_err();
            assert!(error.contains("write auto"), "{text}: {error}");
        }
    }

    #[test]
    fn the_processor_alone_takes_no_layers_that_were_asked_for() {
        let offload = |devices, layers| Offload {
            devices,
            layers,
            kv: KvType::F16,
        };
        let none = offload(Devices::Cpu, Layers::Auto).chosen();
        assert!(none.expect("it is always there").is_empty());
        let none = offload(Devices::Auto, Layers::Exactly(0)).chosen();
        assert!(none.expect("nothing is asked of devices").is_empty());
        let error = offload(Devices::Cpu, Layers::Exactly(3)).chosen();
        let error = error.expect_err("there is nobody").to_string();
        assert!(error.contains("3 layers") && error.contains("corral doctor"));
    }
}
