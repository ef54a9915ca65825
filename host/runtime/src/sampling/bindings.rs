//! Rust bindings of `corral:plugin/sampling`.

wasmtime::component::bindgen!({
    path: "../../wit",
    world: "corral:inference/sampling",
    exports: { default: async },
});
