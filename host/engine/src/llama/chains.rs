//! Chains that llama.cpp runs where the logits are, which bring the highest of them in place of all.
//!
//! A chain is one `top_k`, for one sequence id each, and given at the creation of a context: to attach one
//! later means that all graphs are planned anew. What `llama-context.cpp` and `llama-graph.cpp` do with
//! them, as of 0.1.161:
//!
//! - **Whole rows are copied by step, not by row** (`needs_raw_logits`): as soon as one row with output is
//!   of an id without a chain, all rows of the step are copied whole, beside the candidates of those that
//!   have a chain. Only steps in which all rows with output have one copy little. (A step is one ubatch for
//!   a memory that can be parted; else it may be several, each with its own rows.)
//! - A sequence may have `n_outputs_max_per_seq` outputs in a step. It is 1 here, so that the graphs that
//!   are planned at first have no more chains than ids; a second one fails the step (-1). So rows with
//!   drafts are for ids without a chain.
//! - `llama_get_logits_ith` answers the candidates' logits where there are some, `k` numbers in place of a
//!   row: it is asked only where there are none. Candidates come in no order.
//! - Chains of ids that are not in a step are part of its graph, and not computed
//!   (`ggml_build_forward_select`). All logits are copied once on the device, for a row that is always
//!   there (`ggml_pad`). A graph is used again only while the same ids have the outputs.
//! - Buffers for the logits, probabilities and candidates of all outputs are made beside the logits, each
//!   as large, in memory of the host. What puts outputs back in order swaps all of them; that is
//!   recurrent and hybrid models.
//! - `ggml_top_k` ends the process if there are fewer logits than `k`: who makes chains sees to that.
//! - Where the device has no such operation the chain does nothing, and each row is copied whole, after a
//!   line in the log. [`Chains::work`] tells.

use super::handle::ContextSettings;
use llama_cpp_sys_2 as sys;
use std::ffi::CStr;
use std::ptr::NonNull;

/// For which ids there are chains, and what they bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceTop {
    /// How many of the highest logits; fewer than the vocabulary has tokens.
    pub k: u32,
    /// For so many ids, the first ones.
    pub ids: u16,
}

impl ContextSettings {
    /// The same without chains, and without the ids that have one.
    #[must_use]
    pub fn without_top(self) -> Self {
        let ids = self.device_top.map_or(0, |top| top.ids);
        Self {
            seq_ids: self.seq_ids.saturating_sub(ids),
            device_top: None,
            ..self
        }
    }
}

/// The chains of a context, to be freed after it.
pub(super) struct Chains {
    chains: Vec<Chain>,
    /// What llama.cpp is told of them.
    told: Vec<sys::llama_sampler_seq_config>,
}

/// Frees the chain, and with it its link, when dropped.
struct Chain(NonNull<sys::llama_sampler>);

// SAFETY: a sampler belongs to no thread; it is used by its context's calls alone, and by this value
// before and after.
unsafe impl Send for Chains {}

impl Drop for Chain {
    fn drop(&mut self) {
        // SAFETY: made by `llama_sampler_chain_init` and freed once; the context is gone.
        unsafe { sys::llama_sampler_free(self.0.as_ptr()) };
    }
}

impl Chains {
    /// Makes them. `None` if there is no memory for one.
    pub fn new(top: DeviceTop) -> Option<Self> {
        let k = i32::try_from(top.k).ok()?;
        let chains: Vec<_> = (0..top.ids).map(|_| Chain::new(k)).collect::<Option<_>>()?;
        let told = (0..).zip(&chains);
        let told = told.map(|(seq_id, chain)| sys::llama_sampler_seq_config {
            seq_id,
            sampler: chain.0.as_ptr(),
        });
        Some(Self {
            told: told.collect(),
            chains,
        })
    }

    /// Tells a context that is to be made of them. They have to live until it is freed, and may be told to
    /// one only.
    pub fn tell(&mut self, params: &mut sys::llama_context_params) {
        params.samplers = self.told.as_mut_ptr();
        params.n_samplers = self.told.len();
        params.n_outputs_max_per_seq = 1;
    }

    /// Whether the context that was told of them has them computed where its logits are.
    pub fn work(&self) -> bool {
        self.chains.iter().all(Chain::works)
    }
}

impl Chain {
    fn new(k: i32) -> Option<Self> {
        // SAFETY: plain structs in and out; the chain owns the link from then on.
        unsafe {
            let params = sys::llama_sampler_chain_default_params();
            let chain = Self(NonNull::new(sys::llama_sampler_chain_init(params))?);
            let link = NonNull::new(sys::llama_sampler_init_top_k(k))?;
            sys::llama_sampler_chain_add(chain.0.as_ptr(), link.as_ptr());
            Some(chain)
        }
    }

    /// llama.cpp puts a + before the name of a link that the device computes, and a - if it can't.
    fn works(&self) -> bool {
        // SAFETY: the chain is alive and has a link; its name is NUL-terminated and lives as long, unless
        // it is asked for again.
        let name = unsafe {
            let link = sys::llama_sampler_chain_get(self.0.as_ptr(), 0);
            if link.is_null() {
                return false;
            }
            let name = sys::llama_sampler_name(link);
            if name.is_null() {
                return false;
            }
            CStr::from_ptr(name)
        };
        name.to_bytes().starts_with(b"+")
    }
}
