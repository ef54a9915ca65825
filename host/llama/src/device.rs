//! Devices that ggml computes on: the CPU, and the devices of its other backends.

use crate::ggml::{self, text};
use crate::{LlamaError, backends};
use llama_cpp_sys_2 as sys;
use std::mem::MaybeUninit;
use strum::IntoStaticStr;

/// A device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its name, e.g. `CPU`, `CUDA0` or `Vulkan1`.
    pub name: String,
    /// The vendor's name of it.
    pub description: String,
    /// Its kind.
    pub kind: DeviceKind,
    /// Its backend, e.g. `CUDA`.
    pub backend: String,
    /// Free bytes of its memory. A device that does not report its memory counts as having the machine's.
    pub free: u64,
    /// Bytes of its memory.
    pub total: u64,
    /// Its bus address, if known: the same for one device that several backends find.
    pub id: Option<String>,
}

/// The kind of a device, as its backend reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum DeviceKind {
    /// The CPU.
    Cpu,
    /// A GPU with its own memory.
    Gpu,
    /// A GPU that shares the machine's memory.
    Integrated,
    /// An accelerator in the machine's memory, such as a BLAS library.
    Accelerator,
}

impl DeviceKind {
    /// Its name in JSON and in `corral doctor`.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// The devices that hold the last layers of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DevicePlacement {
    /// Names of the devices that share the layers; none for the CPU alone.
    pub devices: Vec<String>,
    /// Number of layers on devices; the output counts as one. 0 only without devices.
    pub gpu_layers: u32,
}

/// The devices of this process, in ggml's order, with their memory as it is now. The first call starts the
/// backends.
pub fn devices() -> Result<Vec<Device>, LlamaError> {
    backends::start()?;
    let mut devices: Vec<_> = ggml::devices().map(describe).collect();
    let cpu = devices.iter().find(|device| device.kind == DeviceKind::Cpu);
    let memory = cpu.map(|device| (device.free, device.total));
    // llama.cpp assumes the same when it distributes a model's layers.
    for device in devices.iter_mut().filter(|device| device.total == 0) {
        (device.free, device.total) = memory.unwrap_or_default();
    }
    Ok(devices)
}

fn describe(device: sys::ggml_backend_dev_t) -> Device {
    let mut props = MaybeUninit::<sys::ggml_backend_dev_props>::zeroed();
    // SAFETY: the device lives as long as the process. ggml fills the struct, of which zeroes (null
    // pointers, numbers and false) are valid too; the strings live as long as the device.
    unsafe {
        sys::ggml_backend_dev_get_props(device, props.as_mut_ptr());
        let props = props.assume_init();
        let backend = sys::ggml_backend_dev_backend_reg(device);
        Device {
            name: text(props.name),
            description: text(props.description),
            kind: match props.type_ {
                sys::GGML_BACKEND_DEVICE_TYPE_CPU => DeviceKind::Cpu,
                sys::GGML_BACKEND_DEVICE_TYPE_GPU => DeviceKind::Gpu,
                sys::GGML_BACKEND_DEVICE_TYPE_IGPU => DeviceKind::Integrated,
                _ => DeviceKind::Accelerator,
            },
            backend: if backend.is_null() {
                String::new()
            } else {
                text(sys::ggml_backend_reg_name(backend))
            },
            free: props.memory_free as u64,
            total: props.memory_total as u64,
            id: (!props.device_id.is_null()).then(|| text(props.device_id)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_is_listed_with_its_memory() {
        let devices = devices().expect("backends start");
        let cpus: Vec<_> = devices
            .iter()
            .filter(|device| device.kind == DeviceKind::Cpu)
            .collect();
        let [cpu] = cpus[..] else {
            panic!("expected one CPU: {devices:?}");
        };
        assert_eq!((cpu.name.as_str(), cpu.backend.as_str()), ("CPU", "CPU"));
        assert!(cpu.total >= cpu.free && cpu.free > 1 << 20);
    }
}
