//! A batch of tokens in the layout that `llama_decode` reads, with bounds of its own: the C
//! library's would be overrun in silence.

use crate::backend::Input;
use llama_cpp_sys_2 as sys;

/// Arrays for one `llama_decode`, each token with exactly one sequence id.
pub struct Batch {
    token: Vec<sys::llama_token>,
    pos: Vec<sys::llama_pos>,
    seq_count: Vec<i32>,
    seq: Vec<sys::llama_seq_id>,
    seq_ptr: Vec<*mut sys::llama_seq_id>,
    output: Vec<i8>,
    capacity: usize,
}

// SAFETY: the pointers in `seq_ptr` point into `seq` of the same value, whose heap block does not
// move with it; they are rewritten before each use.
unsafe impl Send for Batch {}

impl Batch {
    /// A batch that holds up to `capacity` tokens.
    pub fn new(capacity: usize) -> Self {
        Self {
            token: Vec::with_capacity(capacity),
            pos: Vec::with_capacity(capacity),
            seq_count: vec![1; capacity],
            seq: Vec::with_capacity(capacity),
            seq_ptr: Vec::with_capacity(capacity),
            output: Vec::with_capacity(capacity),
            capacity,
        }
    }

    /// Fills the batch with `inputs` and returns llama.cpp's view of it, which borrows from `self`
    /// in fact though not in type: it must be used before `self` is touched again. `None` if there
    /// are more inputs than the batch holds, or none.
    pub fn fill(&mut self, inputs: &[Input]) -> Option<sys::llama_batch> {
        if inputs.is_empty() || inputs.len() > self.capacity {
            return None;
        }
        self.token.clear();
        self.pos.clear();
        self.seq.clear();
        self.seq_ptr.clear();
        self.output.clear();
        for input in inputs {
            self.token.push(i32::try_from(input.token).ok()?);
            self.pos.push(i32::try_from(input.position).ok()?);
            self.seq.push(i32::from(input.seq.0));
            self.output.push(i8::from(input.output));
        }
        for id in &mut self.seq {
            self.seq_ptr.push(&raw mut *id);
        }
        Some(sys::llama_batch {
            n_tokens: i32::try_from(inputs.len()).ok()?,
            token: self.token.as_mut_ptr(),
            embd: std::ptr::null_mut(),
            pos: self.pos.as_mut_ptr(),
            n_seq_id: self.seq_count.as_mut_ptr(),
            seq_id: self.seq_ptr.as_mut_ptr(),
            logits: self.output.as_mut_ptr(),
        })
    }
}
