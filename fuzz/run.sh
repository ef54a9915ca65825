#!/usr/bin/env bash
# Builds the fuzz targets and runs each, or TARGET, for some minutes, as many at a time as there are cores.
#
#   fuzz/run.sh MINUTES [TARGET]
#
# Inputs that reach new code stay in $CORRAL_CACHE/fuzz/TARGET, and the next run begins with them and with the seeds in
# fuzz/corpus/TARGET. An input that fails a target stays in $CORRAL_CACHE/fuzz/failures; to run it again:
# $CARGO_TARGET_DIR/release/TARGET FILE.
#
# A stable compiler suffices, since the instrumentation needs no sanitizer. Two builds, so that the first needs neither
# llama.cpp nor wasmtime; the second takes both from the host's build, if CARGO_TARGET_DIR has it.
set -euo pipefail
cd "$(dirname "$0")/.."

export seconds=$((${1:-1} * 60))
export cache=${CORRAL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/corral}/fuzz
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$cache/target}
# The targets write small files.
[ ! -w /dev/shm ] || export TMPDIR=/dev/shm
mkdir -p "$cache/failures"

build() { RUSTC_WRAPPER=$PWD/fuzz/rustc.sh cargo build --release --manifest-path fuzz/Cargo.toml "$@"; }

run() {
  local target=$1 log=$cache/$1.log
  mkdir -p "$cache/$target"
  if ! "$CARGO_TARGET_DIR/release/$target" -max_total_time="$seconds" -timeout=25 -rss_limit_mb=4096 \
    -artifact_prefix="$cache/failures/$target-" "$cache/$target" "fuzz/corpus/$target" >"$log" 2>&1; then
    tail -n 60 "$log"
    echo "make fuzz: $target failed; the input is in $cache/failures, all output in $log" >&2
    return 1
  fi
  echo "$target: $(grep 'DONE' "$log" | tail -n 1)"
}
export -f run

target=${2:-}
if [ -n "$target" ] && [ ! -d "fuzz/corpus/$target" ]; then
  echo "make fuzz: there is no target $target; expected one of $(ls fuzz/corpus | paste -sd' ')" >&2
  exit 1
fi
if [ -z "$target" ] || [ -f "fuzz/plugins/$target.rs" ] || [ -f "fuzz/grammars/$target.rs" ]; then
  build -p fuzz-plugins -p fuzz-grammars
fi
if [ -z "$target" ] || [ -f "fuzz/engine/$target.rs" ] || [ -f "fuzz/server/$target.rs" ]; then
  build -p fuzz-engine -p fuzz-server
fi
# shellcheck disable=SC2012
ls fuzz/corpus | grep -x "${target:-.*}" | xargs -P "$(nproc)" -I {} bash -c 'run {}'
