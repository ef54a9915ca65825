//! How each kind of llama.cpp memory behaves when sequences are cut, shared, saved and aborted. Corral relies on these
//! facts (`Model::can_truncate`). The contexts are made as `LlamaContext` makes its own.

use corral_llama::{DevicePlacement, LoadProgress, Model, Token};
use corral_random_model::{Architecture, Qwen3, WINDOW, write_model};
use llama_cpp_sys_2 as sys;
use std::ffi::{CStr, c_void};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

#[path = "memory_kinds/hybrid.rs"]
mod hybrid;
#[path = "memory_kinds/recurrent.rs"]
mod recurrent;
#[path = "memory_kinds/sliding_window.rs"]
mod sliding_window;

/// Sequence ids of a context here.
const IDS: u32 = 4;
/// Most tokens in a step.
const STEP_TOKENS: u32 = 64;
const CELLS: u32 = 512;

/// Logits that differ by less were computed from the same memory: what is left comes from
/// rounding, which depends on how many rows a step has (measured: up to 0.006).
const SAME: f32 = 0.03;
/// Logits that differ by more were not (measured: 0.19 or more).
const OTHER: f32 = 0.1;

fn all_shapes() -> [Architecture; 4] {
    [
        Architecture::Mamba,
        Architecture::Hybrid,
        Architecture::SlidingWindow,
        Architecture::Qwen3(Qwen3::tiny()),
    ]
}

fn model(shape: &Architecture) -> Arc<Model> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let file = format!("corral-memories-{}-{number}.gguf", std::process::id());
    let file = std::env::temp_dir().join(file);
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny/tiny.gguf");
    write_model(shape, &tiny, &file, 1).expect("the model is written");
    assert!(std::fs::metadata(&file).expect("it is there").len() < 2_000_000);
    let model = Model::load(&file, DevicePlacement::default(), &LoadProgress::default())
        .expect("the model loads");
    std::fs::remove_file(&file).expect("it can be removed");
    Arc::new(model)
}

/// Some text, which never repeats itself for long.
fn words(count: u32) -> Vec<Token> {
    (0..count).map(|n| (n * n * 7 + n * 31 + 5) % 250).collect()
}

/// Counts graphs, and aborts them from one on.
#[derive(Default)]
struct Watch {
    graphs: AtomicU32,
    /// The first graph to abort, counted from 1; 0 for none.
    abort: AtomicU32,
}

/// A context and the functions of llama.cpp that this is about, unchanged.
struct Memory {
    context: NonNull<sys::llama_context>,
    watch: Box<Watch>,
    model: Arc<Model>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: made by `llama_init_from_model` and freed once; the model outlives it.
        unsafe { sys::llama_free(self.context.as_ptr()) };
    }
}

impl Memory {
    fn new(model: &Arc<Model>) -> Self {
        Self::with(model, |_| {})
    }

    fn with(model: &Arc<Model>, change: impl FnOnce(&mut sys::llama_context_params)) -> Self {
        let watch = Box::<Watch>::default();
        let data = std::ptr::from_ref(&*watch).cast_mut().cast::<c_void>();
        // SAFETY: no arguments, a plain struct out.
        let mut params = unsafe { sys::llama_context_default_params() };
        params.n_ctx = CELLS;
        params.n_batch = STEP_TOKENS;
        params.n_ubatch = STEP_TOKENS;
        params.n_seq_max = IDS;
        params.n_threads = 1;
        params.n_threads_batch = 1;
        params.flash_attn_type = sys::LLAMA_FLASH_ATTN_TYPE_ENABLED;
        params.kv_unified = true;
        params.cb_eval = Some(on_node);
        params.cb_eval_user_data = data;
        change(&mut params);
        // SAFETY: the model is alive and kept; the callbacks' data stands in a box that this value
        // keeps, and is only ever read through shared references.
        let context = unsafe {
            let context = sys::llama_init_from_model(model.as_ptr(), params);
            let context = NonNull::new(context).expect("a context can be made");
            sys::llama_set_abort_callback(context.as_ptr(), Some(on_abort), data);
            context
        };
        let memory = Self {
            context,
            watch,
            model: model.clone(),
        };
        memory.watch.graphs.store(0, Ordering::Relaxed);
        memory
    }

    fn memory(&self) -> sys::llama_memory_t {
        // SAFETY: the context is alive; the memory it returns lives as long.
        unsafe { sys::llama_get_memory(self.context.as_ptr()) }
    }

    /// Decodes one step; the logits after its last token.
    fn step(&mut self, rows: &[(u16, u32, &[Token])]) -> Result<Vec<f32>, i32> {
        let (mut ids, mut positions, mut seqs) = (Vec::new(), Vec::new(), Vec::new());
        for &(seq, from, tokens) in rows {
            for (position, &token) in (from..).zip(tokens) {
                ids.push(token.cast_signed());
                positions.push(position.cast_signed());
                seqs.push(i32::from(seq));
            }
        }
        let count = ids.len();
        let mut seq_pointers: Vec<_> = seqs.iter_mut().map(|seq| &raw mut *seq).collect();
        let (mut seq_counts, mut outputs) = (vec![1; count], vec![0; count]);
        outputs[count - 1] = 1;
        let batch = sys::llama_batch {
            n_tokens: i32::try_from(count).expect("a small batch"),
            token: ids.as_mut_ptr(),
            embd: std::ptr::null_mut(),
            pos: positions.as_mut_ptr(),
            n_seq_id: seq_counts.as_mut_ptr(),
            seq_id: seq_pointers.as_mut_ptr(),
            logits: outputs.as_mut_ptr(),
        };
        // SAFETY: the arrays outlive the call and are as long as the batch says; ids and tokens are in bounds.
        match unsafe { sys::llama_decode(self.context.as_ptr(), batch) } {
            0 => {}
            code => return Err(code),
        }
        // SAFETY: the last token was an output; a row holds one f32 for each token.
        unsafe {
            let row = sys::llama_get_logits_ith(self.context.as_ptr(), -1);
            assert!(!row.is_null());
            Ok(std::slice::from_raw_parts(row, self.model.vocabulary_size()).to_vec())
        }
    }

    /// Reads tokens into a sequence, in steps of at most 16; the logits after the last.
    fn read(&mut self, seq: u16, from: u32, tokens: &[Token]) -> Vec<f32> {
        let mut logits = Vec::new();
        for (from, part) in (from..).step_by(16).zip(tokens.chunks(16)) {
            logits = self
                .step(&[(seq, from, part)])
                .expect("the step is computed");
        }
        logits
    }

    fn remove(&mut self, seq: u16, from: i32, to: i32) -> bool {
        // SAFETY: the context is alive and the id within its bounds.
        unsafe { sys::llama_memory_seq_rm(self.memory(), i32::from(seq), from, to) }
    }

    fn copy(&mut self, from: u16, to: u16, start: i32, end: i32) {
        let (from, to) = (i32::from(from), i32::from(to));
        // SAFETY: the context is alive and the ids within its bounds.
        unsafe { sys::llama_memory_seq_cp(self.memory(), from, to, start, end) }
    }

    /// First and last position of a sequence; -1 for none.
    fn span(&self, seq: u16) -> (i32, i32) {
        let (memory, seq) = (self.memory(), i32::from(seq));
        // SAFETY: the context is alive and the id within its bounds.
        unsafe {
            (
                sys::llama_memory_seq_pos_min(memory, seq),
                sys::llama_memory_seq_pos_max(memory, seq),
            )
        }
    }

    fn save(&mut self, seq: u16) -> Vec<u8> {
        let (context, seq) = (self.context.as_ptr(), i32::from(seq));
        // SAFETY: the context is alive, the id within its bounds and the buffer as long as is said.
        unsafe {
            let size = sys::llama_state_seq_get_size(context, seq);
            let mut state = vec![0; size];
            let written = sys::llama_state_seq_get_data(context, state.as_mut_ptr(), size, seq);
            assert_eq!(written, size);
            state
        }
    }

    fn load(&mut self, seq: u16, state: &[u8]) {
        let (context, seq) = (self.context.as_ptr(), i32::from(seq));
        // SAFETY: as above, and the state was saved by a context of the same model.
        let read =
            unsafe { sys::llama_state_seq_set_data(context, state.as_ptr(), state.len(), seq) };
        assert_eq!(read, state.len(), "the state is taken");
    }

    /// Runs of the whole model since it was last asked.
    fn graphs(&self) -> u32 {
        self.watch.graphs.swap(0, Ordering::Relaxed)
    }
}

unsafe extern "C" fn on_node(node: *mut sys::ggml_tensor, ask: bool, data: *mut c_void) -> bool {
    // SAFETY: llama.cpp passes a live node with a NUL-terminated name; `data` is the context's
    // `Watch`, which outlives it.
    let (name, watch) = unsafe {
        (
            CStr::from_ptr((*node).name.as_ptr()),
            &*data.cast::<Watch>(),
        )
    };
    if ask && name == c"result_output" {
        watch.graphs.fetch_add(1, Ordering::Relaxed);
    }
    // Not wanted for a look; and go on.
    !ask
}

unsafe extern "C" fn on_abort(data: *mut c_void) -> bool {
    // SAFETY: `data` is the context's `Watch`, which outlives it.
    let watch = unsafe { &*data.cast::<Watch>() };
    let abort = watch.abort.load(Ordering::Relaxed);
    abort != 0 && watch.graphs.load(Ordering::Relaxed) >= abort
}

/// The largest difference between two rows of logits.
fn difference(a: &[f32], b: &[f32]) -> f32 {
    let differences = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    assert!(a.iter().all(|logit| logit.is_finite()));
    differences.fold(0.0, f32::max)
}

#[track_caller]
fn assert_same(a: &[f32], b: &[f32]) {
    let difference = difference(a, b);
    assert!(difference < SAME, "the logits differ by {difference}");
}

#[track_caller]
fn assert_other(a: &[f32], b: &[f32]) {
    let difference = difference(a, b);
    assert!(difference > OTHER, "the logits differ by {difference} only");
}

/// The right logits: of a fresh context that reads all of it.
fn truth(model: &Arc<Model>, tokens: &[Token]) -> Vec<f32> {
    Memory::new(model).read(0, 0, tokens)
}

#[test]
fn what_comes_next_depends_on_all_that_was_read() {
    for shape in all_shapes() {
        let model = model(&shape);
        let tokens = words(12);
        let right = truth(&model, &tokens);
        for place in 0..12 {
            let mut changed = tokens.clone();
            changed[place] = (changed[place] + 1) % 250;
            let difference = difference(&right, &truth(&model, &changed));
            assert!(difference > OTHER, "{shape:?}: {difference} at {place}");
        }
    }
}

#[test]
fn a_saved_sequence_goes_on_as_the_one_it_was_saved_from() {
    for shape in all_shapes() {
        let model = model(&shape);
        let tokens = words(50);
        let right = truth(&model, &tokens);
        let mut memory = Memory::new(&model);
        memory.read(1, 0, &words(7));
        memory.read(0, 0, &tokens[..40]);
        let state = memory.save(0);
        // Into another id beside what is there, and into another context.
        memory.load(2, &state);
        assert_eq!(memory.span(2).1, 39);
        assert_same(&memory.read(2, 40, &tokens[40..]), &right);
        assert_same(&memory.read(0, 40, &tokens[40..]), &right);
        let mut other = Memory::new(&model);
        other.load(3, &state);
        assert_same(&other.read(3, 40, &tokens[40..]), &right);
    }
}

#[test]
fn a_whole_copy_and_its_source_go_on_without_each_other() {
    for shape in all_shapes() {
        let model = model(&shape);
        let (tokens, others) = (words(30), words(60));
        let mut memory = Memory::new(&model);
        memory.read(0, 0, &tokens[..20]);
        memory.copy(0, 1, -1, -1);
        assert_eq!(memory.span(0), memory.span(1));
        let copied = memory.read(1, 20, &others[50..]);
        let mut expected = tokens[..20].to_vec();
        expected.extend(&others[50..]);
        assert_same(&copied, &truth(&model, &expected));
        assert_same(&memory.read(0, 20, &tokens[20..]), &truth(&model, &tokens));
        assert!(memory.remove(0, -1, -1) && memory.remove(1, -1, -1));
        assert_eq!((memory.span(0), memory.span(1)), ((-1, -1), (-1, -1)));
    }
}

#[test]
fn plain_attention_can_be_cut_and_shared_anywhere() {
    let model = model(&Architecture::Qwen3(Qwen3::tiny()));
    let tokens = words(40);
    let right = truth(&model, &tokens[..21]);
    let mut memory = Memory::new(&model);
    memory.read(0, 0, &tokens);
    memory.copy(0, 1, 0, 20);
    assert_eq!(memory.span(1), (0, 19));
    assert_same(&memory.read(1, 20, &tokens[20..21]), &right);
    assert!(memory.remove(0, 20, -1));
    assert_eq!(memory.span(0), (0, 19));
    assert_same(&memory.read(0, 20, &tokens[20..21]), &right);
}

/// Three sequences of which one has more tokens than the others.
fn uneven_step(memory: &mut Memory) -> Result<Vec<f32>, i32> {
    let tokens = words(8);
    memory.step(&[
        (0, 20, &tokens[..1]),
        (1, 20, &tokens[..1]),
        (2, 20, &tokens),
    ])
}

fn three_sequences(model: &Arc<Model>) -> Memory {
    let mut memory = Memory::new(model);
    for seq in 0..3 {
        memory.read(seq, 0, &words(20));
    }
    memory.graphs();
    memory
}

#[test]
fn an_uneven_step_is_one_run_with_attention_and_several_with_a_state() {
    for (shape, runs) in [
        (Architecture::Qwen3(Qwen3::tiny()), 1),
        (Architecture::SlidingWindow, 1),
        (Architecture::Mamba, 2),
        (Architecture::Hybrid, 2),
    ] {
        let mut memory = three_sequences(&model(&shape));
        uneven_step(&mut memory).expect("the step is computed");
        assert_eq!(memory.graphs(), runs, "{shape:?}");
    }
}

#[test]
fn an_aborted_step_leaves_attention_as_it_was() {
    for shape in [
        Architecture::Qwen3(Qwen3::tiny()),
        Architecture::SlidingWindow,
    ] {
        let model = model(&shape);
        let right = uneven_step(&mut three_sequences(&model)).expect("the step is computed");
        let mut memory = three_sequences(&model);
        memory.watch.abort.store(1, Ordering::Relaxed);
        assert_eq!(uneven_step(&mut memory), Err(2));
        for seq in 0..3 {
            assert_eq!(memory.span(seq), (0, 19), "{shape:?}");
        }
        memory.watch.abort.store(0, Ordering::Relaxed);
        assert_same(
            &uneven_step(&mut memory).expect("it can be repeated"),
            &right,
        );
    }
}

#[test]
fn an_aborted_step_spoils_the_sequences_of_a_state_that_were_in_it() {
    for shape in [Architecture::Mamba, Architecture::Hybrid] {
        let model = model(&shape);
        let mut memory = three_sequences(&model);
        memory.read(3, 0, &words(20));
        memory.graphs();
        memory.watch.abort.store(1, Ordering::Relaxed);
        assert_eq!(uneven_step(&mut memory), Err(2));
        memory.watch.abort.store(0, Ordering::Relaxed);
        // The positions say that the tokens were read, though their states were not computed, and
        // the third sequence stands in the middle of the step.
        for seq in 0..3 {
            assert_eq!(memory.span(seq).1, 20, "{shape:?}");
        }
        // So the step can't be repeated: it is refused as a gap in the positions would be.
        assert_eq!(uneven_step(&mut memory), Err(-1));
        // Who was not in the step goes on as if nothing had been.
        let (next, right) = (words(21), truth(&model, &words(21)));
        assert_same(&memory.read(3, 20, &next[20..]), &right);
        // Clearing helps, and the id is as good as new.
        assert!(memory.remove(0, -1, -1));
        assert_same(&memory.read(0, 0, &next), &right);
    }
}

#[test]
fn an_aborted_first_step_leaves_nothing_of_a_sequence() {
    for shape in all_shapes() {
        let model = model(&shape);
        let mut memory = Memory::new(&model);
        memory.watch.abort.store(1, Ordering::Relaxed);
        assert_eq!(memory.step(&[(0, 0, &words(8))]), Err(2));
        assert_eq!(memory.span(0), (-1, -1), "{shape:?}");
        memory.watch.abort.store(0, Ordering::Relaxed);
        let tokens = words(8);
        assert_same(&memory.read(0, 0, &tokens), &truth(&model, &tokens));
    }
}

#[test]
fn an_abort_after_the_first_run_of_a_step_leaves_that_run_done() {
    let model = model(&Architecture::Mamba);
    let mut memory = three_sequences(&model);
    memory.watch.abort.store(2, Ordering::Relaxed);
    assert_eq!(uneven_step(&mut memory), Err(2));
    memory.watch.abort.store(0, Ordering::Relaxed);
    // The first run took a token of each sequence; the two that had but one go on from there.
    let mut tokens = words(20);
    tokens.extend([words(1)[0], 9]);
    let right = truth(&model, &tokens);
    assert_same(&memory.read(0, 21, &[9]), &right);
    assert_same(&memory.read(1, 21, &[9]), &right);
    assert_eq!(memory.span(2).1, 27);
}
