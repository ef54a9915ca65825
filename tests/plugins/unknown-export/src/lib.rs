//! A good component that is no plugin: nothing that it exports is a role.
// Not forbid: the bindings are generated, with unsafe code.
#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod bindings {
    use super::Norole;
    wit_bindgen::generate!({ world: "norole", path: "wit" });
    export!(Norole);
}

struct Norole;

impl bindings::Guest for Norole {
    fn add(a: u32, b: u32) -> u32 {
        a.wrapping_add(b)
    }
}
