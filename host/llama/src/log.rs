//! Forwards llama.cpp's log to `tracing` (target `llama`) and extracts facts that llama.cpp reports only there: the cause of
//! a failure, sizes of buffers and warnings about backends. Its lines also pace a load, see `load_observer.rs`. All state is
//! per thread, because llama.cpp logs in the thread that calls it.

use crate::load_observer;
use llama_cpp_sys_2 as sys;
use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_void};
use std::io::Write as _;
use std::sync::Once;

thread_local! {
    /// The first error since the last [`take_first_error`].
    static FIRST_ERROR: RefCell<Option<String>> = const { RefCell::new(None) };
    /// Location and bytes of the buffers since the last [`take_buffer_sizes`].
    static BUFFER_SIZES: RefCell<Vec<(String, u64)>> = const { RefCell::new(Vec::new()) };
    /// Errors and warnings, during [`capture`].
    static CAPTURED: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Precedes the size of a buffer, in MiB, in lines about weights, cells, recurrent states, output and computation.
/// llama.cpp's C interface exposes the sizes in no other way.
const BUFFER_SIZE: &str = " buffer size = ";
/// Most lines of a [`capture`].
const CAPTURED_LINES: usize = 64;

type OnLine = unsafe extern "C" fn(sys::ggml_log_level, *const c_char) -> bool;

unsafe extern "C" {
    /// Calls `on_line`, an [`OnLine`], and throws an exception if it returns false.
    fn corral_log(level: sys::ggml_log_level, text: *const c_char, on_line: *mut c_void);
}

/// Forwards llama.cpp's log to `tracing` instead of stderr. Called before anything is loaded; the first call counts.
pub(crate) fn forward() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let on_line = on_line as OnLine as *mut c_void;
        // SAFETY: `corral_log` has the signature that llama.cpp calls, and `on_line` the one that it calls; both stay valid
        // for the life of the process.
        unsafe { sys::llama_log_set(Some(corral_log), on_line) };
        // SAFETY: as above.
        unsafe { sys::mtmd_log_set(Some(corral_log), on_line) };
        // SAFETY: `on_abort` has the signature that ggml calls; it stays valid for the life of the process.
        unsafe { sys::ggml_set_abort_callback(Some(on_abort)) };
    });
}

/// Takes the first error of this thread since the last call. The first error of a failed load names the cause, later
/// ones its consequences.
pub(crate) fn take_first_error() -> Option<String> {
    FIRST_ERROR.take()
}

/// Takes the sizes of the buffers that this thread made since the last call: the location (`CPU`, `CUDA0`, `CUDA_Host` and
/// the like), and the bytes of all buffers there.
pub fn take_buffer_sizes() -> Vec<(String, u64)> {
    BUFFER_SIZES.take()
}

/// Runs `action` and returns the errors and warnings that it logs on this thread. Does not nest.
pub(crate) fn capture<T>(action: impl FnOnce() -> T) -> (T, Vec<String>) {
    CAPTURED.set(Some(Vec::new()));
    let result = action();
    (result, CAPTURED.take().unwrap_or_default())
}

fn add_buffer(sizes: &mut Vec<(String, u64)>, location: &str, bytes: u64) {
    match sizes.iter_mut().find(|(known, _)| known == location) {
        Some((_, sum)) => *sum = sum.saturating_add(bytes),
        None => sizes.push((location.to_owned(), bytes)),
    }
}

fn add_captured(text: &str) {
    CAPTURED.with_borrow_mut(|captured| {
        if let Some(lines) = captured
            .as_mut()
            .filter(|lines| lines.len() < CAPTURED_LINES)
        {
            lines.push(text.to_owned());
        }
    });
}

/// Parses location and bytes of a line about a buffer.
fn parse_buffer_size(line: &str) -> Option<(&str, u64)> {
    let (buffer, size) = line.split_once(BUFFER_SIZE)?;
    let mebibytes: f64 = size.trim().strip_suffix("MiB")?.trim().parse().ok()?;
    // The line starts with the name of a function.
    let buffer = buffer.split_once(": ").map_or(buffer, |(_, buffer)| buffer);
    let location = buffer.split_whitespace().next().unwrap_or_default();
    // Not truncated: no machine has 2^64 bytes.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    (mebibytes >= 0.0).then_some((location, (mebibytes * f64::from(1 << 20)) as u64))
}

/// Writes why a failed assertion ends the process. ggml's own way starts a debugger, which stops the process for a while.
unsafe extern "C" fn on_abort(message: *const c_char) {
    if !message.is_null() {
        // SAFETY: ggml passes a NUL-terminated string that lives until this function returns.
        let message = unsafe { CStr::from_ptr(message) }.to_string_lossy();
        let _ = writeln!(std::io::stderr(), "llama.cpp ends the process: {message}");
    }
}

/// Handles a line. False if the load that logs has to end.
unsafe extern "C" fn on_line(level: sys::ggml_log_level, text: *const c_char) -> bool {
    if text.is_null() {
        return true;
    }
    // SAFETY: llama.cpp passes a NUL-terminated string that lives until this function returns.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let text = text.trim();
    if text.is_empty() {
        return true;
    }
    match level {
        sys::GGML_LOG_LEVEL_ERROR => {
            tracing::debug!(target: "llama", "error: {text}");
            add_captured(text);
            FIRST_ERROR.with_borrow_mut(|first| {
                first.get_or_insert_with(|| text.to_owned());
            });
        }
        sys::GGML_LOG_LEVEL_WARN => {
            tracing::debug!(target: "llama", "warning: {text}");
            add_captured(text);
        }
        _ => {
            if let Some((location, bytes)) = parse_buffer_size(text) {
                BUFFER_SIZES.with_borrow_mut(|sizes| add_buffer(sizes, location, bytes));
            }
            tracing::trace!(target: "llama", "{text}");
        }
    }
    load_observer::passes_line(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capture_returns_a_bounded_number_of_lines() {
        add_captured("before");
        let (result, lines) = capture(|| {
            add_captured("a");
            add_captured("b");
            7
        });
        add_captured("after");
        assert_eq!((result, lines), (7, vec!["a".to_owned(), "b".to_owned()]));
        let (_, lines) = capture(|| (0..1000).for_each(|_| add_captured("again")));
        assert_eq!(lines.len(), CAPTURED_LINES);
    }

    #[test]
    fn buffer_sizes_are_parsed() {
        let line = "llama_kv_cache:        CPU KV buffer size =    12.50 MiB";
        assert_eq!(parse_buffer_size(line), Some(("CPU", 25 << 19)));
        let line = "load_tensors:  CUDA_Host model buffer size =     1.00 MiB";
        assert_eq!(parse_buffer_size(line), Some(("CUDA_Host", 1 << 20)));
        for line in [
            "",
            "x buffer size = many MiB",
            "x buffer size = -1.0 MiB",
            "KV self size = 1.0 MiB",
        ] {
            assert_eq!(parse_buffer_size(line), None, "{line}");
        }
    }
}
