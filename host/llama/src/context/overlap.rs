//! Outputs of a step that stay readable while the device computes the next step, which has no outputs.
//!
//! Never measured on a GPU. A context on which [`LlamaContext::decode_overlapped`] is never called retains nothing.
//!
//! `llama_decode` starts a computation on a device and does not wait for it; reading a result and `llama_synchronize`
//! do. A second `llama_decode` forgets where the first one's outputs are: the calls that read them return null. As of
//! llama-cpp-sys-2 0.1.161 the numbers themselves stay where they were, if the second step has no outputs:
//!
//! - They lie in a buffer of the context, apart from what graphs compute in (`output_reserve`). The device copies them
//!   there after the computation, so they are complete after `llama_synchronize`. Reordering swaps them when the first
//!   of them is read (`output_reorder`), and not again.
//! - Each call lays the buffer out again, for `max(outputs, n_seq_max)` rows. llama.cpp replaces it only if it is too
//!   small, and never makes it smaller. So if the first call has no more outputs than there are sequence ids, both
//!   calls find the same layout at the same address. Only drafts cause more outputs. With device top-k the second
//!   layout would then be narrower, so such a step is not overlapped.
//! - The second call sets the token that a chain sampled to none, for each row; the chains here sample none. It sets
//!   the number of candidates to 0 and leaves the candidates alone.
//! - Without an output nothing is copied (`n_outputs > 0`; `build_sampling` makes no row).
//!
//! So pointers stay valid until the next call with outputs. That call may come before the overlapped step is computed:
//! the device takes inputs once it has finished earlier work (`ggml_backend_sched_compute_splits`), and changes of
//! cells in between are bookkeeping on the host, which a graph read when it was started. Saving and loading states
//! waits by itself.
//!
//! llama.cpp reuses a graph only for a following call with as many tokens and the same presence of outputs; it keeps one
//! of each sort. CUDA keeps a captured graph for each as long as its nodes are the same, so overlapped steps should come
//! in few sizes.

use super::LlamaContext;
use crate::batch::TokenInput;
use crate::step_output::{LogitsCopied, Output};
use crate::{DecodeError, Token};
use std::ptr::NonNull;

/// Inputs with an output, in rising order, and their outputs.
pub(super) type RetainedOutputs = Vec<(usize, RetainedOutput)>;

/// The address of an output.
pub(super) enum RetainedOutput {
    Logits(NonNull<[f32]>),
    TopK {
        tokens: NonNull<[Token]>,
        logits: NonNull<[f32]>,
    },
}

// SAFETY: the addresses lie in a buffer of the context that owns this value, which belongs to no thread and is used by
// one at a time.
unsafe impl Send for RetainedOutput {}

impl LlamaContext {
    /// Whether [`LlamaContext::decode_overlapped`] may follow the last step.
    pub fn can_overlap(&self) -> bool {
        (1..=usize::from(self.raw.seq_ids())).contains(&self.outputs.len())
    }

    /// Computes or starts a step without outputs, while the outputs of the step before stay readable. Call it only
    /// after [`LlamaContext::synchronize`], and if [`LlamaContext::can_overlap`].
    pub fn decode_overlapped(
        &mut self,
        step: impl Iterator<Item = TokenInput> + Clone,
    ) -> Result<(), DecodeError> {
        if !self.can_overlap() || step.clone().any(|input| input.output) {
            return Err(DecodeError::Failed(-1));
        }
        if self.retained.is_empty() {
            let mut retained = std::mem::take(&mut self.retained);
            retained.extend(self.outputs.iter().filter_map(|&index| {
                let output = self.output(index)?;
                Some((index, RetainedOutput::new(output)))
            }));
            self.retained = retained;
        }
        self.raw.decode(step)?;
        self.copied = LogitsCopied::default();
        Ok(())
    }

    pub(super) fn has_retained_outputs(&self) -> bool {
        !self.retained.is_empty()
    }

    pub(super) fn retained_output(&self, index: usize) -> Option<Output<'_>> {
        let retained = &self.retained;
        let found = retained.binary_search_by_key(&index, |(index, _)| *index);
        let (_, output) = &retained[found.ok()?];
        // SAFETY: the context is alive. Since these were retained it computed steps without outputs only
        // (`decode_overlapped`), after one with few enough (`can_overlap`); the next one with outputs needs `&mut self`
        // and empties the list.
        Some(unsafe { output.get() })
    }
}

impl RetainedOutput {
    fn new(output: Output<'_>) -> Self {
        match output {
            Output::Logits(logits) => Self::Logits(NonNull::from(logits)),
            Output::TopK { tokens, logits } => Self::TopK {
                tokens: NonNull::from(tokens),
                logits: NonNull::from(logits),
            },
        }
    }

    /// The output.
    ///
    /// # Safety
    ///
    /// Since [`RetainedOutput::new`] the context was not freed and computed only steps without outputs, after a step
    /// with no more outputs than there are sequence ids. That stays so for the life of the result.
    unsafe fn get<'a>(&self) -> Output<'a> {
        // SAFETY: the caller's, and the module's documentation.
        unsafe {
            match *self {
                Self::Logits(logits) => Output::Logits(logits.as_ref()),
                Self::TopK { tokens, logits } => Output::TopK {
                    tokens: tokens.as_ref(),
                    logits: logits.as_ref(),
                },
            }
        }
    }
}
