#!/usr/bin/env bash
# Builds every first-party plugin, example and test plugin to a component in one folder.
#
#   plugins/build.sh OUT_DIR
#
# The crates are compiled to core modules for wasm32-wasip1 and made components by
# plugins/componentize; who has a corral.toml gets it beside the component, as NAME.toml. Two compilers can do the first part:
#   - the one in PATH, if it has the target or rustup can add it;
#   - otherwise Debian's, which has no wasm std but its source (-Zbuild-std).
# Each has a target directory of its own in $CORRAL_CACHE/build ($CORRAL_CACHE is ~/.cache/corral
# unless it is set), and neither sees the flags that are meant for native code.
set -euo pipefail

readonly target=wasm32-wasip1
readonly debian_packages="rustc-web cargo-web rust-web-src wasi-libc lld-19"

say() { echo "plugins/build.sh: $*" >&2; }
die() { say "$*"; exit 1; }

[ $# -eq 1 ] || die "expected one argument, the folder for the components"
mkdir -p "$1"
out=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
# shellcheck source=../host/apt.sh
source host/apt.sh
# Not the folder in which the host keeps compiled plugins: wasmtime clears that of what it does not
# know.
cache=${CORRAL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/corral}/build
mkdir -p "$cache"

# What the caller set for native code, or for another compiler, ends here.
clean() {
  env -u RUSTFLAGS -u CARGO_ENCODED_RUSTFLAGS -u CARGO_BUILD_RUSTFLAGS -u CARGO_BUILD_TARGET \
    -u CARGO_TARGET_WASM32_WASIP1_RUSTFLAGS \
    -u RUSTC -u RUSTC_WRAPPER -u RUSTC_WORKSPACE_WRAPPER -u CARGO_BUILD_RUSTC \
    -u CC -u CXX -u CFLAGS -u CXXFLAGS -u LDFLAGS -u AR -u LD "$@"
}

# Whether the compiler in PATH has a std for the target, from rustup or from anyone else.
path_compiler_works() {
  local libraries
  libraries=$(clean rustc --print target-libdir --target $target 2>/dev/null) || return 1
  compgen -G "$libraries/libstd-*.rlib" >/dev/null
}

# Without a network rustup hangs rather than fails: a time limit, paid once a day at most.
rustup_adds_target() {
  command -v rustup >/dev/null || return 1
  local stamp=$cache/rustup-could-not-add-target
  [ -z "$(find "$stamp" -mmin -1440 2>/dev/null)" ] || return 1
  say "rustup target add $target (at most 60 s)"
  if timeout 60 rustup target add $target >&2 && path_compiler_works; then
    return 0
  fi
  touch "$stamp"
  say "rustup could not add it, which is not tried again for a day (or until you remove $stamp)"
  return 1
}

wasm_linker() { compgen -c wasm-ld | grep -Ex 'wasm-ld(-[0-9]+)?' | sort -Vru | head -n1; }

# Names what the Debian compiler lacks, or nothing.
debian_lacks() {
  local minor
  minor=$(/usr/bin/rustc --version 2>/dev/null | sed -En 's/^rustc 1\.([0-9]+).*/\1/p')
  [ "${minor:-0}" -ge 95 ] || echo "/usr/bin/rustc of version 1.95 or later"
  [ -x /usr/bin/cargo ] || echo "/usr/bin/cargo"
  [ -d /usr/lib/rustlib/src/rust/library/std ] || echo "the source of std"
  [ -f /usr/lib/wasm32-wasi/libc.a ] || echo "wasi-libc"
  # The flags of .cargo/config.toml need one that knows them; those of the compiler's own are added to them.
  "$(wasm_linker)" --help 2>/dev/null | grep -e --initial-heap >/dev/null || echo "wasm-ld of version 18 or later"
}

debian_compiler_works() {
  [ -n "$(debian_lacks)" ] || return 0
  # shellcheck disable=SC2086
  apt_install $debian_packages || return 1
  [ -z "$(debian_lacks)" ]
}

build_with_path_compiler() {
  clean CARGO_TARGET_DIR="$cache/rustup" \
    cargo build --manifest-path plugins/Cargo.toml --workspace --release --target $target
}

build_with_debian_compiler() {
  clean CARGO_TARGET_DIR="$cache/debian" RUSTC_BOOTSTRAP=1 RUSTC=/usr/bin/rustc \
    CARGO_TARGET_WASM32_WASIP1_RUSTFLAGS="-C linker=$(wasm_linker) -C link-self-contained=no -L native=/usr/lib/wasm32-wasi" \
    /usr/bin/cargo build --manifest-path plugins/Cargo.toml --workspace --release \
    --target $target -Zbuild-std=std,panic_abort -Zbuild-std-features=
}

# One build at a time in one cache: other checkouts may share it.
if command -v flock >/dev/null; then
  exec 9>"$cache/lock"
  flock 9
fi

if path_compiler_works || rustup_adds_target; then
  build_with_path_compiler
  modules=$cache/rustup/$target/release
elif debian_compiler_works; then
  build_with_debian_compiler
  modules=$cache/debian/$target/release
else
  die "no compiler for $target. Install the target with 'rustup target add $target', or on Debian" \
    "the packages $debian_packages (missing there: $(debian_lacks | paste -sd, | sed 's/,/, /g'))"
fi

# Every crate of the workspace that is a component: it says so by its crate type.
components=()
for manifest in plugins/*/Cargo.toml examples/*/Cargo.toml tests/plugins/*/Cargo.toml; do
  grep -q '"cdylib"' "$manifest" || continue
  name=$(sed -n 's/^name = "\(.*\)"$/\1/p' "$manifest" | head -n1)
  components+=("$name=$modules/${name//-/_}.wasm")
  if [ -f "${manifest%/*}/corral.toml" ]; then
    cp "${manifest%/*}/corral.toml" "$out/$name.toml"
  fi
done
# Empty flags win over those of .cargo/config.toml: the tool must run on whatever machine the cache
# is next found on.
clean RUSTFLAGS= cargo run --quiet --release --manifest-path plugins/componentize/Cargo.toml \
  --target-dir "$cache/native" -- "$out" "${components[@]}"
