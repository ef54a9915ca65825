//! A batch of tokens in the layout of `llama_decode`, with bounds checks: llama.cpp's own batch has none, and
//! llama.cpp ends the process on unknown sequence ids and tokens.

use crate::{SeqId, Token};
use llama_cpp_sys_2 as sys;

/// One token of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenInput {
    /// The token.
    pub token: Token,
    /// Its position in the sequence, from 0.
    pub position: u32,
    /// Its sequence.
    pub seq: SeqId,
    /// Whether the step outputs the logits after it.
    pub output: bool,
}

/// Arrays of one `llama_decode`. Each token belongs to one sequence.
pub(crate) struct Batch {
    tokens: Vec<sys::llama_token>,
    positions: Vec<sys::llama_pos>,
    seq_counts: Vec<i32>,
    seqs: Vec<SeqId>,
    seq_pointers: Vec<*mut SeqId>,
    outputs: Vec<i8>,
    capacity: usize,
    seq_ids: SeqId,
    vocabulary: usize,
}

// SAFETY: the pointers in `seq_pointers` point into `seqs` of the same value, whose heap block does not move with the
// value; `fill` rewrites them before each use.
unsafe impl Send for Batch {}

impl Batch {
    /// A batch for up to `capacity` tokens below `vocabulary`, of sequences below `seq_ids`.
    pub fn new(capacity: usize, seq_ids: u16, vocabulary: usize) -> Self {
        Self {
            tokens: Vec::with_capacity(capacity),
            positions: Vec::with_capacity(capacity),
            seq_counts: vec![1; capacity],
            seqs: Vec::with_capacity(capacity),
            seq_pointers: Vec::with_capacity(capacity),
            outputs: Vec::with_capacity(capacity),
            capacity,
            seq_ids: SeqId::from(seq_ids),
            vocabulary,
        }
    }

    /// Fills the batch and returns llama.cpp's view of it. The view borrows from `self` in fact though not in type:
    /// use it before the next call. `None` if there are no inputs, too many, or one is out of range.
    pub fn fill(
        &mut self,
        inputs: impl IntoIterator<Item = TokenInput>,
    ) -> Option<sys::llama_batch> {
        self.tokens.clear();
        self.positions.clear();
        self.seqs.clear();
        self.seq_pointers.clear();
        self.outputs.clear();
        for input in inputs {
            let is_known =
                (0..self.seq_ids).contains(&input.seq) && (input.token as usize) < self.vocabulary;
            if !is_known || self.tokens.len() == self.capacity {
                return None;
            }
            self.tokens.push(i32::try_from(input.token).ok()?);
            self.positions.push(i32::try_from(input.position).ok()?);
            self.seqs.push(input.seq);
            self.outputs.push(i8::from(input.output));
        }
        if self.tokens.is_empty() {
            return None;
        }
        for seq in &mut self.seqs {
            self.seq_pointers.push(&raw mut *seq);
        }
        Some(sys::llama_batch {
            n_tokens: i32::try_from(self.tokens.len()).ok()?,
            token: self.tokens.as_mut_ptr(),
            embd: std::ptr::null_mut(),
            pos: self.positions.as_mut_ptr(),
            n_seq_id: self.seq_counts.as_mut_ptr(),
            seq_id: self.seq_pointers.as_mut_ptr(),
            logits: self.outputs.as_mut_ptr(),
        })
    }

    /// Index and sequence of each input with an output, of the last successful [`Batch::fill`].
    pub fn outputs(&self) -> impl Iterator<Item = (usize, SeqId)> {
        let inputs = self.outputs.iter().zip(&self.seqs).enumerate();
        inputs.filter_map(|(index, (output, seq))| (*output != 0).then_some((index, *seq)))
    }
}
