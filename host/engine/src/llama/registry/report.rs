//! Which backends there are, and why others are not used.

use super::super::device::{devices, text};
use super::{State, lock, start};
use crate::LoadError;
use llama_cpp_sys_2 as sys;
use std::ffi::CStr;

/// A backend, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendStatus {
    /// Its name, e.g. `CPU` or `Vulkan`.
    pub name: String,
    /// The names of its devices.
    pub devices: Vec<String>,
    /// What it was built for or found on this machine, as it says: instruction sets and the like.
    pub features: Vec<String>,
    /// Why it has no devices, and what to do about it.
    pub problem: Option<String>,
}

/// A backend that Corral can be built with.
struct Known {
    /// What ggml calls it.
    name: &'static str,
    /// What its file is called.
    file: &'static str,
    /// The feature that it is built with, and whether it was.
    feature: &'static str,
    built: bool,
}

const KNOWN: [Known; 5] = [
    Known {
        name: "CPU",
        file: "cpu",
        feature: "",
        built: true,
    },
    Known {
        name: "CUDA",
        file: "cuda",
        feature: "cuda",
        built: cfg!(feature = "cuda"),
    },
    Known {
        name: "ROCm",
        file: "hip",
        feature: "rocm",
        built: cfg!(feature = "rocm"),
    },
    Known {
        name: "Vulkan",
        file: "vulkan",
        feature: "vulkan",
        built: cfg!(feature = "vulkan"),
    },
    Known {
        name: "MTL",
        file: "metal",
        feature: "metal",
        built: cfg!(feature = "metal"),
    },
];

/// The features of this build: `dynamic-backends`, and backends.
pub fn built_with() -> Vec<&'static str> {
    let dynamic = cfg!(feature = "dynamic-backends").then_some("dynamic-backends");
    let backends = KNOWN.iter().filter(|known| known.built);
    let features = backends.map(|known| known.feature);
    dynamic
        .into_iter()
        .chain(features.filter(|feature| !feature.is_empty()))
        .collect()
}

/// Every backend that this process has, and those that Corral can be built with beside them. The first call
/// starts those that there are.
pub fn backends() -> Result<Vec<BackendStatus>, LoadError> {
    start()?;
    let devices = devices()?;
    let registered = registered();
    let state = lock();
    let of = |name: &str| -> Vec<String> {
        let own = devices.iter().filter(|device| device.backend == name);
        own.map(|device| device.name.clone()).collect()
    };
    let mut all: Vec<BackendStatus> = Vec::new();
    for known in &KNOWN {
        let found = registered.iter().find(|(name, _)| name == known.name);
        let devices = of(known.name);
        let problem = match found {
            Some(_) if !devices.is_empty() => None,
            Some(_) => Some(state.without_device(known)),
            None => Some(state.missing(known)),
        };
        all.push(BackendStatus {
            name: known.name.to_owned(),
            devices,
            features: found.map_or_else(Vec::new, |(_, features)| features.clone()),
            problem,
        });
    }
    for (name, features) in registered {
        if KNOWN.iter().all(|known| known.name != name) {
            let devices = of(&name);
            let none = "it found no device".to_owned();
            all.push(BackendStatus {
                problem: devices.is_empty().then_some(none),
                name,
                devices,
                features,
            });
        }
    }
    #[cfg(own_attention)]
    if super::super::attention::is_installed() {
        let processor = all.iter_mut().filter(|backend| backend.name == "CPU");
        processor.for_each(|cpu| cpu.features.push("CORRAL_ATTENTION".to_owned()));
    }
    Ok(all)
}

impl State {
    /// Of a backend that runs and has no device.
    fn without_device(&self, known: &Known) -> String {
        let said = self.said_by(known);
        if !said.is_empty() {
            return format!("it found no device: {}", said.join("; "));
        }
        let named = std::env::var_os("GGML_VK_VISIBLE_DEVICES").is_some();
        match known.file {
            "vulkan" if !named => {
                "it found no GPU; devices of software, such as lavapipe, are left out \
                                   unless they are named: GGML_VK_VISIBLE_DEVICES=0"
                    .to_owned()
            }
            _ => {
                "it found no device; is its driver installed, and may this user use it?".to_owned()
            }
        }
    }

    /// Of a backend that does not run.
    fn missing(&self, known: &Known) -> String {
        let feature = known.feature;
        if !cfg!(feature = "dynamic-backends") {
            if !known.built {
                return format!("not built into this binary: build with `--features {feature}`");
            }
            let said = self.said_by(known);
            return match said.is_empty() {
                true => "it is built in and did not start: is its driver installed?".to_owned(),
                false => format!("it is built in and did not start: {}", said.join("; ")),
            };
        }
        let file = self.files.iter().find(|file| file.name == known.file);
        match file {
            Some(file) => {
                let problem = file.problem.as_deref().unwrap_or("it does not run");
                format!("{} was not loaded: {problem}", file.path.display())
            }
            None => format!(
                "there is no libggml-{} in {}: build with `--features {feature}`, or put it there",
                known.file,
                self.folder.clone().unwrap_or_default().display()
            ),
        }
    }

    /// What was logged about a backend when it was started.
    fn said_by(&self, known: &Known) -> Vec<String> {
        let name = known.name.to_lowercase();
        let about = |line: &&String| {
            let line = line.to_lowercase();
            line.contains(known.file) || line.contains(&name)
        };
        let built_in = self.said.iter().filter(about);
        let own = self.files.iter().filter(|file| file.name == known.file);
        let loaded = own.flat_map(|file| &file.said);
        built_in.chain(loaded).cloned().collect()
    }
}

/// Names of ggml's backends, and what each says of itself.
fn registered() -> Vec<(String, Vec<String>)> {
    // SAFETY: counts the backends, which stay as they are once they were started.
    let count = unsafe { sys::ggml_backend_reg_count() };
    let one = |index| {
        // SAFETY: the index is below their number; a backend lives as long as the process, and its
        // name with it.
        unsafe {
            let backend = sys::ggml_backend_reg_get(index);
            (text(sys::ggml_backend_reg_name(backend)), features(backend))
        }
    };
    (0..count).map(one).collect()
}

/// # Safety
/// `backend` must be one of ggml's list.
unsafe fn features(backend: sys::ggml_backend_reg_t) -> Vec<String> {
    const NAME: &CStr = c"ggml_backend_get_features";
    // SAFETY: the backend lives as long as the process, and the name is NUL-terminated. What stands under
    // this name is null or a function of this type, which gives an array that lives as long and ends with
    // a null name; names and values are C strings that live as long.
    unsafe {
        let address = sys::ggml_backend_reg_get_proc_address(backend, NAME.as_ptr());
        let get =
            std::mem::transmute::<*mut std::ffi::c_void, sys::ggml_backend_get_features_t>(address);
        let Some(get) = get else {
            return Vec::new();
        };
        let mut all = Vec::new();
        let mut next = get(backend);
        while !next.is_null() && !(*next).name.is_null() {
            let (name, value) = (text((*next).name), text((*next).value));
            match value.as_str() {
                "1" => all.push(name),
                _ => all.push(format!("{name}={value}")),
            }
            next = next.add(1);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_is_used_and_all_others_say_why_not() {
        let all = backends().expect("they start");
        let names: Vec<_> = all.iter().map(|backend| backend.name.as_str()).collect();
        assert_eq!(names[..5], ["CPU", "CUDA", "ROCm", "Vulkan", "MTL"]);
        for backend in &all {
            let is_used = backend.problem.is_none();
            assert_eq!(is_used, !backend.devices.is_empty(), "{backend:?}");
        }
        assert_eq!(all[0].devices, ["CPU"]);
        #[cfg(target_arch = "x86_64")]
        assert!(!all[0].features.is_empty(), "{:?}", all[0]);
        if built_with().is_empty() {
            let cuda = all[1].problem.as_deref().expect("it is not built in");
            assert!(cuda.contains("--features cuda"), "{cuda}");
        }
    }

    #[test]
    fn what_a_backend_said_is_told() {
        let mut state = State {
            started: true,
            folder: None,
            files: Vec::new(),
            said: vec!["ggml_cuda_init: failed: no driver".to_owned()],
        };
        let cuda = state.without_device(&KNOWN[1]);
        assert!(cuda.contains("no driver"), "{cuda}");
        let rocm = state.without_device(&KNOWN[2]);
        assert!(!rocm.contains("no driver"), "{rocm}");
        state.said.clear();
        let cuda = state.without_device(&KNOWN[1]);
        assert!(cuda.contains("is its driver installed"), "{cuda}");
    }
}
