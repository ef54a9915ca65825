//! Plugins in WebAssembly text.

#![allow(dead_code)]

/// The error codes of `wasi:http/types` inside an instance type, the same in 0.2 and 0.3.
const ERROR_CODE: &str = r#"
    (type $dns' (record (field "rcode" (option string)) (field "info-code" (option u16))))
    (export "DNS-error-payload" (type $dns (eq $dns')))
    (type $tls' (record (field "alert-id" (option u8)) (field "alert-message" (option string))))
    (export "TLS-alert-received-payload" (type $tls (eq $tls')))
    (type $field' (record (field "field-name" (option string)) (field "field-size" (option u32))))
    (export "field-size-payload" (type $field (eq $field')))
    (type $code' (variant
        (case "DNS-timeout") (case "DNS-error" $dns) (case "destination-not-found")
        (case "destination-unavailable") (case "destination-IP-prohibited")
        (case "destination-IP-unroutable") (case "connection-refused")
        (case "connection-terminated") (case "connection-timeout")
        (case "connection-read-timeout") (case "connection-write-timeout")
        (case "connection-limit-reached") (case "TLS-protocol-error")
        (case "TLS-certificate-error") (case "TLS-alert-received" $tls)
        (case "HTTP-request-denied") (case "HTTP-request-length-required")
        (case "HTTP-request-body-size" (option u64)) (case "HTTP-request-method-invalid")
        (case "HTTP-request-URI-invalid") (case "HTTP-request-URI-too-long")
        (case "HTTP-request-header-section-size" (option u32))
        (case "HTTP-request-header-size" (option $field))
        (case "HTTP-request-trailer-section-size" (option u32))
        (case "HTTP-request-trailer-size" $field) (case "HTTP-response-incomplete")
        (case "HTTP-response-header-section-size" (option u32))
        (case "HTTP-response-header-size" $field)
        (case "HTTP-response-body-size" (option u64))
        (case "HTTP-response-trailer-section-size" (option u32))
        (case "HTTP-response-trailer-size" $field)
        (case "HTTP-response-transfer-coding" (option string))
        (case "HTTP-response-content-coding" (option string)) (case "HTTP-response-timeout")
        (case "HTTP-upgrade-failed") (case "HTTP-protocol-error") (case "loop-detected")
        (case "configuration-error") (case "internal-error" (option string))))
    (export "error-code" (type $code (eq $code')))
"#;

/// A `wasi:http/incoming-handler@0.2` whose `handle` is `code`. `(call $respond)` sends headers with status
/// 200, `(call $say)` writes "hello" to the body and waits until there is room, `(call $finish)` ends it.
pub fn http_2(code: &str) -> Vec<u8> {
    let text = format!(
        r#"(component
        (import "wasi:io/error@0.2.0" (instance $io-error (export "error" (type (sub resource)))))
        (alias export $io-error "error" (type $error))
        (import "wasi:io/streams@0.2.0" (instance $streams
            (export "output-stream" (type $os (sub resource)))
            (alias outer 1 $error (type $e'))
            (export "error" (type $e (eq $e')))
            (type $se' (variant (case "last-operation-failed" (own $e)) (case "closed")))
            (export "stream-error" (type $se (eq $se')))
            (export "[method]output-stream.blocking-write-and-flush" (func
                (param "self" (borrow $os)) (param "contents" (list u8))
                (result (result (error $se)))))))
        (alias export $streams "output-stream" (type $output-stream))
        (import "wasi:http/types@0.2.0" (instance $http
            (alias outer 1 $output-stream (type $os'))
            (export "output-stream" (type $os (eq $os')))
            (export "fields" (type $fields (sub resource)))
            (export "trailers" (type $trailers (eq $fields)))
            (export "headers" (type $headers (eq $fields)))
            (export "incoming-request" (type (sub resource)))
            (export "response-outparam" (type $out (sub resource)))
            (export "outgoing-response" (type $response (sub resource)))
            (export "outgoing-body" (type $body (sub resource)))
            {ERROR_CODE}
            (export "[constructor]fields" (func (result (own $fields))))
            (export "[constructor]outgoing-response" (func
                (param "headers" (own $headers)) (result (own $response))))
            (export "[method]outgoing-response.body" (func
                (param "self" (borrow $response)) (result (result (own $body)))))
            (export "[method]outgoing-body.write" (func
                (param "self" (borrow $body)) (result (result (own $os)))))
            (export "[static]outgoing-body.finish" (func
                (param "this" (own $body)) (param "trailers" (option (own $trailers)))
                (result (result (error $code)))))
            (export "[static]response-outparam.set" (func
                (param "param" (own $out)) (param "response" (result (own $response) (error $code)))))))
        (alias export $http "incoming-request" (type $request))
        (alias export $http "response-outparam" (type $outparam))
        (core module $memory
            (memory (export "memory") 1)
            (data (i32.const 64) "hello")
            (func (export "realloc") (param i32 i32 i32 i32) (result i32) unreachable))
        (core instance $memory (instantiate $memory))
        (alias core export $memory "memory" (core memory $m))
        (alias core export $memory "realloc" (core func $realloc))
        (core func $fields (canon lower (func $http "[constructor]fields")))
        (core func $response (canon lower (func $http "[constructor]outgoing-response")))
        (core func $body (canon lower (func $http "[method]outgoing-response.body") (memory $m)))
        (core func $write (canon lower (func $http "[method]outgoing-body.write") (memory $m)))
        (core func $finish (canon lower (func $http "[static]outgoing-body.finish") (memory $m) (realloc $realloc)))
        (core func $set (canon lower (func $http "[static]response-outparam.set") (memory $m)))
        (core func $push (canon lower (func $streams "[method]output-stream.blocking-write-and-flush") (memory $m) (realloc $realloc)))
        (core func $close (canon resource.drop $output-stream))
        (core module $main
            (import "h" "memory" (memory 1))
            (import "h" "fields" (func $fields (result i32)))
            (import "h" "response" (func $response (param i32) (result i32)))
            (import "h" "body" (func $body (param i32 i32)))
            (import "h" "write" (func $write (param i32 i32)))
            (import "h" "finish" (func $end (param i32 i32 i32 i32)))
            (import "h" "set" (func $set (param i32 i32 i32 i32 i64 i32 i32 i32 i32)))
            (import "h" "push" (func $push (param i32 i32 i32 i32)))
            (import "h" "close" (func $close (param i32)))
            (global $out (mut i32) (i32.const 0))
            (global $bytes (mut i32) (i32.const 0))
            (global $stream (mut i32) (i32.const 0))
            (func $respond (local $r i32)
                (local.set $r (call $response (call $fields)))
                (call $body (local.get $r) (i32.const 0))
                (global.set $bytes (i32.load (i32.const 4)))
                (call $write (global.get $bytes) (i32.const 0))
                (global.set $stream (i32.load (i32.const 4)))
                (call $set (global.get $out) (i32.const 0) (local.get $r) (i32.const 0)
                    (i64.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)))
            (func $say (call $push (global.get $stream) (i32.const 64) (i32.const 5) (i32.const 16)))
            (func $finish
                (call $close (global.get $stream))
                (call $end (global.get $bytes) (i32.const 0) (i32.const 0) (i32.const 128)))
            (func (export "handle") (param i32 i32)
                (global.set $out (local.get 1))
                {code}))
        (core instance $main (instantiate $main (with "h" (instance
            (export "memory" (memory $m)) (export "fields" (func $fields))
            (export "response" (func $response)) (export "body" (func $body))
            (export "write" (func $write)) (export "finish" (func $finish))
            (export "set" (func $set)) (export "push" (func $push))
            (export "close" (func $close))))))
        (func $handle (param "request" (own $request)) (param "response-out" (own $outparam))
            (canon lift (core func $main "handle")))
        (instance $handler (export "handle" (func $handle)))
        (export "wasi:http/incoming-handler@0.2.0" (instance $handler)))"#
    );
    wat::parse_str(text).unwrap()
}

/// A `wasi:http/handler@0.3` whose `handle` is `code`, which returns the address of its result.
pub fn http_3(code: &str) -> Vec<u8> {
    let text = format!(
        r#"(component
        (import "wasi:http/types@0.3.0" (instance $http
            (export "request" (type (sub resource)))
            (export "response" (type (sub resource)))
            {ERROR_CODE}))
        (alias export $http "request" (type $request))
        (alias export $http "response" (type $response))
        (alias export $http "error-code" (type $code))
        (core module $main
            (memory (export "memory") 1)
            (func (export "handle") (param i32) (result i32) {code}))
        (core instance $main (instantiate $main))
        (func $handle async (param "request" (own $request))
            (result (result (own $response) (error $code)))
            (canon lift (core func $main "handle") (memory (core memory $main "memory"))))
        (instance $handler (export "handle" (func $handle)))
        (export "wasi:http/handler@0.3.0" (instance $handler)))"#
    );
    wat::parse_str(text).unwrap()
}

/// A command for `wasi:cli/run` in the given version. `code` returns 0 for success, else 1.
pub fn command(version: &str, code: &str) -> Vec<u8> {
    let kind = if version.starts_with("0.3") {
        "async"
    } else {
        ""
    };
    let text = format!(
        r#"(component
        (core module $main (func (export "run") (result i32) {code}))
        (core instance $main (instantiate $main))
        (func $run {kind} (result (result)) (canon lift (core func $main "run")))
        (instance $command (export "run" (func $run)))
        (export "wasi:cli/run@{version}" (instance $command)))"#
    );
    wat::parse_str(text).unwrap()
}

/// Components that block in a wait of an hour, and a caller of all, `$run`, that does so too. `rest` exports it.
fn blocked(parts: usize, rest: &str) -> Vec<u8> {
    let each = |text: &str| -> String {
        let part = |part: usize| text.replace('#', &part.to_string());
        (0..parts).map(part).collect()
    };
    let instances = each(r#"(instance $p# (instantiate $part (with "wait" (func $wait))))"#);
    let blocks = each(
        r#"(import "b#" (func $b# async))
        (core func $b# (canon lower (func $b#) async))"#,
    );
    let imports = each(r#"(import "h" "b#" (func $b# (result i32)))"#);
    let calls = each("(drop (call $b#))");
    let with = each(r#"(export "b#" (func $b#))"#);
    let with_parts = each(r#"(with "b#" (func $p# "block"))"#);
    let hour = "(call $wait (i64.const 3600000000000))";
    let text = format!(
        r#"(component
        (import "wasi:clocks/monotonic-clock@0.3.0" (instance $clock
            (export "wait-for" (func async (param "how-long" u64)))))
        (alias export $clock "wait-for" (func $wait))
        (component $part
            (import "wait" (func $wait async (param "how-long" u64)))
            (core func $wait (canon lower (func $wait)))
            (core module $main
                (import "h" "wait" (func $wait (param i64)))
                (func (export "block") {hour}))
            (core instance $main (instantiate $main (with "h" (instance
                (export "wait" (func $wait))))))
            (func (export "block") async (canon lift (core func $main "block"))))
        {instances}
        (component $caller
            (import "wait" (func $wait async (param "how-long" u64)))
            (core func $w (canon lower (func $wait)))
            {blocks}
            (core module $main
                (import "h" "wait" (func $wait (param i64)))
                {imports}
                (func (export "run") (result i32) {calls} {hour} (i32.const 0)))
            (core instance $main (instantiate $main (with "h" (instance
                (export "wait" (func $w)) {with}))))
            (func (export "run") async (result (result)) (canon lift (core func $main "run"))))
        (instance $caller (instantiate $caller (with "wait" (func $wait)) {with_parts}))
        (alias export $caller "run" (func $run))
        {rest})"#
    );
    wat::parse_str(text).unwrap()
}

/// A command of WASI 0.3 composed of `parts` components and their caller, each blocked in a wait of an hour.
pub fn blocked_command(parts: usize) -> Vec<u8> {
    blocked(
        parts,
        r#"(instance $command (export "run" (func $run)))
        (export "wasi:cli/run@0.3.0" (instance $command))"#,
    )
}

/// A `wasi:http/handler@0.3` that calls such a command.
pub fn blocked_handler(parts: usize) -> Vec<u8> {
    let types = format!(
        r#"(export "request" (type (sub resource)))
        (export "response" (type (sub resource)))
        {ERROR_CODE}"#
    );
    let handler = format!(
        r#"(import "wasi:http/types@0.3.0" (instance $http {types}))
        (component $handler
            (import "http" (instance $http {types}))
            (import "run" (func $run async (result (result))))
            (alias export $http "request" (type $request))
            (alias export $http "response" (type $response))
            (alias export $http "error-code" (type $code))
            (core func $run (canon lower (func $run)))
            (core module $main
                (import "h" "run" (func $run (result i32)))
                (memory (export "memory") 1)
                (func (export "handle") (param i32) (result i32) (call $run)))
            (core instance $main (instantiate $main (with "h" (instance
                (export "run" (func $run))))))
            (func (export "handle") async (param "request" (own $request))
                (result (result (own $response) (error $code)))
                (canon lift (core func $main "handle") (memory (core memory $main "memory")))))
        (instance $handler (instantiate $handler
            (with "http" (instance $http)) (with "run" (func $run))))
        (alias export $handler "handle" (func $handle))
        (instance $exported (export "handle" (func $handle)))
        (export "wasi:http/handler@0.3.0" (instance $exported))"#
    );
    blocked(parts, &handler)
}
