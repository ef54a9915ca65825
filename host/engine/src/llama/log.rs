//! llama.cpp's log, led into `tracing`, with the last error kept so that a failed load can say why.

use llama_cpp_sys_2 as sys;
use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_void};
use std::sync::Once;

thread_local! {
    /// The last error llama.cpp logged on this thread; loading logs on the thread that loads.
    static LAST_ERROR: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Leads llama.cpp's log to `tracing` (target `llama`), in place of stderr. Called before the first
/// load; calling it again does nothing.
pub fn quiet_logs() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: `on_log` has the signature that llama.cpp calls and needs no user data; it stays
        // valid for the life of the process.
        unsafe { sys::llama_log_set(Some(on_log), std::ptr::null_mut()) };
    });
}

/// Forgets the last error and returns it.
pub fn take_last_error() -> Option<String> {
    LAST_ERROR.with(|slot| slot.borrow_mut().take())
}

unsafe extern "C" fn on_log(
    level: sys::ggml_log_level,
    text: *const c_char,
    _user_data: *mut c_void,
) {
    if text.is_null() {
        return;
    }
    // SAFETY: llama.cpp passes a NUL-terminated string that lives until this function returns.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let text = text.trim();
    if text.is_empty() {
        return;
    }
    match level {
        sys::GGML_LOG_LEVEL_ERROR => {
            tracing::debug!(target: "llama", "error: {text}");
            LAST_ERROR.with(|slot| {
                let mut slot = slot.borrow_mut();
                // The first error of a failed load names the cause, later ones its consequences.
                if slot.is_none() {
                    *slot = Some(text.to_owned());
                }
            });
        }
        sys::GGML_LOG_LEVEL_WARN => tracing::debug!(target: "llama", "warning: {text}"),
        _ => tracing::trace!(target: "llama", "{text}"),
    }
}
