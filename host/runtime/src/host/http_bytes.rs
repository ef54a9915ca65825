//! Counts the bytes that a guest stores in the host through `wasi:http`.
//!
//! `wasmtime-wasi-http` bounds each `fields` resource, but neither their sum nor a method. This module links
//! the functions that store bytes again: they count the bytes as the guest's memory before the
//! host stores them. A body of WASI 0.2 counts as the bytes that the host may buffer for it; in WASI 0.3 a body's
//! bytes stay with the guest. The count falls only when a call ends without any of them, since resources pass their bytes on to
//! others.

use crate::http_bytes::header_bytes;
use crate::outbound::P2_BODY_BYTES;
use crate::state::State;
use wasmtime::StoreContextMut;
use wasmtime::component::{Linker, Resource};
use wasmtime_wasi_http::{FieldMap, WasiHttpView};

type Access<'a> = StoreContextMut<'a, State>;

/// Links functions of `fields` and of the request resource `$request` of one version of WASI.
macro_rules! link {
    ($linker:ident, $interface:literal, $wasi:ident, $request:literal, $Request:ident, $HostRequest:ident) => {{
        use wasmtime_wasi_http::$wasi::bindings::http::types::{
            HostFields, Method, $HostRequest, $Request,
        };
        let mut types = $linker.instance($interface)?;
        types.func_wrap(
            "[static]fields.from-list",
            |mut store: Access<'_>, (headers,): (Vec<(String, Vec<u8>)>,)| {
                let bytes = headers
                    .iter()
                    .map(|(name, value)| header_bytes(name.len(), value));
                count(&mut store, bytes.sum())?;
                let fields = store.data_mut().http().from_list(headers);
                let fields = fields.map(Ok).or_else(|error| error.downcast().map(Err))?;
                Ok((fields,))
            },
        )?;
        types.func_wrap(
            "[method]fields.append",
            |mut store: Access<'_>,
             (fields, name, value): (Resource<FieldMap>, String, Vec<u8>)| {
                count(&mut store, header_bytes(name.len(), &value))?;
                let appended = store.data_mut().http().append(fields, name, value);
                Ok((appended
                    .map(Ok)
                    .or_else(|error| error.downcast().map(Err))?,))
            },
        )?;
        types.func_wrap(
            "[method]fields.set",
            |mut store: Access<'_>,
             (fields, name, values): (Resource<FieldMap>, String, Vec<Vec<u8>>)| {
                let bytes = values.iter().map(|value| header_bytes(name.len(), value));
                count(&mut store, bytes.sum())?;
                let set = store.data_mut().http().set(fields, name, values);
                Ok((set.map(Ok).or_else(|error| error.downcast().map(Err))?,))
            },
        )?;
        types.func_wrap(
            "[method]fields.clone",
            |mut store: Access<'_>, (fields,): (Resource<FieldMap>,)| {
                let headers = store.data().table.get(&fields)?.iter();
                let bytes = headers
                    .map(|(name, value)| header_bytes(name.as_str().len(), value.as_bytes()))
                    .sum();
                count(&mut store, bytes)?;
                Ok((HostFields::clone(&mut store.data_mut().http(), fields)?,))
            },
        )?;
        types.func_wrap(
            concat!("[method]", $request, ".set-method"),
            |mut store: Access<'_>, (request, method): (Resource<$Request>, Method)| {
                if let Method::Other(name) = &method {
                    count(&mut store, name.len())?;
                }
                let mut http = store.data_mut().http();
                Ok(($HostRequest::set_method(&mut http, request, method)?,))
            },
        )?;
        types.func_wrap(
            concat!("[method]", $request, ".set-path-with-query"),
            |mut store: Access<'_>, (request, path): (Resource<$Request>, Option<String>)| {
                count(&mut store, path.as_ref().map_or(0, String::len))?;
                let mut http = store.data_mut().http();
                Ok(($HostRequest::set_path_with_query(&mut http, request, path)?,))
            },
        )?;
        types.func_wrap(
            concat!("[method]", $request, ".set-authority"),
            |mut store: Access<'_>, (request, authority): (Resource<$Request>, Option<String>)| {
                count(&mut store, authority.as_ref().map_or(0, String::len))?;
                let mut http = store.data_mut().http();
                Ok(($HostRequest::set_authority(&mut http, request, authority)?,))
            },
        )
    }};
}

pub(super) fn link_p2(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    use wasmtime_wasi_http::p2::bindings::http::types::{
        HostOutgoingRequest, HostOutgoingResponse, OutgoingRequest, OutgoingResponse,
    };
    link!(
        linker,
        "wasi:http/types@0.2.12",
        p2,
        "outgoing-request",
        OutgoingRequest,
        HostOutgoingRequest
    )?;
    let mut types = linker.instance("wasi:http/types@0.2.12")?;
    types.func_wrap(
        "[method]outgoing-request.body",
        |mut store: Access<'_>, (request,): (Resource<OutgoingRequest>,)| {
            count(&mut store, P2_BODY_BYTES)?;
            Ok((HostOutgoingRequest::body(
                &mut store.data_mut().http(),
                request,
            )?,))
        },
    )?;
    types.func_wrap(
        "[method]outgoing-response.body",
        |mut store: Access<'_>, (response,): (Resource<OutgoingResponse>,)| {
            count(&mut store, P2_BODY_BYTES)?;
            Ok((HostOutgoingResponse::body(
                &mut store.data_mut().http(),
                response,
            )?,))
        },
    )
}

pub(super) fn link_p3(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    link!(
        linker,
        "wasi:http/types@0.3.0",
        p3,
        "request",
        Request,
        HostRequest
    )
}

fn count(store: &mut Access<'_>, bytes: usize) -> wasmtime::Result<()> {
    store.data_mut().limiter.count_host_bytes(bytes)
}
