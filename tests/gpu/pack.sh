#!/usr/bin/env bash
# Packs what a machine with an NVIDIA GPU needs to build the CUDA backend, to test Corral on it and to measure,
# where there is no network: see README.md.
#
#   tests/gpu/pack.sh ARCHIVE.tar.gz [--with-cmake | --with-cuda KINDS]
#
# --with-cmake  packs CMake too, for machines that have none
# --with-cuda   builds the CUDA backend here, where no GPU has to be but nvcc, for KINDS of GPU such as 90-real; it is
#               written to ARCHIVE-cuda.tar.gz, which is unpacked over the other one
set -euo pipefail

# Of the engine, and of the whole program: those whose sums show a wrong cell.
readonly tests="offload real_model looking sequences speculative constrained generate loops"
# What can be carried to where the GPU is.
readonly most=$((60 << 20))

say() { echo "tests/gpu/pack.sh: $*" >&2; }
die() { say "$*"; exit 1; }

readonly usage="expected the archive to write, NAME.tar.gz, and perhaps --with-cmake, or --with-cuda KINDS"
cmake='' kinds=''
case $#:${2:-}:${3:+kinds} in
  1::) ;;
  2:--with-cmake:) cmake=yes ;;
  3:--with-cuda:kinds) kinds=$3 ;;
  *) die "$usage" ;;
esac
[[ $1 = *.tar.gz ]] || die "$usage"
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

if [ -n "$cmake" ]; then
  # In a Python package that is CMake itself, for any Linux of this kind of processor.
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
    --platform "manylinux2014_$(uname -m)" --platform "manylinux_2_17_$(uname -m)" -d "$stage/wheel" 'cmake==3.31.*'
  python3 -m zipfile -e "$stage/wheel"/cmake-*.whl "$stage/wheel/in"
  mkdir "$pack/cmake"
  mv "$stage/wheel/in/cmake/data"/{bin,share} "$pack/cmake/"
  rm -rf "$pack/cmake/bin"/{ctest,cpack,ccmake} "$pack/cmake/share"/{doc,man}
  chmod +x "$pack/cmake/bin/cmake"
fi

# write ARCHIVE WHAT…: of what lies in the stage.
write() {
  local size
  tar -C "$stage" -czf "$@"
  size=$(stat -c %s "$1")
  [ "$size" -le "$most" ] || die "$1 has $((size >> 20)) MiB; no more than $((most >> 20)) can be carried"
  say "$1: $((size >> 20)) MiB"
}

write "$archive" corral-gpu
if [ -n "$kinds" ]; then
  # In a folder that is kept: stopped and started again it goes on.
  build=${CORRAL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/corral}/$(basename "$(dirname "$crate")")-cuda-${kinds//;/-}
  CMAKE_CUDA_ARCHITECTURES=$kinds tests/gpu/cuda.sh "$ggml" "$build" "$pack/dist/backends"
  write "${archive%.tar.gz}-cuda.tar.gz" corral-gpu/dist/backends/libggml-cuda.so
fi
