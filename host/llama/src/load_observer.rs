//! Follows a load inside llama.cpp, and asks its gate before each stage.
//!
//! llama.cpp calls back for each tensor, but not while it reads the header. It logs there, on the thread that loads: the lines
//! between which it works for long divide the header into parts. `log.cpp` ends a load at a line.
//!
//! *Invariant*: every load asks for the same parts of a header in the same order, whatever the file has llama.cpp log.

use crate::{LoadGate, LoadProgress, LoadStage};
use llama_cpp_sys_2 as sys;
use std::cell::Cell;
use std::ffi::{CStr, c_void};
use std::ptr;

/// The beginnings of the lines after each part of the header but the last: the file is parsed; its values are listed; tokens
/// and merges are in their maps; the tokens that end a generation are found; the bytes of all tokens are known. Function
/// names come first, so that no text of a file is such a line.
const PART_ENDS: [&str; LoadStage::HEADER_PARTS - 1] = [
    "llama_model_loader: Dumping metadata keys/values",
    "print_info: file format",
    "init_tokenizer: initializing tokenizer",
    "load: printing all EOG tokens",
    "load: token to piece cache size",
];

thread_local! {
    /// The observer of the load that llama.cpp does on this thread, or null.
    static CURRENT: Cell<*const LoadObserver<'static>> = const { Cell::new(ptr::null()) };
}

/// What a load reports to.
pub(crate) struct LoadObserver<'a> {
    progress: &'a LoadProgress,
    gate: LoadGate<'a>,
    /// Parts of the header that llama.cpp has begun to read.
    header_parts: Cell<usize>,
    /// Tensors whose weights llama.cpp has begun to read.
    tensors: Cell<usize>,
    /// Whether the gate has ended the load.
    refused: Cell<bool>,
}

impl<'a> LoadObserver<'a> {
    pub fn new(progress: &'a LoadProgress, gate: LoadGate<'a>) -> Self {
        Self {
            progress,
            gate,
            header_parts: Cell::new(0),
            tensors: Cell::new(0),
            refused: Cell::new(false),
        }
    }

    /// Has llama.cpp load `file`. Null if it refuses the file, or if the load is ended.
    ///
    /// # Safety
    /// The pointers of `params` are null or valid during the call, and its list of devices ends with null.
    pub unsafe fn load(
        &self,
        file: &CStr,
        mut params: sys::llama_model_params,
    ) -> *mut sys::llama_model {
        if !self.begin_header(1) {
            return ptr::null_mut();
        }
        params.progress_callback = Some(on_progress);
        params.progress_callback_user_data = ptr::from_ref(self).cast_mut().cast();
        CURRENT.set(ptr::from_ref(self).cast());
        // SAFETY: `file` is NUL-terminated, and both it and `self` outlive the call; llama.cpp keeps no pointer to them
        // after it. The caller answers for `params`.
        let model = unsafe { sys::llama_model_load_from_file(file.as_ptr(), params) };
        CURRENT.set(ptr::null());
        model
    }

    /// Whether the gate lets `stage` begin.
    pub fn passes(&self, stage: LoadStage) -> bool {
        let passes = (self.gate)(stage);
        self.refused.set(!passes);
        passes
    }

    /// Tensors whose weights were read, and one for the end of all.
    pub fn tensors(&self) -> usize {
        self.tensors.get()
    }

    /// Whether the load was canceled, or ended by the gate.
    pub fn is_ended(&self) -> bool {
        self.progress.is_canceled() || self.refused.get()
    }

    /// Begins the parts of the header before `end` that have not begun. Whether the gate lets all of them begin.
    fn begin_header(&self, end: usize) -> bool {
        (self.header_parts.get()..end).all(|part| {
            self.header_parts.set(part + 1);
            self.passes(LoadStage::Header(part))
        })
    }
}

/// Whether the load on this thread, if there is one, goes on after a line of llama.cpp's log.
pub(crate) fn passes_line(text: &str) -> bool {
    // SAFETY: `LoadObserver::load` sets it, on this thread, to an observer that it borrows until it sets null.
    let Some(observer) = (unsafe { CURRENT.get().as_ref() }) else {
        return true;
    };
    let ended = PART_ENDS.iter().position(|line| text.starts_with(line));
    ended.is_none_or(|part| observer.begin_header(part + 2))
}

/// llama.cpp calls this before it reads each tensor's weights and at the end, and gives up if it returns false.
unsafe extern "C" fn on_progress(fraction: f32, data: *mut c_void) -> bool {
    // SAFETY: `data` is the observer that `LoadObserver::load` borrows until llama.cpp is done. llama.cpp calls this on the
    // thread that loads; the fields of `LoadProgress` are atomic, so other threads may use it.
    let observer = unsafe { &*data.cast::<LoadObserver<'_>>() };
    observer.progress.set_fraction(fraction);
    let tensor = observer.tensors.get();
    observer.tensors.set(tensor.saturating_add(1));
    observer.begin_header(LoadStage::HEADER_PARTS)
        && observer.passes(LoadStage::Weights(tensor))
        && !observer.progress.is_canceled()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DevicePlacement, FileAccess, Model};
    use std::cell::RefCell;
    use std::path::Path;

    #[test]
    fn each_part_of_header_ends_with_a_line() {
        let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny/tiny.gguf");
        let progress = LoadProgress::default();
        // The first tensor sets it to 0.
        progress.set_fraction(1.0);
        let seen = RefCell::new(Vec::new());
        let gate = |stage: LoadStage| {
            if let LoadStage::Header(part) = stage {
                seen.borrow_mut().push((part, progress.fraction()));
            }
            true
        };
        let placement = DevicePlacement::default();
        Model::load_gated(&tiny, placement, FileAccess::Read, &progress, &gate).unwrap();
        let expected = Vec::from_iter((0..LoadStage::HEADER_PARTS).map(|part| (part, 1.0)));
        assert_eq!(seen.into_inner(), expected);
    }
}
