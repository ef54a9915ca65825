//! The host functions behind this crate's types: the generated bindings on WebAssembly, a scripted
//! host elsewhere. Both have the same names and signatures.

#[cfg(target_arch = "wasm32")]
pub(crate) use host::*;

#[cfg(not(target_arch = "wasm32"))]
pub(crate) use crate::testing::host::*;

#[cfg(target_arch = "wasm32")]
mod host {
    pub(crate) use crate::bindings::budget::remaining;
    #[cfg(feature = "config")]
    pub(crate) use crate::bindings::config::wasi::config::store::{
        get as get_config, get_all as all_config,
    };
    pub(crate) use crate::bindings::constraints::{Constraint, Matcher};
    pub(crate) use crate::bindings::inference::{NextTokenRequest, Options, Sequence};
    pub(crate) use crate::bindings::inference_async::{
        append_image, collect, compile_constraint, delete_snapshot, embed, frame, generate, next,
        next_many, open_model, restore_snapshot, sample_with, save_snapshot,
    };
    #[cfg(feature = "key-values")]
    pub(crate) use crate::bindings::key_values::wasi::keyvalue::store::{
        Bucket, open as open_bucket,
    };
    #[cfg(feature = "logging")]
    pub(crate) use crate::bindings::logging::wasi::logging::logging::log;
    #[cfg(feature = "messages")]
    pub(crate) use crate::bindings::messages::wasmcloud::messaging::consumer::publish;
    pub(crate) use crate::bindings::models::{Model, available};
    #[cfg(feature = "linked-templating")]
    pub(crate) use crate::bindings::templated::corral::plugin::templating::render;

    pub(crate) type ChunkStream =
        wasip3::wit_bindgen::StreamReader<crate::bindings::inference::Chunk>;
    pub(crate) type OutcomeFuture = wasip3::wit_bindgen::FutureReader<
        Result<crate::bindings::inference::Outcome, crate::bindings::types::Error>,
    >;
}
