//! The status of each backend: its devices, or why it has none.

use crate::LlamaError;
use crate::backends::{Registry, lock, start};
use crate::device::devices;
use crate::ggml::text;
use llama_cpp_sys_2 as sys;
use std::ffi::CStr;

/// The status of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendStatus {
    /// Its name, e.g. `CPU` or `Vulkan`.
    pub name: String,
    /// The names of its devices.
    pub devices: Vec<String>,
    /// Features that it reports, such as instruction sets.
    pub features: Vec<String>,
    /// Why it has no devices, and the remedy.
    pub problem: Option<String>,
}

/// A backend that Corral can be built with.
struct KnownBackend {
    /// Its name in ggml.
    name: &'static str,
    /// Its name in the file name.
    file: &'static str,
    /// The cargo feature that builds it, and whether it is on.
    feature: &'static str,
    built: bool,
}

const KNOWN: [KnownBackend; 5] = [
    KnownBackend {
        name: "CPU",
        file: "cpu",
        feature: "",
        built: true,
    },
    KnownBackend {
        name: "CUDA",
        file: "cuda",
        feature: "cuda",
        built: cfg!(feature = "cuda"),
    },
    KnownBackend {
        name: "ROCm",
        file: "hip",
        feature: "rocm",
        built: cfg!(feature = "rocm"),
    },
    KnownBackend {
        name: "Vulkan",
        file: "vulkan",
        feature: "vulkan",
        built: cfg!(feature = "vulkan"),
    },
    KnownBackend {
        name: "MTL",
        file: "metal",
        feature: "metal",
        built: cfg!(feature = "metal"),
    },
];

/// The cargo features of this build: `dynamic-backends` and backends.
pub fn built_with() -> Vec<&'static str> {
    let dynamic = cfg!(feature = "dynamic-backends").then_some("dynamic-backends");
    let backends = KNOWN.iter().filter(|known| known.built);
    let features = backends.map(|known| known.feature);
    dynamic
        .into_iter()
        .chain(features.filter(|feature| !feature.is_empty()))
        .collect()
}

/// The status of every backend of this process, and of the others that Corral can be built with. The first call starts
/// the backends.
pub fn backends() -> Result<Vec<BackendStatus>, LlamaError> {
    start()?;
    let devices = devices()?;
    let registered = registered();
    let registry = lock();
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
            Some(_) => Some(registry.no_device(known)),
            None => Some(registry.not_running(known)),
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
    if crate::attention::is_installed() {
        let processor = all.iter_mut().filter(|backend| backend.name == "CPU");
        processor.for_each(|cpu| cpu.features.push("CORRAL_ATTENTION".to_owned()));
    }
    Ok(all)
}

impl Registry {
    /// Why a running backend has no device.
    fn no_device(&self, known: &KnownBackend) -> String {
        let lines = self.log_of(known);
        if !lines.is_empty() {
            return format!("it found no device: {}", lines.join("; "));
        }
        let devices_chosen = std::env::var_os("GGML_VK_VISIBLE_DEVICES").is_some();
        match known.file {
            "vulkan" if !devices_chosen => {
                "it found no GPU; to use a software device such as lavapipe, set \
                 GGML_VK_VISIBLE_DEVICES=0"
                    .to_owned()
            }
            _ => {
                "it found no device; check that its driver is installed and that this user may use it"
                    .to_owned()
            }
        }
    }

    /// Why a backend does not run.
    fn not_running(&self, known: &KnownBackend) -> String {
        let feature = known.feature;
        if feature == "metal" && !cfg!(target_vendor = "apple") {
            return "it is for macOS".to_owned();
        }
        if !cfg!(feature = "dynamic-backends") {
            if !known.built {
                return format!("not built in; build with `make build FEATURES={feature}`");
            }
            let lines = self.log_of(known);
            return match lines.is_empty() {
                true => "it is built in and did not start; check that its driver is installed"
                    .to_owned(),
                false => format!("it is built in and did not start: {}", lines.join("; ")),
            };
        }
        let file = self.files.iter().find(|file| file.name == known.file);
        match file {
            Some(file) => {
                let problem = file.problem.as_deref().unwrap_or("it does not run");
                format!("{} was not loaded: {problem}", file.path.display())
            }
            None => format!(
                "there is no libggml-{} in {}; copy it there, or build with `make dist BACKENDS={feature}`",
                known.file,
                self.dir.clone().unwrap_or_default().display()
            ),
        }
    }

    /// Errors and warnings about a backend from its start.
    fn log_of(&self, known: &KnownBackend) -> Vec<String> {
        let name = known.name.to_lowercase();
        let about = |line: &&String| {
            let line = line.to_lowercase();
            line.contains(known.file) || line.contains(&name)
        };
        let built_in = self.log.iter().filter(about);
        let own = self.files.iter().filter(|file| file.name == known.file);
        let loaded = own.flat_map(|file| &file.log);
        built_in.chain(loaded).cloned().collect()
    }
}

/// Names and features of ggml's backends.
fn registered() -> Vec<(String, Vec<String>)> {
    // SAFETY: counts the backends, which no longer change.
    let count = unsafe { sys::ggml_backend_reg_count() };
    let one = |index| {
        // SAFETY: the index is below their number; a backend and its name live as long as the process.
        unsafe {
            let backend = sys::ggml_backend_reg_get(index);
            (text(sys::ggml_backend_reg_name(backend)), features(backend))
        }
    };
    (0..count).map(one).collect()
}

/// # Safety
/// `backend` is one of ggml's list.
unsafe fn features(backend: sys::ggml_backend_reg_t) -> Vec<String> {
    const NAME: &CStr = c"ggml_backend_get_features";
    // SAFETY: the backend lives as long as the process, and the name is NUL-terminated. The address is null or a function
    // of this type, which returns an array that lives as long and ends with a null name; names and values are C strings
    // that live as long.
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
    fn unused_backends_report_a_problem() {
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
            assert!(cuda.contains("FEATURES=cuda"), "{cuda}");
        }
    }

    #[test]
    fn problem_includes_the_log_of_the_backend() {
        let mut registry = Registry::new();
        registry.log = vec!["ggml_cuda_init: failed: no driver".to_owned()];
        let cuda = registry.no_device(&KNOWN[1]);
        assert!(cuda.contains("no driver"), "{cuda}");
        let rocm = registry.no_device(&KNOWN[2]);
        assert!(!rocm.contains("no driver"), "{rocm}");
        registry.log.clear();
        let cuda = registry.no_device(&KNOWN[1]);
        assert!(cuda.contains("driver is installed"), "{cuda}");
    }
}
