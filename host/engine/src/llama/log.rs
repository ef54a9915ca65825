//! llama.cpp's log, led into `tracing`, with the last error kept so that a failed load can say why.

use llama_cpp_sys_2 as sys;
use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_void};
use std::sync::Once;

thread_local! {
    /// The last error llama.cpp logged on this thread; loading logs on the thread that loads.
    static LAST_ERROR: RefCell<Option<String>> = const { RefCell::new(None) };
    /// Where the buffers lie that llama.cpp said on this thread it had made, and their bytes.
    static BUFFERS: RefCell<Vec<(String, u64)>> = const { RefCell::new(Vec::new()) };
    /// Errors and warnings of this thread, while somebody listens.
    static HEARD: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
    /// Who is told how far llama.cpp's quantiser is on this thread.
    static WATCH: RefCell<Option<Watch>> = const { RefCell::new(None) };
}

/// Is told how many tensors are quantised, and of how many.
pub type Watch = Box<dyn FnMut(u64, u64)>;

/// Until this is dropped, somebody is told.
pub struct Watching(());

impl Drop for Watching {
    fn drop(&mut self) {
        WATCH.set(None);
    }
}

/// What stands before the size of a buffer, in MiB, in the lines about weights, cells, recurrent
/// states, output and computation. llama.cpp tells the sizes to nobody else but C++.
const BUFFER: &str = " buffer size = ";
/// Most lines that are kept for one who listens.
const HEARD_LINES: usize = 64;

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

/// The buffers made on this thread since the last call: where they lie (`CPU`, `CUDA0`, `CUDA_Host`
/// and the like), and the bytes of all that lie there.
pub fn take_buffers() -> Vec<(String, u64)> {
    BUFFERS.take()
}

/// Errors and warnings that are logged on this thread while `act` runs. One listens at a time.
pub fn listen<T>(act: impl FnOnce() -> T) -> (T, Vec<String>) {
    HEARD.set(Some(Vec::new()));
    let done = act();
    (done, HEARD.take().unwrap_or_default())
}

/// Adds to what lies at a place: there are never more entries than places.
fn add(buffers: &mut Vec<(String, u64)>, place: &str, bytes: u64) {
    match buffers.iter_mut().find(|(known, _)| known == place) {
        Some((_, sum)) => *sum = sum.saturating_add(bytes),
        None => buffers.push((place.to_owned(), bytes)),
    }
}

fn hear(text: &str) {
    HEARD.with_borrow_mut(|heard| {
        if let Some(lines) = heard.as_mut().filter(|lines| lines.len() < HEARD_LINES) {
            lines.push(text.to_owned());
        }
    });
}

/// Tells `watch` of each tensor that llama.cpp begins to quantise on this thread: it says so in
/// its log alone. `watch` must not call llama.cpp.
pub fn watch(watch: Watch) -> Watching {
    WATCH.set(Some(watch));
    Watching(())
}

/// The numbers at the beginning of a line like "[   2/ 310] token_embd.weight - [...".
fn numbered(line: &str) -> Option<(u64, u64)> {
    let (numbers, _) = line.strip_prefix('[')?.split_once(']')?;
    let (number, all) = numbers.split_once('/')?;
    Some((number.trim().parse().ok()?, all.trim().parse().ok()?))
}

/// Where a buffer lies and how many bytes it has, of a line that says so.
fn buffer(line: &str) -> Option<(&str, u64)> {
    let (what, size) = line.split_once(BUFFER)?;
    let mebibytes: f64 = size.trim().strip_suffix("MiB")?.trim().parse().ok()?;
    // The name of a function stands before.
    let what = what.split_once(": ").map_or(what, |(_, what)| what);
    let place = what.split_whitespace().next().unwrap_or_default();
    // Of a size that a machine can have there is nothing to cut off.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    (mebibytes >= 0.0).then_some((place, (mebibytes * f64::from(1 << 20)) as u64))
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
            hear(text);
            LAST_ERROR.with(|slot| {
                let mut slot = slot.borrow_mut();
                // The first error of a failed load names the cause, later ones its consequences.
                if slot.is_none() {
                    *slot = Some(text.to_owned());
                }
            });
        }
        sys::GGML_LOG_LEVEL_WARN => {
            tracing::debug!(target: "llama", "warning: {text}");
            hear(text);
        }
        _ => {
            if let Some((place, bytes)) = buffer(text) {
                BUFFERS.with_borrow_mut(|buffers| add(buffers, place, bytes));
            }
            if let Some((number @ 1.., all)) = numbered(text) {
                WATCH.with_borrow_mut(|watch| {
                    if let Some(watch) = watch {
                        watch(number - 1, all);
                    }
                });
            }
            tracing::trace!(target: "llama", "{text}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{buffer, hear, listen, numbered};

    #[test]
    fn who_listens_hears_what_is_said_meanwhile_and_no_more() {
        hear("before");
        let (done, heard) = listen(|| {
            hear("a");
            hear("b");
            7
        });
        hear("after");
        assert_eq!((done, heard), (7, vec!["a".to_owned(), "b".to_owned()]));
        let (_, heard) = listen(|| (0..1000).for_each(|_| hear("again")));
        assert_eq!(heard.len(), super::HEARD_LINES);
    }

    #[test]
    fn numbers_of_tensors_are_read() {
        let line =
            "[   2/ 310] token_embd.weight  - [  1024, 151936,     1,     1], type =    f16,";
        assert_eq!(numbered(line), Some((2, 310)));
        for line in ["", "2/310", "[2] a", "[a/b] c", "size = 2/3"] {
            assert_eq!(numbered(line), None, "{line}");
        }
    }

    #[test]
    fn sizes_of_buffers_are_read() {
        let line = "llama_kv_cache:        CPU KV buffer size =    12.50 MiB";
        assert_eq!(buffer(line), Some(("CPU", 25 << 19)));
        let line = "load_tensors:  CUDA_Host model buffer size =     1.00 MiB";
        assert_eq!(buffer(line), Some(("CUDA_Host", 1 << 20)));
        for line in [
            "",
            "x buffer size = many MiB",
            "x buffer size = -1.0 MiB",
            "KV self size = 1.0 MiB",
        ] {
            assert_eq!(buffer(line), None, "{line}");
        }
    }
}
