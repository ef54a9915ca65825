#!/usr/bin/env bash
# Packs what a machine with an NVIDIA GPU needs to build the CUDA backend, to test Corral on it and to measure,
# where there is no network: see README.md.
#
#   tests/gpu/pack.sh ARCHIVE.tar.gz [--with-cmake]
#
# --with-cmake packs CMake too, for machines that have none.
set -euo pipefail

# Of the engine, and of the whole program: those whose sums show a wrong cell.
readonly tests="offload real_model looking sequences speculative constrained first_light loops"
# What can be carried to where the GPU is.
readonly most=$((60 << 20))

say() { echo "tests/gpu/pack.sh: $*" >&2; }
die() { say "$*"; exit 1; }

case $# in
  1) ;;
  2) [ "$2" = --with-cmake ] || die "expected --with-cmake, and not '$2'" ;;
  *) die "expected the archive to write, NAME.tar.gz, and perhaps --with-cmake" ;;
esac
mkdir -p "$(dirname "$1")"
archive=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
cd "$(dirname "$0")/../.."

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
pack=$stage/corral-gpu
mkdir "$pack"

make --no-print-directory dist DIR="$pack/dist" BACKENDS= TESTS="$tests"
strip "$pack/dist/corral" "$pack/dist/tests"/*
plugins/build.sh "$pack/plugins"
mkdir "$pack/model"
cp models/tiny/tiny.gguf models/tiny/plus-one.gguf "$pack/model/"
cp tests/gpu/{run.sh,cuda.sh,CMakeLists.txt,README.md} LICENSE "$pack/"
{
  git rev-parse HEAD 2>/dev/null || echo unknown
  sed -n '/^name = "llama-cpp-sys-2"/,/^$/s/^version = "\(.*\)"/llama-cpp-sys-2 \1/p' Cargo.lock
} >"$pack/version"

# The sources of the very llama.cpp that was built: what all backends share, and CUDA's.
crate=$(cargo metadata --format-version 1 |
  grep -o '"manifest_path":"[^"]*/llama-cpp-sys-2-[^"]*/Cargo.toml"' | head -n1 | cut -d'"' -f4)
ggml=$(dirname "$crate")/llama.cpp/ggml
[ -d "$ggml/src/ggml-cuda" ] || die "the sources of llama.cpp's CUDA backend are not in $ggml"
mkdir -p "$pack/ggml/src"
cp -R "$ggml"/{CMakeLists.txt,cmake,include} "$pack/ggml/"
find "$ggml/src" -maxdepth 1 -type f -exec cp {} "$pack/ggml/src/" \;
cp -R "$ggml/src/ggml-cuda" "$pack/ggml/src/"
cp "$ggml/../LICENSE" "$pack/ggml/"

if [ $# -eq 2 ]; then
  # In a Python package that is CMake itself, for any Linux of this kind of processor.
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
    --platform "manylinux2014_$(uname -m)" --platform "manylinux_2_17_$(uname -m)" -d "$stage/wheel" 'cmake==3.31.*'
  python3 -m zipfile -e "$stage/wheel"/cmake-*.whl "$stage/wheel/in"
  mkdir "$pack/cmake"
  mv "$stage/wheel/in/cmake/data"/{bin,share} "$pack/cmake/"
  rm -rf "$pack/cmake/bin"/{ctest,cpack,ccmake} "$pack/cmake/share"/{doc,man}
  chmod +x "$pack/cmake/bin/cmake"
fi

tar -C "$stage" -czf "$archive" corral-gpu
size=$(stat -c %s "$archive")
[ "$size" -le "$most" ] || die "$archive has $((size >> 20)) MiB; no more than $((most >> 20)) can be carried"
say "$archive: $((size >> 20)) MiB"
