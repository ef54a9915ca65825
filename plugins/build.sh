#!/usr/bin/env bash
# Builds every first-party plugin, example and test plugin to a component in one directory.
#
#   plugins/build.sh OUT_DIR
#
# Compiles the crates to core modules for wasm32-wasip1 and turns them into components with
# plugins/componentize. Copies a crate's corral.toml beside the component, as NAME.toml, and links the components that
# it names into the crate, so that `corral deploy examples/chat` finds them. The compiler is
#   - the one in PATH, if it has the target or rustup can add it;
#   - otherwise Debian's, which builds std from source (-Zbuild-std).
# Each checkout has a target directory for each compiler in $CORRAL_CACHE/build (default: ~/.cache/corral/build), and
# neither compiler sees flags for native code.
set -euo pipefail

readonly target=wasm32-wasip1
# `corral build` uses this one, and so do the tests of its projects.
readonly component_target=wasm32-wasip2
readonly debian_packages="rustc-web cargo-web rust-web-src wasi-libc lld-19"

say() { echo "plugins/build.sh: $*" >&2; }
die() { say "$*"; exit 1; }

[ $# -eq 1 ] || die "expected one argument, the directory for the components"
mkdir -p "$1"
out=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
# shellcheck source=../host/apt.sh
source host/apt.sh
# Not the host's directory of compiled plugins: wasmtime removes unknown files there.
cache=${CORRAL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/corral}/build
# In a common directory cargo would take the crates of two checkouts for the same ones, and not compile files that are
# older than the other checkout's build.
build=$cache/$(pwd | cksum | cut -d' ' -f1)
mkdir -p "$build"
touch "$build"

# Runs a command without the caller's settings for native code or another compiler.
clean() {
  env -u RUSTFLAGS -u CARGO_ENCODED_RUSTFLAGS -u CARGO_BUILD_RUSTFLAGS -u CARGO_BUILD_TARGET \
    -u CARGO_TARGET_WASM32_WASIP1_RUSTFLAGS \
    -u RUSTC -u RUSTC_WRAPPER -u RUSTC_WORKSPACE_WRAPPER -u CARGO_BUILD_RUSTC \
    -u CC -u CXX -u CFLAGS -u CXXFLAGS -u LDFLAGS -u AR -u LD "$@"
}

# Whether the compiler in PATH has a std for both targets.
path_compiler_works() {
  local libraries one
  for one in $target $component_target; do
    libraries=$(clean rustc --print target-libdir --target $one 2>/dev/null) || return 1
    compgen -G "$libraries/libstd-*.rlib" >/dev/null || return 1
  done
}

# Without a network rustup hangs. Hence the time limit, and at most one attempt a day.
rustup_adds_target() {
  command -v rustup >/dev/null || return 1
  local stamp=$cache/rustup-could-not-add-target
  [ -z "$(find "$stamp" -mmin -1440 2>/dev/null)" ] || return 1
  say "rustup target add $target $component_target (at most 60 s)"
  if timeout 60 rustup target add $target $component_target >&2 && path_compiler_works; then
    return 0
  fi
  touch "$stamp"
  say "rustup could not add the target; the next attempt is in a day (remove $stamp to retry now)"
  return 1
}

wasm_linker() { compgen -c wasm-ld | grep -Ex 'wasm-ld(-[0-9]+)?' | sort -Vru | head -n1; }

# Lists the missing parts of the Debian compiler.
debian_lacks() {
  local minor
  minor=$(/usr/bin/rustc --version 2>/dev/null | sed -En 's/^rustc 1\.([0-9]+).*/\1/p')
  [ "${minor:-0}" -ge 95 ] || echo "/usr/bin/rustc of version 1.95 or later"
  [ -x /usr/bin/cargo ] || echo "/usr/bin/cargo"
  [ -d /usr/lib/rustlib/src/rust/library/std ] || echo "the source of std"
  [ -f /usr/lib/wasm32-wasi/libc.a ] || echo "wasi-libc"
  # .cargo/config.toml uses this flag.
  "$(wasm_linker)" --help 2>/dev/null | grep -e --initial-heap >/dev/null || echo "wasm-ld of version 18 or later"
}

debian_compiler_works() {
  [ -n "$(debian_lacks)" ] || return 0
  # shellcheck disable=SC2086
  apt_install $debian_packages || return 1
  [ -z "$(debian_lacks)" ]
}

build_with_path_compiler() {
  clean CARGO_TARGET_DIR="$build/rustup" \
    cargo build --manifest-path plugins/Cargo.toml --workspace --release --target $target
}

build_with_debian_compiler() {
  clean CARGO_TARGET_DIR="$build/debian" RUSTC_BOOTSTRAP=1 RUSTC=/usr/bin/rustc \
    CARGO_TARGET_WASM32_WASIP1_RUSTFLAGS="-C linker=$(wasm_linker) -C link-self-contained=no -L native=/usr/lib/wasm32-wasi" \
    /usr/bin/cargo build --manifest-path plugins/Cargo.toml --workspace --release \
    --target $target -Zbuild-std=std,panic_abort -Zbuild-std-features=
}

# One build at a time: it may be another of this checkout, and all add targets and clean up here.
if command -v flock >/dev/null; then
  exec 9>"$cache/lock"
  flock 9
fi
# Checkouts that built nothing for a month may be gone.
find "$cache" -mindepth 1 -maxdepth 1 -type d -mtime +30 -exec rm -rf {} +

if path_compiler_works || rustup_adds_target; then
  build_with_path_compiler
  modules=$build/rustup/$target/release
elif debian_compiler_works; then
  build_with_debian_compiler
  modules=$build/debian/$target/release
else
  die "no compiler for $target. Install the targets with 'rustup target add $target $component_target', or on Debian" \
    "the packages $debian_packages (missing there: $(debian_lacks | paste -sd, | sed 's/,/, /g'))"
fi

# Every crate with the crate type cdylib is a component.
components=()
for manifest in plugins/*/Cargo.toml examples/*/Cargo.toml tests/plugins/*/Cargo.toml; do
  grep -q '"cdylib"' "$manifest" || continue
  name=$(sed -n 's/^name = "\(.*\)"$/\1/p' "$manifest" | head -n1)
  components+=("$name=$modules/${name//-/_}.wasm")
  if [ -f "${manifest%/*}/corral.toml" ]; then
    cp "${manifest%/*}/corral.toml" "$out/$name.toml"
    for file in $(sed -n 's/.*"\([a-z0-9-]*\.wasm\)".*/\1/p' "${manifest%/*}/corral.toml"); do
      # A checkout that cannot be written has only the copies.
      ln -sfn "$out/$file" "${manifest%/*}/$file" || say "cannot link $file into ${manifest%/*}"
    done
  fi
done
# Empty flags override .cargo/config.toml: the tool must run on any machine that uses the cache.
clean RUSTFLAGS= cargo run --quiet --release --manifest-path plugins/componentize/Cargo.toml \
  --target-dir "$build/native" -- "$out" "${components[@]}"
