//! What a step left, while the step that runs ahead of the next one is computed.
//!
//! `llama_decode` begins a computation on a device and does not wait for it; what reads a result does, and
//! `llama_synchronize`. A second `llama_decode` forgets where the first one's outputs are: after it, the calls that
//! tell of an output answer null. The numbers themselves stay where they were, if the second one has no outputs, as
//! of 0.1.161:
//!
//! - They lie in a buffer of the context's own, apart from what graphs compute in (`output_reserve`), and are copied
//!   there behind the computation, so they are there after `llama_synchronize`. What puts them back in order swaps
//!   them when the first of them is asked for (`output_reorder`), and not again.
//! - The buffer is laid out anew for each call, for `max(outputs, n_seq_max)` rows. It is given up for another one only
//!   if it is too small, and never made smaller. So with no more outputs in the first call than there are sequence
//!   ids, both calls find the same layout in the same place. With more of them, which only drafts make, and with
//!   chains, the second layout is narrower: then nothing may go ahead.
//! - The second call sets the token that a chain sampled to none, for each row. Our chains sample no token, and
//!   nobody reads it. It sets how many candidates there are to 0, and leaves these alone.
//! - Without an output nothing is copied (`n_outputs > 0`; `build_sampling` makes no row).
//!
//! So pointers that were taken before stay good until the next call with outputs. That may be made before
//! the one ahead is computed: inputs are copied to a device once it has done what it was given before
//! (`ggml_backend_sched_compute_splits`), and what is done to cells in between is bookkeeping on the host, which a graph
//! read when it was begun. Saving and loading states waits by itself.
//!
//! A graph is used again only by the next call, if it has as many tokens, and outputs or none as well; llama.cpp has
//! one of each sort, and building it is what going ahead costs the host. CUDA keeps a captured graph for each of
//! these two, as long as their nodes are the same: that is why what runs ahead comes in few sizes.

use crate::Token;
use corral_sampling::{Logits, TopLogits};
use std::ptr::NonNull;

/// Where what a step left for an input with output lies.
pub(super) enum Kept {
    /// All logits.
    Whole(NonNull<[f32]>),
    /// The highest ones.
    Top {
        tokens: NonNull<[Token]>,
        logits: NonNull<[f32]>,
        vocabulary: usize,
    },
}

// SAFETY: they point into a buffer of the context that they are kept beside, which belongs to no thread and is used
// by one at a time.
unsafe impl Send for Kept {}

impl Kept {
    pub fn of(output: Logits<'_>) -> Self {
        match output {
            Logits::Full(logits) => Self::Whole(NonNull::from(logits)),
            Logits::TopK(top) => Self::Top {
                tokens: NonNull::from(top.tokens),
                logits: NonNull::from(top.logits),
                vocabulary: top.vocabulary,
            },
        }
    }

    /// What it was made of.
    ///
    /// # Safety
    ///
    /// Since then the context was not freed, and computed nothing but a step without outputs, and that only if the
    /// one before had no more outputs than there are sequence ids. That stays so as long as what is returned.
    pub unsafe fn get<'a>(&self) -> Logits<'a> {
        // SAFETY: as the caller says, and above.
        unsafe {
            match *self {
                Self::Whole(logits) => Logits::Full(logits.as_ref()),
                Self::Top {
                    tokens,
                    logits,
                    vocabulary,
                } => Logits::TopK(TopLogits {
                    tokens: tokens.as_ref(),
                    logits: logits.as_ref(),
                    vocabulary,
                }),
            }
        }
    }
}
