//! What stands behind the types of this crate: the host's functions on WebAssembly, a script elsewhere.
//! Both have the same names and signatures.

#[cfg(target_arch = "wasm32")]
pub(crate) use host::*;

#[cfg(not(target_arch = "wasm32"))]
pub(crate) use crate::testing::engine::*;

#[cfg(target_arch = "wasm32")]
mod host {
    pub(crate) use crate::raw::budget::left;
    pub(crate) use crate::raw::constraints::{Constraint, Matcher};
    pub(crate) use crate::raw::inference::{Look, Options, Sequence, collect, frame, next_many};
    pub(crate) use crate::raw::models::{Model, available};
    #[cfg(feature = "linked-templating")]
    pub(crate) use crate::raw::templated::corral::plugin::templating::render;

    /// The pieces of a generation.
    pub(crate) type Chunks = wasip3::wit_bindgen::StreamReader<crate::raw::inference::Chunk>;
    /// How it went.
    pub(crate) type Ending = wasip3::wit_bindgen::FutureReader<
        Result<crate::raw::inference::Outcome, crate::raw::types::Error>,
    >;
}
