#!/bin/sh
# Compiles for `make fuzz`: adds libFuzzer's instrumentation to the crates that fuzz/Cargo.toml builds with opt-level 1.
# The others (wasmtime, llama.cpp, tokio) are the host's own builds.
case " $* " in
  *" --crate-name build_script"* | *" --crate-type proc-macro "*) ;;
  *" opt-level=1 "*)
    exec "$@" --cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
      -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
      -Cllvm-args=-sanitizer-coverage-trace-compares ;;
esac
exec "$@"
