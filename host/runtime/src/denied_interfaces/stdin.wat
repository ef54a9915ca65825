;; Reads a byte of standard input. `ended` returns 1 if it has ended, else 0.
(component
  (import "wasi:io/error@0.2.3" (instance $error (export "error" (type (sub resource)))))
  (alias export $error "error" (type $e))
  (import "wasi:io/streams@0.2.3" (instance $streams
    (export "input-stream" (type $input (sub resource)))
    (alias outer 1 $e (type $e'))
    (export "error" (type $error (eq $e')))
    (type $failed' (variant (case "last-operation-failed" (own $error)) (case "closed")))
    (export "stream-error" (type $failed (eq $failed')))
    (export "[method]input-stream.blocking-read" (func
      (param "self" (borrow $input)) (param "len" u64)
      (result (result (list u8) (error $failed)))))))
  (alias export $streams "input-stream" (type $input))
  (import "{stdin}" (instance $stdin
    (alias outer 1 $input (type $i'))
    (export "input-stream" (type $i (eq $i')))
    (export "get-stdin" (func (result (own $i))))))
  (core module $memory
    (memory (export "memory") 1)
    (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 1024)))
  (core instance $memory (instantiate $memory))
  (alias core export $memory "memory" (core memory $m))
  (alias core export $memory "realloc" (core func $realloc))
  (core func $get (canon lower (func $stdin "get-stdin")))
  (core func $read (canon lower (func $streams "[method]input-stream.blocking-read")
    (memory $m) (realloc $realloc)))
  (core module $main
    (import "h" "memory" (memory 1))
    (import "h" "get" (func $get (result i32)))
    (import "h" "read" (func $read (param i32 i64 i32)))
    (func (export "ended") (result i32)
      (call $read (call $get) (i64.const 1) (i32.const 0))
      (i32.load8_u (i32.const 0))))
  (core instance $main (instantiate $main (with "h" (instance
    (export "memory" (memory $m)) (export "get" (func $get)) (export "read" (func $read))))))
  (func (export "ended") (result u32) (canon lift (core func $main "ended"))))
