//! A valid component that is not a plugin: Corral knows none of its exports.
// Not `forbid`: the generated bindings contain unsafe code.
#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod bindings {
    use super::Component;
    wit_bindgen::generate!({ world: "unknown-export", path: "wit" });
    export!(Component);
}

struct Component;

impl bindings::Guest for Component {
    fn add(a: u32, b: u32) -> u32 {
        a.wrapping_add(b)
    }
}
