//! Rust bindings of `wasmcloud:messaging/handler`.

wasmtime::component::bindgen!({
    path: "../../wit",
    world: "wasmcloud:messaging/handler-service",
    exports: { default: async | store },
});
