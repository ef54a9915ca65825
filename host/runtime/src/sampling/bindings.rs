//! Rust bindings of `corral:plugin/sampling`.

wasmtime::component::bindgen!({
    path: "../../wit",
    world: "corral:plugin/sampling-plugin",
    exports: { default: async },
});
