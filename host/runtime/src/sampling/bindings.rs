//! Rust types and functions made from `corral:plugin/sampling`.

wasmtime::component::bindgen!({
    path: "../../wit",
    world: "corral:plugin/sampling-plugin",
    exports: { default: async },
});
