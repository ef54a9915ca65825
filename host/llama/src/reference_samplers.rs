//! llama.cpp's own samplers. Only tests and benchmarks that compare Corral's samplers with them use this.

use crate::{Model, Token};
use llama_cpp_sys_2 as sys;
use std::ffi::{CString, c_char};
use std::ptr::NonNull;

/// A chain of llama.cpp's samplers, all with `min_keep` 1, and the candidates it works on. Its methods
/// panic if numbers exceed `i32`.
#[must_use]
pub struct ReferenceChain {
    chain: NonNull<sys::llama_sampler>,
    vocabulary: i32,
    candidates: Vec<sys::llama_token_data>,
}

// SAFETY: llama.cpp's samplers keep no state outside themselves and none for their thread.
unsafe impl Send for ReferenceChain {}

impl Drop for ReferenceChain {
    fn drop(&mut self) {
        // SAFETY: made by `llama_sampler_chain_init`, freed once; it frees its samplers.
        unsafe { sys::llama_sampler_free(self.chain.as_ptr()) };
    }
}

impl ReferenceChain {
    /// An empty chain for rows of `vocabulary` logits.
    pub fn new(vocabulary: usize) -> Self {
        // SAFETY: no arguments, a plain struct out.
        let params = unsafe { sys::llama_sampler_chain_default_params() };
        // SAFETY: a plain struct in.
        let chain = unsafe { sys::llama_sampler_chain_init(params) };
        Self {
            chain: NonNull::new(chain).expect("llama.cpp makes a chain"),
            vocabulary: i32::try_from(vocabulary).expect("a small vocabulary"),
            candidates: Vec::new(),
        }
    }

    /// Appends the temperature.
    pub fn temperature(self, value: f32) -> Self {
        // SAFETY: numbers in.
        self.add(unsafe { sys::llama_sampler_init_temp(value) })
    }

    /// Appends the dynamic temperature.
    pub fn dynamic_temperature(self, value: f32, range: f32, exponent: f32) -> Self {
        // SAFETY: numbers in.
        self.add(unsafe { sys::llama_sampler_init_temp_ext(value, range, exponent) })
    }

    /// Appends top-k.
    pub fn top_k(self, count: u32) -> Self {
        // SAFETY: numbers in.
        self.add(unsafe { sys::llama_sampler_init_top_k(signed(count)) })
    }

    /// Appends top-p.
    pub fn top_p(self, mass: f32) -> Self {
        // SAFETY: numbers in.
        self.add(unsafe { sys::llama_sampler_init_top_p(mass, 1) })
    }

    /// Appends min-p.
    pub fn min_p(self, ratio: f32) -> Self {
        // SAFETY: numbers in.
        self.add(unsafe { sys::llama_sampler_init_min_p(ratio, 1) })
    }

    /// Appends typical sampling.
    pub fn typical(self, mass: f32) -> Self {
        // SAFETY: numbers in.
        self.add(unsafe { sys::llama_sampler_init_typical(mass, 1) })
    }

    /// Appends top-n-sigma.
    pub fn top_n_sigma(self, count: f32) -> Self {
        // SAFETY: numbers in.
        self.add(unsafe { sys::llama_sampler_init_top_n_sigma(count) })
    }

    /// Appends XTC.
    pub fn xtc(self, probability: f32, threshold: f32, seed: u32) -> Self {
        // SAFETY: numbers in.
        self.add(unsafe { sys::llama_sampler_init_xtc(probability, threshold, 1, seed) })
    }

    /// Appends mirostat 2, which draws.
    pub fn mirostat(self, tau: f32, eta: f32, seed: u32) -> Self {
        // SAFETY: numbers in.
        self.add(unsafe { sys::llama_sampler_init_mirostat_v2(seed, tau, eta) })
    }

    /// Appends a draw by the softmax.
    pub fn draw(self, seed: u32) -> Self {
        // SAFETY: numbers in.
        self.add(unsafe { sys::llama_sampler_init_dist(seed) })
    }

    /// Appends a choice of the most likely token.
    pub fn greedy(self) -> Self {
        // SAFETY: numbers in.
        self.add(unsafe { sys::llama_sampler_init_greedy() })
    }

    /// Appends penalties.
    pub fn penalties(self, last_n: u32, repeat: f32, frequency: f32, presence: f32) -> Self {
        let (vocabulary, last_n) = (self.vocabulary, signed(last_n));
        // SAFETY: numbers in.
        self.add(unsafe {
            sys::llama_sampler_init_penalties(vocabulary, last_n, repeat, frequency, presence)
        })
    }

    /// Appends a logit bias.
    pub fn logit_bias(self, biases: &[(Token, f32)]) -> Self {
        let biases: Vec<_> = biases
            .iter()
            .map(|&(token, bias)| sys::llama_logit_bias {
                token: signed(token),
                bias,
            })
            .collect();
        let (vocabulary, count) = (self.vocabulary, biases.len());
        let count = i32::try_from(count).expect("few biases");
        // SAFETY: as many biases as passed, which are copied.
        self.add(unsafe { sys::llama_sampler_init_logit_bias(vocabulary, count, biases.as_ptr()) })
    }

    /// Appends DRY; with breakers, their texts and the model that tokenizes them.
    pub fn dry(
        self,
        multiplier: f32,
        base: f32,
        allowed_length: u32,
        range: u32,
        breakers: Option<(&Model, &[String])>,
    ) -> Self {
        let texts: Vec<CString> = breakers
            .iter()
            .flat_map(|(_, texts)| texts.iter())
            .map(|text| CString::new(text.as_str()).expect("no NUL"))
            .collect();
        let mut pointers: Vec<*const c_char> = texts.iter().map(|text| text.as_ptr()).collect();
        let vocabulary = breakers.map_or(std::ptr::null(), |(model, _)| model.vocab_ptr());
        // SAFETY: the texts are NUL-terminated, as many as passed, and copied. The vocabulary is
        // alive, or null if there are no texts: it is read for them alone.
        self.add(unsafe {
            sys::llama_sampler_init_dry(
                vocabulary,
                multiplier,
                base,
                signed(allowed_length),
                signed(range),
                pointers.as_mut_ptr(),
                pointers.len(),
            )
        })
    }

    fn add(self, sampler: *mut sys::llama_sampler) -> Self {
        assert!(!sampler.is_null(), "llama.cpp makes a sampler");
        // SAFETY: both are alive; the chain owns the sampler from here on.
        unsafe { sys::llama_sampler_chain_add(self.chain.as_ptr(), sampler) };
        self
    }

    /// Adds a token to the history of penalties and DRY.
    pub fn accept(&mut self, token: Token) {
        // SAFETY: the chain is alive; its samplers keep tokens as numbers only.
        unsafe { sys::llama_sampler_accept(self.chain.as_ptr(), signed(token)) };
    }

    /// Applies the chain to a row as llama.cpp's server does: writes out all candidates, with minus
    /// infinity for those outside `allowed`. Returns the token drawn, if a sampler draws.
    pub fn sample(&mut self, row: &[f32], allowed: Option<&[u32]>) -> Option<Token> {
        self.apply(row, allowed).1
    }

    /// Applies the chain to a row. Returns the tokens with a finite logit that it leaves, and the token
    /// drawn, if a sampler draws.
    pub fn candidates(&mut self, row: &[f32]) -> (Vec<(Token, f32)>, Option<Token>) {
        let (left, drawn) = self.apply(row, None);
        let finite = left.iter().filter(|one| one.logit.is_finite());
        let pairs = finite.map(|one| (one.id.cast_unsigned(), one.logit));
        (pairs.collect(), drawn)
    }

    fn apply(
        &mut self,
        row: &[f32],
        allowed: Option<&[u32]>,
    ) -> (&[sys::llama_token_data], Option<Token>) {
        if row.is_empty() {
            // llama.cpp aborts on a softmax of nothing.
            return (&[], None);
        }
        let candidate = |(id, &logit)| sys::llama_token_data { id, logit, p: 0.0 };
        self.candidates.clear();
        self.candidates.extend((0..).zip(row).map(candidate));
        if let Some(allowed) = allowed {
            for (index, one) in self.candidates.iter_mut().enumerate() {
                if allowed[index / 32] >> (index % 32) & 1 == 0 {
                    one.logit = f32::NEG_INFINITY;
                }
            }
        }
        let mut array = sys::llama_token_data_array {
            data: self.candidates.as_mut_ptr(),
            size: self.candidates.len(),
            selected: -1,
            sorted: false,
        };
        // SAFETY: the array is as long as it says and not empty. Samplers may shorten it or move its
        // start, but within the same memory, which `self` keeps.
        let left = unsafe {
            sys::llama_sampler_apply(self.chain.as_ptr(), &raw mut array);
            std::slice::from_raw_parts(array.data, array.size)
        };
        let drawn = usize::try_from(array.selected).ok();
        let token = drawn.and_then(|index| left.get(index));
        (left, token.map(|one| one.id.cast_unsigned()))
    }
}

fn signed(number: u32) -> i32 {
    i32::try_from(number).expect("a small number")
}
