//! `corral-remote` without `inference-async`: a component for runtimes that know WASI 0.2 only, such as Spin. The code is that
//! of `corral-remote`, over bindings of another world.
// Not `forbid`: the generated bindings contain unsafe code.
#![deny(unsafe_code)]

#[path = "../../provider/src/collect.rs"]
mod collect;
#[path = "../../remote/src/connect.rs"]
mod connect;
#[path = "../../remote/src/connection.rs"]
mod connection;
#[path = "../../remote/src/convert.rs"]
mod convert;
#[path = "../../remote/src/generations.rs"]
mod generations;
#[path = "../../remote/src/models.rs"]
mod models;
#[path = "../../remote/src/options.rs"]
mod options;
#[path = "../../remote/src/sequences.rs"]
mod sequences;
#[path = "../../remote/src/session.rs"]
mod session;
#[path = "../../provider/src/setting.rs"]
mod setting;

use setting::SettingSlot;

/// In `corral-remote`, this keeps the task that writes streams running. Here is none.
struct OriginGuard;

impl OriginGuard {
    fn new() -> Self {
        OriginGuard
    }
}

// Generated code.
#[allow(unsafe_code, clippy::all)]
mod bindings {
    wit_bindgen::generate!({
        inline: "
            package corral:provider;

            world provider-sync {
                export corral:inference/types@0.1.0;
                export corral:inference/models@0.1.0;
                export corral:inference/constraints@0.1.0;
                export corral:inference/budget@0.1.0;
                export corral:inference/inference@0.1.0;
                export corral:inference/inference-sync@0.1.0;
            }
        ",
        world: "corral:provider/provider-sync",
        path: "../../wit",
        generate_all,
    });

    use super::Remote;
    export!(Remote);
}

/// `corral compose --remote` writes the URL here.
static URL: SettingSlot<2048> = SettingSlot::new();

/// The component.
struct Remote;
