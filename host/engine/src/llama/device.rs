//! What ggml can compute on: the processor, and what its other backends found.

use super::registry;
use crate::LoadError;
use llama_cpp_sys_2 as sys;
use std::ffi::{CStr, c_char, c_void};
use std::mem::MaybeUninit;

/// Something that computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its name, e.g. `CPU`, `CUDA0` or `Vulkan1`.
    pub name: String,
    /// What its maker calls it.
    pub description: String,
    /// What it is.
    pub kind: DeviceKind,
    /// The backend that found it, e.g. `CUDA`.
    pub backend: String,
    /// Bytes of its memory that are free. A device that says nothing of its memory counts as having the
    /// machine's.
    pub free: u64,
    /// Bytes of its memory.
    pub total: u64,
    /// Where it is attached, if that is known: the same for one device that several backends found.
    pub id: Option<String>,
}

/// What a device is, as its backend says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// The processor.
    Cpu,
    /// A GPU with a memory of its own, or what a backend takes for one.
    Gpu,
    /// A GPU that shares the processor's memory.
    Integrated,
    /// Something that computes for the processor in its memory, such as a library for matrices.
    Accelerator,
}

impl DeviceKind {
    /// One word, which never changes.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Gpu => "gpu",
            Self::Integrated => "integrated",
            Self::Accelerator => "accelerator",
        }
    }
}

/// The devices of this process, in ggml's order, with their memory as it is now. The first call starts the
/// backends.
pub fn devices() -> Result<Vec<Device>, LoadError> {
    registry::start()?;
    let mut devices: Vec<_> = pointers().map(look).collect();
    let processor = devices.iter().find(|device| device.kind == DeviceKind::Cpu);
    let memory = processor.map(|device| (device.free, device.total));
    // As llama.cpp takes it, when it shares a model's layers out.
    for device in devices.iter_mut().filter(|device| device.total == 0) {
        (device.free, device.total) = memory.unwrap_or_default();
    }
    Ok(devices)
}

/// The device of this name, which lives as long as the process.
pub(super) fn pointer(name: &str) -> Option<sys::ggml_backend_dev_t> {
    pointers().find(|device| {
        // SAFETY: the device lives as long as the process, and so does its name.
        let own = unsafe { text(sys::ggml_backend_dev_name(*device)) };
        own.eq_ignore_ascii_case(name)
    })
}

/// A function of the processor's backend by its name; null if there is none. Without it such functions
/// can't be linked where backends are loaded when the process runs.
pub(super) fn processor_function(name: &CStr) -> *mut c_void {
    // SAFETY: looks at the list of devices.
    let device = unsafe { sys::ggml_backend_dev_by_type(sys::GGML_BACKEND_DEVICE_TYPE_CPU) };
    if device.is_null() {
        return std::ptr::null_mut();
    }
    // SAFETY: the device and its backend live as long as the process; the name is NUL-terminated.
    unsafe {
        let backend = sys::ggml_backend_dev_backend_reg(device);
        sys::ggml_backend_reg_get_proc_address(backend, name.as_ptr())
    }
}

fn pointers() -> impl Iterator<Item = sys::ggml_backend_dev_t> {
    // SAFETY: looks at the list of devices, which only grows, and only before anything is loaded.
    let count = unsafe { sys::ggml_backend_dev_count() };
    // SAFETY: the index is below the number of devices.
    (0..count).map(|index| unsafe { sys::ggml_backend_dev_get(index) })
}

fn look(device: sys::ggml_backend_dev_t) -> Device {
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

/// A string of ggml's; empty for null.
///
/// # Safety
/// `string` must be null, or NUL-terminated and alive.
pub(super) unsafe fn text(string: *const c_char) -> String {
    if string.is_null() {
        return String::new();
    }
    // SAFETY: the caller says that it is a live C string.
    let text = unsafe { CStr::from_ptr(string) };
    text.to_string_lossy().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_is_always_there_with_its_memory() {
        let devices = devices().expect("backends start");
        let processors: Vec<_> = devices
            .iter()
            .filter(|device| device.kind == DeviceKind::Cpu)
            .collect();
        assert_eq!(processors.len(), 1, "{devices:?}");
        assert_eq!(
            (processors[0].name.as_str(), processors[0].backend.as_str()),
            ("CPU", "CPU")
        );
        assert!(processors[0].total >= processors[0].free && processors[0].free > 1 << 20);
        assert!(pointer("cpu").is_some());
        assert!(pointer("nonsense").is_none());
    }

    #[test]
    fn functions_of_the_processor_are_found_by_name() {
        registry::start().expect("backends start");
        assert!(!processor_function(c"ggml_threadpool_new").is_null());
        assert!(processor_function(c"ggml_no_such_thing").is_null());
    }
}
