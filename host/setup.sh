#!/usr/bin/env bash
# Finds what the host's build needs besides Rust, or installs it if apt-get can: clang 15 or later with libclang, and
# cmake. Prints the build environment as `export` lines; all other output goes to stderr. Fast if all is installed.
#
# clang and not gcc: the gcc of Debian 12 miscompiles llama.cpp's AMX code, which then crashes at the first batch on
# processors with AMX.
set -euo pipefail

readonly packages="clang-19 libclang-19-dev cmake g++"
readonly fallback="clang libclang-dev cmake g++"

say() { echo "host/setup.sh: $*" >&2; }
# shellcheck source=apt.sh
source "$(dirname "$0")/apt.sh"

# The suffix of the newest clang from 15 on ("-19", or "" for a plain `clang`).
clang_suffix() {
  local version
  for version in 22 21 20 19 18 17 16 15; do
    if command -v "clang++-$version" >/dev/null && [ -n "$(libclang_folder "clang-$version")" ]; then
      echo "-$version"
      return 0
    fi
  done
  command -v clang++ >/dev/null || return 1
  version=$(clang --version | sed -En 's/.*clang version ([0-9]+).*/\1/p' | head -n1)
  [ "${version:-0}" -ge 15 ] && [ -n "$(libclang_folder clang)" ]
}

# The directory of a clang's libclang, which bindgen loads.
libclang_folder() {
  local folder
  folder=$("$1" -print-resource-dir 2>/dev/null) || return 0
  for folder in "$folder/../.." "$folder/../../../lib"; do
    if compgen -G "$folder/libclang*.so*" >/dev/null || compgen -G "$folder/libclang.dylib" >/dev/null; then
      (cd "$folder" && pwd)
      return 0
    fi
  done
}

complete() { clang_suffix >/dev/null && command -v cmake >/dev/null; }

# shellcheck disable=SC2086
install() { apt_install $packages || apt_install $fallback; }

# Adds a component that rustup's minimal profile lacks.
rust_component() {
  "cargo-$1" --version >/dev/null 2>&1 && return 0
  command -v rustup >/dev/null && timeout 120 rustup component add "$2" >&2 && return 0
  say "cargo $1 is missing; install it with 'rustup component add $2'"
  exit 1
}

if ! command -v cargo >/dev/null; then
  say "cargo is missing; install Rust 1.95 or later, for example with rustup"
  exit 1
fi
rust_component fmt rustfmt
rust_component clippy clippy

if ! complete && { ! install || ! complete; }; then
  say "clang (15 or later) with libclang, and cmake are needed; on Debian: apt-get install $packages"
  exit 1
fi

suffix=$(clang_suffix)
echo "export CC=clang$suffix CXX=clang++$suffix"
echo "export LIBCLANG_PATH='$(libclang_folder "clang$suffix")'"
