//! Lookups in ggml's list of backends and devices, which live as long as the process. Load the backends first.

use llama_cpp_sys_2 as sys;
use std::ffi::{CStr, c_char, c_void};

/// Whether a backend computes on the CPU.
pub(crate) fn has_cpu() -> bool {
    !cpu().is_null()
}

fn cpu() -> sys::ggml_backend_dev_t {
    // SAFETY: reads the list of devices.
    unsafe { sys::ggml_backend_dev_by_type(sys::GGML_BACKEND_DEVICE_TYPE_CPU) }
}

/// The device of this name, which lives as long as the process.
pub(crate) fn device(name: &str) -> Option<sys::ggml_backend_dev_t> {
    devices().find(|device| {
        // SAFETY: the device lives as long as the process, and so does its name.
        let own = unsafe { text(sys::ggml_backend_dev_name(*device)) };
        own.eq_ignore_ascii_case(name)
    })
}

/// A function of the CPU backend by its name; null if there is none. Linking to such functions fails if the process
/// loads its backends at run time.
pub(crate) fn cpu_function(name: &CStr) -> *mut c_void {
    let device = cpu();
    if device.is_null() {
        return std::ptr::null_mut();
    }
    // SAFETY: the device and its backend live as long as the process; the name is NUL-terminated.
    unsafe {
        let backend = sys::ggml_backend_dev_backend_reg(device);
        sys::ggml_backend_reg_get_proc_address(backend, name.as_ptr())
    }
}

/// All devices, in ggml's order.
pub(crate) fn devices() -> impl Iterator<Item = sys::ggml_backend_dev_t> {
    // SAFETY: reads the list of devices, which grows only before anything is loaded.
    let count = unsafe { sys::ggml_backend_dev_count() };
    // SAFETY: the index is below the number of devices.
    (0..count).map(|index| unsafe { sys::ggml_backend_dev_get(index) })
}

/// A string of ggml's; empty for null.
///
/// # Safety
/// `string` must be null, or NUL-terminated and alive.
pub(crate) unsafe fn text(string: *const c_char) -> String {
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
    use crate::backends;

    #[test]
    fn devices_and_functions_are_found_by_name() {
        backends::start().expect("backends start");
        assert!(has_cpu());
        assert!(device("cpu").is_some());
        assert!(device("nonsense").is_none());
        assert!(!cpu_function(c"ggml_threadpool_new").is_null());
        assert!(cpu_function(c"ggml_no_such_thing").is_null());
    }
}
