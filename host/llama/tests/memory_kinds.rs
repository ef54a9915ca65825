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

/// Sequence ids of a context.
const IDS: u32 = 4;
/// Most tokens in a step.
const STEP_TOKENS: u32 = 64;
const CELLS: u32 = 512;

/// Largest difference of logits that come from the same context. Rounding depends on the rows of a step (measured: up to
/// 0.006).
const SAME: f32 = 0.03;
/// Smallest difference of logits that come from different memory (measured: 0.19 or more).
const OTHER: f32 = 0.1;

fn all_architectures() -> [Architecture; 4] {
    [
        Architecture::Mamba,
        Architecture::Hybrid,
        Architecture::SlidingWindow,
        Architecture::Qwen3(Qwen3::tiny()),
    ]
}

fn model(architecture: &Architecture) -> Arc<Model> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let file = format!("corral-memory-kinds-{}-{number}.gguf", std::process::id());
    let file = std::env::temp_dir().join(file);
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny/tiny.gguf");
    write_model(architecture, &tiny, &file, 1).expect("the model is written");
    assert!(std::fs::metadata(&file).expect("it is there").len() < 2_000_000);
    let model = Model::load(&file, DevicePlacement::default(), &LoadProgress::default())
        .expect("the model loads");
    std::fs::remove_file(&file).expect("it can be removed");
    Arc::new(model)
}

/// Tokens without long repetitions.
fn test_tokens(count: u32) -> Vec<Token> {
    (0..count).map(|n| (n * n * 7 + n * 31 + 5) % 250).collect()
}

/// Counts graphs, and aborts them from a given one on.
#[derive(Default)]
struct GraphCounter {
    graphs: AtomicU32,
    /// The first graph to abort, counted from 1; 0 for none.
    abort: AtomicU32,
}

/// A context with thin wrappers of llama.cpp's functions.
struct TestContext {
    context: NonNull<sys::llama_context>,
    counter: Box<GraphCounter>,
    model: Arc<Model>,
}

impl Drop for TestContext {
    fn drop(&mut self) {
        // SAFETY: made by `llama_init_from_model` and freed once; the model outlives it.
        unsafe { sys::llama_free(self.context.as_ptr()) };
    }
}

impl TestContext {
    fn new(model: &Arc<Model>) -> Self {
        Self::with(model, |_| {})
    }

    fn with(model: &Arc<Model>, change: impl FnOnce(&mut sys::llama_context_params)) -> Self {
        let counter = Box::<GraphCounter>::default();
        let data = std::ptr::from_ref(&*counter).cast_mut().cast::<c_void>();
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
        // SAFETY: the model is alive and kept; the callbacks' data lies in a box that this value keeps, and is only read
        // through shared references.
        let context = unsafe {
            let context = sys::llama_init_from_model(model.as_ptr(), params);
            let context = NonNull::new(context).expect("a context can be made");
            sys::llama_set_abort_callback(context.as_ptr(), Some(on_abort), data);
            context
        };
        let context = Self {
            context,
            counter,
            model: model.clone(),
        };
        context.counter.graphs.store(0, Ordering::Relaxed);
        context
    }

    fn memory(&self) -> sys::llama_memory_t {
        // SAFETY: the context is alive; the memory it returns lives as long.
        unsafe { sys::llama_get_memory(self.context.as_ptr()) }
    }

    /// Decodes one step and returns the logits after its last token.
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

    /// Decodes tokens in steps of at most 16 and returns the logits after the last.
    fn feed(&mut self, seq: u16, from: u32, tokens: &[Token]) -> Vec<f32> {
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

    /// Number of graphs since the last call.
    fn graphs(&self) -> u32 {
        self.counter.graphs.swap(0, Ordering::Relaxed)
    }
}

unsafe extern "C" fn on_node(node: *mut sys::ggml_tensor, ask: bool, data: *mut c_void) -> bool {
    // SAFETY: llama.cpp passes a live node with a NUL-terminated name; `data` is the context's `GraphCounter`, which
    // outlives it.
    let (name, counter) = unsafe {
        (
            CStr::from_ptr((*node).name.as_ptr()),
            &*data.cast::<GraphCounter>(),
        )
    };
    if ask && name == c"result_output" {
        counter.graphs.fetch_add(1, Ordering::Relaxed);
    }
    // Do not copy the node, and continue.
    !ask
}

unsafe extern "C" fn on_abort(data: *mut c_void) -> bool {
    // SAFETY: `data` is the context's `GraphCounter`, which outlives it.
    let counter = unsafe { &*data.cast::<GraphCounter>() };
    let abort = counter.abort.load(Ordering::Relaxed);
    abort != 0 && counter.graphs.load(Ordering::Relaxed) >= abort
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
fn assert_different(a: &[f32], b: &[f32]) {
    let difference = difference(a, b);
    assert!(difference > OTHER, "the logits differ by {difference} only");
}

/// The logits of a new context that decodes all tokens.
fn expected(model: &Arc<Model>, tokens: &[Token]) -> Vec<f32> {
    TestContext::new(model).feed(0, 0, tokens)
}

/// A context whose sequence 0 has the first 20 of 21 tokens.
fn with_20_tokens(architecture: &Architecture) -> (Arc<Model>, TestContext, Vec<Token>) {
    let model = model(architecture);
    let mut context = TestContext::new(&model);
    let tokens = test_tokens(21);
    context.feed(0, 0, &tokens[..20]);
    (model, context, tokens)
}

/// Asserts that a sequence with the first 20 tokens gets the right logits after all of them.
#[track_caller]
fn assert_continues(context: &mut TestContext, seq: u16, model: &Arc<Model>, tokens: &[Token]) {
    let logits = context.feed(seq, 20, &tokens[20..]);
    assert_same(&logits, &expected(model, tokens));
}

#[test]
fn recurrent_layers_know_the_last_position_only() {
    for architecture in [Architecture::Mamba, Architecture::Hybrid] {
        let (_, context, _) = with_20_tokens(&architecture);
        assert_eq!(context.span(0), (19, 19), "{architecture:?}");
        assert_eq!(context.span(1), (-1, -1), "{architecture:?}");
    }
}

#[test]
fn recurrent_layers_refuse_to_remove_an_end() {
    for architecture in [Architecture::Mamba, Architecture::Hybrid] {
        let (model, mut context, tokens) = with_20_tokens(&architecture);
        for from in [1, 10, 19] {
            assert!(!context.remove(0, from, -1), "{architecture:?}");
        }
        assert_eq!(context.span(0), (19, 19), "{architecture:?}");
        assert_continues(&mut context, 0, &model, &tokens);
    }
}

#[test]
fn logits_depend_on_every_token() {
    for architecture in all_architectures() {
        let model = model(&architecture);
        let tokens = test_tokens(12);
        let right = expected(&model, &tokens);
        for index in 0..12 {
            let mut changed = tokens.clone();
            changed[index] = (changed[index] + 1) % 250;
            let difference = difference(&right, &expected(&model, &changed));
            assert!(
                difference > OTHER,
                "{architecture:?}: {difference} at {index}"
            );
        }
    }
}

#[test]
fn loaded_sequence_continues_like_the_saved_one() {
    for architecture in all_architectures() {
        let model = model(&architecture);
        let tokens = test_tokens(50);
        let right = expected(&model, &tokens);
        let mut context = TestContext::new(&model);
        context.feed(1, 0, &test_tokens(7));
        context.feed(0, 0, &tokens[..40]);
        let state = context.save(0);
        // Into another id of this context, and into another context.
        context.load(2, &state);
        assert_eq!(context.span(2).1, 39);
        assert_same(&context.feed(2, 40, &tokens[40..]), &right);
        assert_same(&context.feed(0, 40, &tokens[40..]), &right);
        let mut other = TestContext::new(&model);
        other.load(3, &state);
        assert_same(&other.feed(3, 40, &tokens[40..]), &right);
    }
}

#[test]
fn whole_copy_and_source_are_independent() {
    for architecture in all_architectures() {
        let model = model(&architecture);
        let (tokens, others) = (test_tokens(30), test_tokens(60));
        let mut context = TestContext::new(&model);
        context.feed(0, 0, &tokens[..20]);
        context.copy(0, 1, -1, -1);
        assert_eq!(context.span(0), context.span(1));
        let copied = context.feed(1, 20, &others[50..]);
        let mut all = tokens[..20].to_vec();
        all.extend(&others[50..]);
        assert_same(&copied, &expected(&model, &all));
        assert_same(
            &context.feed(0, 20, &tokens[20..]),
            &expected(&model, &tokens),
        );
        assert!(context.remove(0, -1, -1) && context.remove(1, -1, -1));
        assert_eq!((context.span(0), context.span(1)), ((-1, -1), (-1, -1)));
    }
}

#[test]
fn full_attention_can_be_cut_and_shared_anywhere() {
    let model = model(&Architecture::Qwen3(Qwen3::tiny()));
    let tokens = test_tokens(40);
    let right = expected(&model, &tokens[..21]);
    let mut context = TestContext::new(&model);
    context.feed(0, 0, &tokens);
    context.copy(0, 1, 0, 20);
    assert_eq!(context.span(1), (0, 19));
    assert_same(&context.feed(1, 20, &tokens[20..21]), &right);
    assert!(context.remove(0, 20, -1));
    assert_eq!(context.span(0), (0, 19));
    assert_same(&context.feed(0, 20, &tokens[20..21]), &right);
}

/// Decodes one token of two sequences and eight of a third.
fn uneven_step(context: &mut TestContext) -> Result<Vec<f32>, i32> {
    let tokens = test_tokens(8);
    context.step(&[
        (0, 20, &tokens[..1]),
        (1, 20, &tokens[..1]),
        (2, 20, &tokens),
    ])
}

fn three_sequences(model: &Arc<Model>) -> TestContext {
    let mut context = TestContext::new(model);
    for seq in 0..3 {
        context.feed(seq, 0, &test_tokens(20));
    }
    context.graphs();
    context
}

#[test]
fn recurrent_models_split_an_uneven_step() {
    for (architecture, runs) in [
        (Architecture::Qwen3(Qwen3::tiny()), 1),
        (Architecture::SlidingWindow, 1),
        (Architecture::Mamba, 2),
        (Architecture::Hybrid, 2),
    ] {
        let mut context = three_sequences(&model(&architecture));
        uneven_step(&mut context).expect("the step is computed");
        assert_eq!(context.graphs(), runs, "{architecture:?}");
    }
}

#[test]
fn aborted_step_leaves_attention_unchanged() {
    for architecture in [
        Architecture::Qwen3(Qwen3::tiny()),
        Architecture::SlidingWindow,
    ] {
        let model = model(&architecture);
        let right = uneven_step(&mut three_sequences(&model)).expect("the step is computed");
        let mut context = three_sequences(&model);
        context.counter.abort.store(1, Ordering::Relaxed);
        assert_eq!(uneven_step(&mut context), Err(2));
        for seq in 0..3 {
            assert_eq!(context.span(seq), (0, 19), "{architecture:?}");
        }
        context.counter.abort.store(0, Ordering::Relaxed);
        assert_same(
            &uneven_step(&mut context).expect("it can be repeated"),
            &right,
        );
    }
}

#[test]
fn aborted_step_corrupts_its_recurrent_sequences() {
    for architecture in [Architecture::Mamba, Architecture::Hybrid] {
        let model = model(&architecture);
        let mut context = three_sequences(&model);
        context.feed(3, 0, &test_tokens(20));
        context.graphs();
        context.counter.abort.store(1, Ordering::Relaxed);
        assert_eq!(uneven_step(&mut context), Err(2));
        context.counter.abort.store(0, Ordering::Relaxed);
        // The positions count the first tokens, though their states were not computed; the third sequence is in the
        // middle of the step.
        for seq in 0..3 {
            assert_eq!(context.span(seq).1, 20, "{architecture:?}");
        }
        // So llama.cpp refuses the step again, like a gap in the positions.
        assert_eq!(uneven_step(&mut context), Err(-1));
        // A sequence outside the step is unaffected.
        let (next, right) = (test_tokens(21), expected(&model, &test_tokens(21)));
        assert_same(&context.feed(3, 20, &next[20..]), &right);
        // A cleared id works again.
        assert!(context.remove(0, -1, -1));
        assert_same(&context.feed(0, 0, &next), &right);
    }
}

#[test]
fn aborted_first_step_leaves_sequences_empty() {
    for architecture in all_architectures() {
        let model = model(&architecture);
        let mut context = TestContext::new(&model);
        context.counter.abort.store(1, Ordering::Relaxed);
        assert_eq!(context.step(&[(0, 0, &test_tokens(8))]), Err(2));
        assert_eq!(context.span(0), (-1, -1), "{architecture:?}");
        context.counter.abort.store(0, Ordering::Relaxed);
        let tokens = test_tokens(8);
        assert_same(&context.feed(0, 0, &tokens), &expected(&model, &tokens));
    }
}

#[test]
fn abort_keeps_the_graphs_before_it() {
    let model = model(&Architecture::Mamba);
    let mut context = three_sequences(&model);
    context.counter.abort.store(2, Ordering::Relaxed);
    assert_eq!(uneven_step(&mut context), Err(2));
    context.counter.abort.store(0, Ordering::Relaxed);
    // The first graph decoded a token of each sequence; the two with one token continue from there.
    let mut tokens = test_tokens(20);
    tokens.extend([test_tokens(1)[0], 9]);
    let right = expected(&model, &tokens);
    assert_same(&context.feed(0, 21, &[9]), &right);
    assert_same(&context.feed(1, 21, &[9]), &right);
    assert_eq!(context.span(2).1, 27);
}
