//! Outputs of a step that stay readable while the device computes the next step, which has no outputs.
//!
//! Never measured on a GPU. Only `LlamaContext::decode_overlapped` uses this module; a context on which it is never
//! called retains nothing.
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

use crate::Token;
use crate::output::Output;
use std::ptr::NonNull;

/// The address of an output.
pub(crate) enum RetainedOutput {
    Logits(NonNull<[f32]>),
    TopK {
        tokens: NonNull<[Token]>,
        logits: NonNull<[f32]>,
    },
}

// SAFETY: the addresses lie in a buffer of the context that owns this value, which belongs to no thread and is used by
// one at a time.
unsafe impl Send for RetainedOutput {}

impl RetainedOutput {
    pub fn new(output: Output<'_>) -> Self {
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
    pub unsafe fn get<'a>(&self) -> Output<'a> {
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
