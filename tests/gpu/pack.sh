#!/usr/bin/env bash
# Packs all that a machine with an NVIDIA GPU and no network needs to build the CUDA backend, to test Corral and to
# benchmark it: see README.md.
#
#   tests/gpu/pack.sh ARCHIVE.tar.gz [--with-cmake | --with-cuda CAPABILITIES]
#
# --with-cmake  packs CMake too, for machines without it
# --with-cuda   builds the CUDA backend here, with nvcc but without a GPU, for CAPABILITIES such as 90-real, into
#               ARCHIVE-cuda.tar.gz, which is unpacked over the first archive
set -euo pipefail

# Tests of the engine and of the whole program whose sums reveal a wrong cell. Of `generation`, run.sh runs two files.
readonly tests="device_placement real_model next_token sequences speculative constrained generation"
# Largest archive in bytes.
readonly max_bytes=$((60 << 20))

say() { echo "tests/gpu/pack.sh: $*" >&2; }
die() { say "$*"; exit 1; }

readonly usage="expected NAME.tar.gz [--with-cmake | --with-cuda CAPABILITIES]"
cmake='' capabilities=''
case $#:${2:-}:${3:+capabilities} in
  1::) ;;
  2:--with-cmake:) cmake=yes ;;
  3:--with-cuda:capabilities) capabilities=$3 ;;
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

make --no-print-directory dist-program DIR="$pack/dist" BACKENDS= TESTS="$tests"
rm -f "$pack/dist"/*.debug "$pack/dist/backends"/*.debug
strip "$pack/dist/corral" "$pack/dist/tests"/*
plugins/build.sh "$pack/plugins"
mkdir "$pack/model"
cp models/tiny/tiny.gguf models/tiny/plus-one.gguf models/tiny/draft.gguf "$pack/model/"
cp tests/gpu/{run.sh,cuda.sh,CMakeLists.txt,README.md} LICENSE "$pack/"
{
  git rev-parse HEAD 2>/dev/null || echo unknown
  sed -n '/^name = "llama-cpp-sys-2"/,/^$/s/^version = "\(.*\)"/llama-cpp-sys-2 \1/p' Cargo.lock
} >"$pack/version"

# The sources of the same llama.cpp version: ggml's common files and the CUDA backend.
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
  # A Python package contains CMake for any Linux of this architecture.
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
    --platform "manylinux2014_$(uname -m)" --platform "manylinux_2_17_$(uname -m)" -d "$stage/wheel" 'cmake==3.31.*'
  python3 -m zipfile -e "$stage/wheel"/cmake-*.whl "$stage/wheel/in"
  mkdir "$pack/cmake"
  mv "$stage/wheel/in/cmake/data"/{bin,share} "$pack/cmake/"
  rm -rf "$pack/cmake/bin"/{ctest,cpack,ccmake} "$pack/cmake/share"/{doc,man}
  chmod +x "$pack/cmake/bin/cmake"
fi

# write ARCHIVE FILES…: archives files of the stage.
write() {
  local size
  tar -C "$stage" -czf "$@"
  size=$(stat -c %s "$1")
  [ "$size" -le "$max_bytes" ] || die "$1 has $((size >> 20)) MiB; the limit is $((max_bytes >> 20))"
  say "$1: $((size >> 20)) MiB"
}

write "$archive" corral-gpu
if [ -n "$capabilities" ]; then
  # In a persistent directory, so that an interrupted build continues.
  build=${CORRAL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/corral}/$(basename "$(dirname "$crate")")-cuda-${capabilities//;/-}
  CMAKE_CUDA_ARCHITECTURES=$capabilities tests/gpu/cuda.sh "$ggml" "$build" "$pack/dist/backends"
  write "${archive%.tar.gz}-cuda.tar.gz" corral-gpu/dist/backends/libggml-cuda.so
fi
