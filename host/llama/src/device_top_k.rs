//! Selection of the highest logits on the device, so that a step copies `k` logits of an output instead of all.
//!
//! Never measured on a GPU. [`RawContext`](crate::raw_context::RawContext) attaches [`DeviceSamplers`], and
//! [`LlamaContext`](crate::LlamaContext) reads their results here. Without
//! [`ContextSettings::device_top_k`](crate::ContextSettings::device_top_k) none exist and every output has all its logits.
//!
//! llama.cpp runs a sampler chain per sequence id on the device. The chain here is one `top_k`. A context gets its
//! chains when it is made. Attaching one later makes llama.cpp plan all graphs again. As of llama-cpp-sys-2 0.1.161
//! (`llama-context.cpp`, `llama-graph.cpp`):
//!
//! - **A step copies all logits of every output, or of none** (`needs_raw_logits`). If any output belongs to a sequence
//!   without a chain, llama.cpp copies all logits of every output in the step, and the candidates too. (A step is one
//!   ubatch, except in recurrent and hybrid models, where each ubatch decides for itself.)
//! - A sequence may have `n_outputs_max_per_seq` outputs in a step. We set it to 1, so that the first planned graphs have
//!   at most one chain per id. A second output of an id fails the step with -1. Drafts need several outputs, so they use
//!   ids without a chain.
//! - `llama_get_logits_ith` returns the `k` logits of the candidates if the output has some: call it only for an output
//!   that has none. Candidates come in no order.
//! - Chains of ids that are not in a step are part of its graph, and not computed (`ggml_build_forward_select`). The
//!   graph always has one padding row (`ggml_pad`), for which the device makes one more copy of all logits. llama.cpp
//!   reuses a graph only while the same ids have the outputs.
//! - Buffers for the logits, probabilities and candidates of all outputs lie beside the logits, each as large, in host
//!   memory. Recurrent and hybrid models reorder outputs, which swaps all of them.
//! - `ggml_top_k` ends the process if there are fewer logits than `k`: callers must check.
//! - Where the device lacks the operation, the chain does nothing and llama.cpp copies all logits, after a line in its
//!   log. [`DeviceSamplers::run_on_device`] detects that.

use crate::step_output::{LogitsCopied, Output};
use crate::{SeqId, Token};
use llama_cpp_sys_2 as sys;
use std::ffi::CStr;
use std::ptr::NonNull;

/// Which sequence ids have a chain, and how many logits it selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceTopK {
    /// Number of logits; fewer than the vocabulary has tokens.
    pub k: u32,
    /// The first ids, this many.
    pub seq_ids: u16,
}

/// Bytes of logits that a step copies for outputs of these sequence ids.
pub(crate) fn copied(
    top_k: Option<DeviceTopK>,
    outputs: impl Iterator<Item = SeqId>,
    vocabulary: usize,
) -> LogitsCopied {
    let (k, ids) = top_k.map_or((0, 0), |top_k| (top_k.k, SeqId::from(top_k.seq_ids)));
    let (mut rows, mut top_k_rows) = (0, 0);
    for seq in outputs {
        rows += 1;
        top_k_rows += u64::from(seq < ids);
    }
    LogitsCopied {
        // A logit and a token each.
        top_k: top_k_rows * u64::from(k) * 8,
        // One output without top-k makes llama.cpp copy all logits of all outputs.
        whole: match top_k_rows < rows {
            true => rows * 4 * vocabulary as u64,
            false => 0,
        },
    }
}

/// The number of candidates of an output. `None` if it is a whole row, or the index has no output.
///
/// # Safety
///
/// The context is alive.
pub(crate) unsafe fn candidates(context: *mut sys::llama_context, index: i32) -> Option<usize> {
    // SAFETY: the caller's.
    let count = unsafe { sys::llama_get_sampled_candidates_count_ith(context, index) };
    (count > 0).then_some(count as usize)
}

/// The output of this index, which has this many [`candidates`].
///
/// # Safety
///
/// The context is alive and computes no step during the life of the result.
pub(crate) unsafe fn output<'a>(
    context: *mut sys::llama_context,
    index: i32,
    candidates: usize,
) -> Option<Output<'a>> {
    // SAFETY: the caller's; both point to `candidates` numbers that stay until the next step. Tokens are indices of the
    // row, so none is negative.
    unsafe {
        let tokens = sys::llama_get_sampled_candidates_ith(context, index);
        let logits = sys::llama_get_sampled_logits_ith(context, index);
        let count = sys::llama_get_sampled_logits_count_ith(context, index);
        if count as usize != candidates || tokens.is_null() || logits.is_null() {
            return None;
        }
        Some(Output::TopK {
            tokens: std::slice::from_raw_parts(tokens.cast::<Token>(), candidates),
            logits: std::slice::from_raw_parts(logits, candidates),
        })
    }
}

/// The chains of a context, which must outlive it.
pub(crate) struct DeviceSamplers {
    chains: Vec<TopKChain>,
    configs: Vec<sys::llama_sampler_seq_config>,
}

/// Frees the chain, and with it its sampler, when dropped.
struct TopKChain(NonNull<sys::llama_sampler>);

// SAFETY: a sampler belongs to no thread; only its context's calls use it, and this value before and after.
unsafe impl Send for DeviceSamplers {}

impl Drop for TopKChain {
    fn drop(&mut self) {
        // SAFETY: made by `llama_sampler_chain_init` and freed once; the context is gone.
        unsafe { sys::llama_sampler_free(self.0.as_ptr()) };
    }
}

impl DeviceSamplers {
    /// Makes the chains. `None` if there is no memory for one.
    pub fn new(top_k: DeviceTopK) -> Option<Self> {
        let k = i32::try_from(top_k.k).ok()?;
        let chains: Vec<_> = (0..top_k.seq_ids)
            .map(|_| TopKChain::new(k))
            .collect::<Option<_>>()?;
        let configs = (0..)
            .zip(&chains)
            .map(|(seq_id, chain)| sys::llama_sampler_seq_config {
                seq_id,
                sampler: chain.0.as_ptr(),
            })
            .collect();
        Some(Self { chains, configs })
    }

    /// Puts the chains into the parameters of one context, which they must outlive.
    pub fn attach(&mut self, params: &mut sys::llama_context_params) {
        params.samplers = self.configs.as_mut_ptr();
        params.n_samplers = self.configs.len();
        params.n_outputs_max_per_seq = 1;
    }

    /// Whether the context computes the chains on the device of its logits.
    pub fn run_on_device(&self) -> bool {
        self.chains.iter().all(TopKChain::runs_on_device)
    }
}

impl TopKChain {
    fn new(k: i32) -> Option<Self> {
        // SAFETY: plain structs in and out; the chain owns its sampler.
        unsafe {
            let params = sys::llama_sampler_chain_default_params();
            let chain = Self(NonNull::new(sys::llama_sampler_chain_init(params))?);
            let top_k = NonNull::new(sys::llama_sampler_init_top_k(k))?;
            sys::llama_sampler_chain_add(chain.0.as_ptr(), top_k.as_ptr());
            Some(chain)
        }
    }

    /// llama.cpp prefixes the name of a sampler with + if the device computes it, and with - if it can't.
    fn runs_on_device(&self) -> bool {
        // SAFETY: the chain is alive and has a sampler; its name is NUL-terminated and stays valid until the next
        // request for it.
        let name = unsafe {
            let sampler = sys::llama_sampler_chain_get(self.0.as_ptr(), 0);
            if sampler.is_null() {
                return false;
            }
            let name = sys::llama_sampler_name(sampler);
            if name.is_null() {
                return false;
            }
            CStr::from_ptr(name)
        };
        name.to_bytes().starts_with(b"+")
    }
}
