//! What `corral-mock` and `corral-remote` share: components that answer a plugin's imports of `corral:inference` outside a
//! Corral host.
//!
//! Each of them implements the traits of [`bindings`] for the functions of `inference-sync`, which block. This crate implements
//! `inference-async` on top of them ([`asynchronous`]), joins chunks ([`collect`]), and reads settings ([`SettingSlot`]).
// Not `forbid`: the generated bindings contain unsafe code.
#![deny(unsafe_code)]

mod asynchronous;
pub mod collect;
mod framed_body;
mod live_generation;
mod notifier;
mod setting;
mod stream_writer;

pub use setting::SettingSlot;
pub use stream_writer::OriginGuard;

/// The exports of such a component. `bindings::export!` exports a type that implements them.
// Generated code.
#[allow(unsafe_code, clippy::all)]
pub mod bindings {
    wit_bindgen::generate!({
        inline: "
            package corral:provider;

            world provider {
                export corral:inference/types@0.1.0;
                export corral:inference/models@0.1.0;
                export corral:inference/constraints@0.1.0;
                export corral:inference/budget@0.1.0;
                export corral:inference/inference@0.1.0;
                export corral:inference/inference-sync@0.1.0;
                export corral:inference/inference-async@0.1.0;
            }
        ",
        world: "corral:provider/provider",
        path: "../../wit",
        generate_all,
        pub_export_macro: true,
    });
}
