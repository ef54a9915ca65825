//! The bytes that a guest stores in the host through `wasi:http`, which `host/http_bytes.rs` counts.

use wasmtime::component::ResourceTable;
use wasmtime_wasi_http::p2::body::{HostFutureTrailers, HostIncomingBody, HostOutgoingBody};
use wasmtime_wasi_http::p2::types::{
    HostFutureIncomingResponse, HostIncomingRequest, HostIncomingResponse, HostOutgoingRequest,
    HostOutgoingResponse,
};
use wasmtime_wasi_http::{FieldMap, p3};

/// Memory of a header beside its name and value: a bucket of `HeaderMap`, whose capacity doubles.
const HEADER_BYTES: usize = 256;

/// Whether a guest holds a resource of `wasi:http` with such bytes.
pub(crate) fn is_any_held(table: &mut ResourceTable) -> bool {
    table.iter_mut().any(|entry| {
        entry.is::<FieldMap>()
            || entry.is::<p3::Request>()
            || entry.is::<p3::Response>()
            || entry.is::<HostIncomingRequest>()
            || entry.is::<HostIncomingResponse>()
            || entry.is::<HostOutgoingRequest>()
            || entry.is::<HostOutgoingResponse>()
            || entry.is::<HostFutureIncomingResponse>()
            || entry.is::<HostIncomingBody>()
            || entry.is::<HostOutgoingBody>()
            || entry.is::<HostFutureTrailers>()
    })
}

/// Memory of a header.
pub(crate) fn header_bytes(name: usize, value: &[u8]) -> usize {
    name + value.len() + HEADER_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_fields_are_found() {
        let mut table = ResourceTable::new();
        table.push("a stream").unwrap();
        assert!(!is_any_held(&mut table));
        let fields = table.push(FieldMap::default()).unwrap();
        assert!(is_any_held(&mut table));
        table.delete(fields).unwrap();
        assert!(!is_any_held(&mut table));
    }
}
