//! llama.cpp's own samplers on a row of logits: what tests and benchmarks compare
//! [`sampling`](crate::sampling) with. Not in a build for use.

use super::Model;
use crate::Token;
use crate::sampling::Sampler;
use llama_cpp_sys_2 as sys;
use std::ffi::{CString, c_char};
use std::ptr::NonNull;

/// A chain of llama.cpp's samplers and the candidates that it works on.
pub struct Reference {
    chain: NonNull<sys::llama_sampler>,
    candidates: Vec<sys::llama_token_data>,
}

// SAFETY: llama.cpp's samplers keep no state outside of themselves and none for their thread.
unsafe impl Send for Reference {}

impl Drop for Reference {
    fn drop(&mut self) {
        // SAFETY: made by `llama_sampler_chain_init`, freed once; it frees its links.
        unsafe { sys::llama_sampler_free(self.chain.as_ptr()) };
    }
}

/// Text at which DRY's repetitions end, and the model whose tokens it becomes.
pub type Text<'a> = (&'a Model, &'a [String]);

impl Reference {
    /// The chain of samplers of the same names, all with `min_keep` 1 and this seed. Breakers are
    /// those of `text`; those that a DRY sampler has are not looked at.
    ///
    /// # Panics
    /// If a parameter is not [checked](Sampler::check).
    pub fn new(samplers: &[Sampler], vocabulary: usize, seed: u32, text: Option<Text<'_>>) -> Self {
        // SAFETY: no arguments, a plain struct out.
        let params = unsafe { sys::llama_sampler_chain_default_params() };
        // SAFETY: a plain struct in.
        let chain = unsafe { sys::llama_sampler_chain_init(params) };
        let mut reference = Self {
            chain: NonNull::new(chain).expect("llama.cpp makes a chain"),
            candidates: Vec::new(),
        };
        for sampler in samplers {
            sampler.check().expect("the parameters were checked");
            reference.add(link(sampler, vocabulary, seed, text));
        }
        reference
    }

    /// Adds llama.cpp's link that draws by the softmax.
    #[cfg(feature = "reference")]
    #[must_use]
    pub fn drawing(mut self, seed: u32) -> Self {
        // SAFETY: a number in.
        let link = unsafe { sys::llama_sampler_init_dist(seed) };
        self.add(link);
        self
    }

    /// Adds llama.cpp's link that takes the most likely.
    #[cfg(feature = "reference")]
    #[must_use]
    pub fn greedy(mut self) -> Self {
        // SAFETY: no arguments.
        let link = unsafe { sys::llama_sampler_init_greedy() };
        self.add(link);
        self
    }

    /// Adds further links, which look for no text.
    #[cfg(feature = "reference")]
    #[must_use]
    pub fn then(mut self, samplers: &[Sampler], vocabulary: usize) -> Self {
        for sampler in samplers {
            self.add(link(sampler, vocabulary, 0, None));
        }
        self
    }

    fn add(&mut self, link: *mut sys::llama_sampler) {
        assert!(!link.is_null(), "llama.cpp makes a sampler");
        // SAFETY: both are alive; the chain owns the link from here on.
        unsafe { sys::llama_sampler_chain_add(self.chain.as_ptr(), link) };
    }

    /// Adds a token to what penalties and DRY look back over.
    pub fn accept(&mut self, token: Token) {
        // SAFETY: the chain is alive; its links keep tokens as numbers only.
        unsafe { sys::llama_sampler_accept(self.chain.as_ptr(), signed(token)) };
    }

    /// Applies the chain to a row, as llama.cpp's server does: all candidates are written out, with
    /// minus infinity for those that `allowed` lacks. Returns the token that a link drew.
    #[cfg(feature = "reference")]
    pub fn sample(&mut self, row: &[f32], allowed: Option<&[u32]>) -> Option<Token> {
        self.apply(row, allowed).1
    }

    /// As [`Reference::sample`]; also the tokens left with a finite logit, and these.
    pub fn left(&mut self, row: &[f32]) -> (Vec<(Token, f32)>, Option<Token>) {
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
            // llama.cpp ends the process over a softmax of nothing.
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
        // SAFETY: the array is as long as it says and not empty; links may leave it shorter and
        // beginning later, but within the same memory, which this value keeps.
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

fn link(
    sampler: &Sampler,
    vocabulary: usize,
    seed: u32,
    text: Option<Text<'_>>,
) -> *mut sys::llama_sampler {
    let vocabulary = i32::try_from(vocabulary).expect("a small vocabulary");
    // SAFETY: numbers in, but for the biases, which are as many as passed and copied.
    unsafe {
        match sampler {
            Sampler::Temperature(value) => sys::llama_sampler_init_temp(*value),
            Sampler::DynamicTemperature {
                temperature,
                range,
                exponent,
            } => sys::llama_sampler_init_temp_ext(*temperature, *range, *exponent),
            Sampler::TopK(count) => sys::llama_sampler_init_top_k(signed(*count)),
            Sampler::TopP(mass) => sys::llama_sampler_init_top_p(*mass, 1),
            Sampler::MinP(ratio) => sys::llama_sampler_init_min_p(*ratio, 1),
            Sampler::Typical(mass) => sys::llama_sampler_init_typical(*mass, 1),
            Sampler::TopNSigma(count) => sys::llama_sampler_init_top_n_sigma(*count),
            Sampler::Xtc {
                probability,
                threshold,
            } => sys::llama_sampler_init_xtc(*probability, *threshold, 1, seed),
            Sampler::Dry(_) => dry(sampler, text),
            Sampler::Penalties(set) | Sampler::AnswerPenalties(set) => {
                sys::llama_sampler_init_penalties(
                    vocabulary,
                    signed(set.last),
                    set.repeat,
                    set.frequency,
                    set.presence,
                )
            }
            Sampler::Mirostat { tau, eta } => sys::llama_sampler_init_mirostat_v2(seed, *tau, *eta),
            Sampler::LogitBias(biases) => {
                let biases: Vec<_> = biases
                    .iter()
                    .map(|&(token, bias)| sys::llama_logit_bias {
                        token: signed(token),
                        bias,
                    })
                    .collect();
                let count = i32::try_from(biases.len()).expect("few biases");
                sys::llama_sampler_init_logit_bias(vocabulary, count, biases.as_ptr())
            }
        }
    }
}

fn dry(sampler: &Sampler, text: Option<Text<'_>>) -> *mut sys::llama_sampler {
    let Sampler::Dry(dry) = sampler else {
        unreachable!("only called for DRY")
    };
    let texts: Vec<CString> = text
        .iter()
        .flat_map(|(_, texts)| texts.iter())
        .map(|text| CString::new(text.as_str()).expect("no NUL"))
        .collect();
    let mut pointers: Vec<*const c_char> = texts.iter().map(|text| text.as_ptr()).collect();
    let vocab = text.map_or(std::ptr::null(), |(model, _)| model.vocabulary_pointer());
    // SAFETY: the texts are NUL-terminated, as many as passed, and copied. The vocabulary is
    // alive, or null where there are no texts: it is read for them alone.
    unsafe {
        sys::llama_sampler_init_dry(
            vocab,
            dry.multiplier,
            dry.base,
            signed(dry.allowed_length),
            signed(dry.range),
            pointers.as_mut_ptr(),
            pointers.len(),
        )
    }
}
