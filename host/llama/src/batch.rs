//! A batch of tokens in the layout of `llama_decode`, with bounds checks: llama.cpp's own batch has none, and
//! llama.cpp ends the process on unknown sequence ids and tokens. A batch with positions of images has the layout of
//! `llama_process`, which takes tokens and embeddings together.

use crate::{DecodeError, ImageTable, SeqId, Token};
use llama_cpp_sys_2 as sys;
use std::ptr::NonNull;

/// One token of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenInput {
    /// The token, of the vocabulary or of an [image](crate::ImageTable).
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
    images: Option<ImageTable>,
    /// Embeddings of the batch's positions of images, whose tokens in `tokens` are [`NO_TOKEN`].
    embeddings: Vec<f32>,
}

/// llama.cpp's `LLAMA_TOKEN_NULL`.
const NO_TOKEN: sys::llama_token = -1;

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
            images: None,
            embeddings: Vec::new(),
        }
    }

    /// Accepts tokens of the images in this table.
    pub fn use_images(&mut self, images: ImageTable) {
        self.images = Some(images);
    }

    /// Fills the batch. Returns whether it succeeded: not if there are no inputs, too many, or one is out of range.
    pub fn fill(&mut self, inputs: impl IntoIterator<Item = TokenInput>) -> bool {
        self.try_fill(inputs).is_some()
    }

    fn try_fill(&mut self, inputs: impl IntoIterator<Item = TokenInput>) -> Option<()> {
        self.tokens.clear();
        self.positions.clear();
        self.seqs.clear();
        self.seq_pointers.clear();
        self.outputs.clear();
        self.embeddings.clear();
        for input in inputs {
            if !(0..self.seq_ids).contains(&input.seq) || self.tokens.len() == self.capacity {
                return None;
            }
            let token = if (input.token as usize) < self.vocabulary {
                i32::try_from(input.token).ok()?
            } else {
                let images = self.images.as_ref()?;
                let has_row = images.append(input.token, &mut self.embeddings);
                has_row.then_some(NO_TOKEN)?
            };
            self.tokens.push(token);
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
        Some(())
    }

    /// Computes the batch that [`Batch::fill`] filled.
    ///
    /// # Safety
    /// The context is alive and used by this call alone; it has the vocabulary and the sequence ids of this batch, takes as
    /// many tokens, and its embeddings have the length of the images'.
    pub unsafe fn decode(
        &mut self,
        context: NonNull<sys::llama_context>,
    ) -> Result<(), DecodeError> {
        // SAFETY: the arrays hold `n_tokens` valid entries each and stay as they are during the call; `fill` checked ids,
        // tokens and their number. The rest is the caller's.
        let code = unsafe {
            match self.embeddings.is_empty() {
                true => sys::llama_decode(context.as_ptr(), self.view()),
                false => self.process(context),
            }
        };
        match code {
            0 => Ok(()),
            1 => Err(DecodeError::NoRoom),
            code => Err(DecodeError::Failed(code)),
        }
    }

    /// llama.cpp's view of the batch. The view borrows from `self` in fact though not in type: use it before the next call.
    fn view(&mut self) -> sys::llama_batch {
        sys::llama_batch {
            n_tokens: i32::try_from(self.tokens.len()).unwrap_or(0),
            token: self.tokens.as_mut_ptr(),
            embd: std::ptr::null_mut(),
            pos: self.positions.as_mut_ptr(),
            n_seq_id: self.seq_counts.as_mut_ptr(),
            seq_id: self.seq_pointers.as_mut_ptr(),
            logits: self.outputs.as_mut_ptr(),
        }
    }

    /// Computes tokens and embeddings together. Returns llama.cpp's code; -1 if it does not take an entry.
    ///
    /// # Safety
    /// As [`Batch::decode`].
    unsafe fn process(&mut self, context: NonNull<sys::llama_context>) -> i32 {
        // SAFETY: the context is alive.
        let Some(batch) = NonNull::new(unsafe { sys::llama_batch_ext_init(context.as_ptr()) })
        else {
            return -1;
        };
        let batch = ExtendedBatch(batch);
        let length = self.images.as_ref().map_or(1, ImageTable::length);
        let mut rows = self.embeddings.chunks_exact(length);
        let entries = self.tokens.iter().zip(&self.positions);
        let entries = entries.zip(self.seqs.iter().zip(&self.outputs));
        for ((&token, position), (&seq, &output)) in entries {
            // SAFETY: the batch is alive and copies what it is given: one position for each entry, since models with more
            // are refused with images (`MediaEncoder::load`), and an embedding of the length that is passed with it.
            let is_added = unsafe {
                let batch = batch.0.as_ptr();
                let index = match token {
                    NO_TOKEN => rows.next().map_or(-1, |row| {
                        let embedding = sys::llama_embd {
                            data: row.as_ptr(),
                            n_rows: 1,
                            n_embd: length,
                        };
                        sys::llama_batch_ext_add_embd(batch, seq, embedding)
                    }),
                    token => sys::llama_batch_ext_add_token(batch, seq, token),
                };
                index >= 0
                    && sys::llama_batch_ext_set_pos(batch, index, position)
                    && sys::llama_batch_ext_set_output_logits(batch, index, output != 0)
            };
            if !is_added {
                return -1;
            }
        }
        // SAFETY: context and batch are alive.
        unsafe {
            sys::llama_process(
                context.as_ptr(),
                sys::LLAMA_PROCESS_TYPE_DECODE,
                batch.0.as_ptr(),
            )
        }
    }

    /// Index and sequence of each input with an output, of the last successful [`Batch::fill`].
    pub fn outputs(&self) -> impl Iterator<Item = (usize, SeqId)> {
        let inputs = self.outputs.iter().zip(&self.seqs).enumerate();
        inputs.filter_map(|(index, (output, seq))| (*output != 0).then_some((index, *seq)))
    }
}

/// Frees the batch when dropped.
struct ExtendedBatch(NonNull<sys::llama_batch_ext>);

impl Drop for ExtendedBatch {
    fn drop(&mut self) {
        // SAFETY: made by `llama_batch_ext_init` and freed once.
        unsafe { sys::llama_batch_ext_free(self.0.as_ptr()) };
    }
}
