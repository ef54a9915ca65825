#!/usr/bin/env bash
# Builds a `corral` to take elsewhere: for any processor of this kind of machine, with a folder of backends, of
# which the program picks when it starts what the machine has.
#
#   host/dist.sh FOLDER [BACKENDS [TESTS]]
#
#   FOLDER/corral
#   FOLDER/libllama.so…, libggml.so…, libggml-base.so…    found there by the binary
#   FOLDER/backends/libggml-cpu-*.so, libggml-vulkan.so…
#   FOLDER/tests/NAME, FOLDER/corral-bench                for each of TESTS, if there are any
#
# BACKENDS, in one argument: vulkan, cuda, rocm, metal; their compilers and libraries have to be here. TESTS, too:
# names of test binaries of the host workspace.
#
# What begins with CMAKE_ or GGML_ in the environment is told to llama.cpp's CMake. For cuda that is
# CMAKE_CUDA_ARCHITECTURES: with 90-real, code for one kind of GPU (of capability 9.0), for which two processors need
# about an hour; without, for seven kinds, in several times that. CUDACXX and CUDAToolkit_ROOT say which nvcc and
# which toolkit to take, if not those in the PATH. Nothing of CUDA's is copied: where Corral runs, libcudart and
# libcublas are the system's, in LD_LIBRARY_PATH, or put beside corral. Where they or the driver are missing, it runs
# without that backend.
#
# Expects the environment that host/setup.sh prints. Builds in $CARGO_TARGET_DIR/dist-build, in a folder for each
# choice of backends and of such settings: what is built for this processor alone is not touched.
set -euo pipefail

say() { echo "host/dist.sh: $*" >&2; }
die() { say "$*"; exit 1; }

[ $# -ge 1 ] && [ $# -le 3 ] && [ -n "$1" ] || die "expected a folder, and perhaps backends and tests"
read -ra backends <<<"${2:-}"
read -ra tests <<<"${3:-}"
for backend in "${backends[@]}"; do
  case $backend in
    vulkan | cuda | rocm | metal) ;;
    *) die "there is no backend '$backend'; expected some of vulkan, cuda, rocm, metal" ;;
  esac
done

mkdir -p "$1"
out=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
# What lies there is replaced: be sure that it is ours.
if [ -n "$(ls -A "$out")" ] && [ ! -f "$out/corral" ]; then
  die "$out holds something else; give an empty folder, or one that this script has filled"
fi

name=cpu
features=corral-cli/dynamic-backends
for backend in "${backends[@]}"; do
  name+=-$backend
  features+=,corral-cli/$backend
done
# llama.cpp is configured once in a folder, and goes by what was said then.
settings=$(env | grep -E '^(CMAKE_|GGML_|CUDA)' | grep -v '^CMAKE_BUILD_PARALLEL_LEVEL=' | LC_ALL=C sort || true)
[ -z "$settings" ] || name+=-$(cksum <<<"$settings" | cut -d' ' -f1)
target=${CARGO_TARGET_DIR:-$PWD/target}/dist-build/$name
mkdir -p "$target"

# The build of llama-cpp-sys-2 links libraries into these folders and does not replace those of an earlier one:
# it stops at them. Nothing uses them there.
for folder in "$target/release" "$target/release/deps" "$target/release/examples"; do
  rm -f "$folder"/libllama.{so,dylib} "$folder"/libggml*.{so,dylib}
done

# Where a library finds the others: beside itself, and, if it is a backend, in the folder above.
if [ "$(uname -s)" = Darwin ]; then
  rpath='@loader_path;@loader_path/..'
else
  # shellcheck disable=SC2016
  rpath='$ORIGIN:$ORIGIN/..'
fi

# Empty flags win over those of .cargo/config.toml, which ask for code of this very processor. One command for the
# binary and the tests, since with other targets cargo may choose other features, and build llama.cpp twice.
messages=$target/messages
env -u CARGO_ENCODED_RUSTFLAGS RUSTFLAGS='' CMAKE_INSTALL_RPATH="$rpath" CARGO_TARGET_DIR="$target" \
  cargo build --release --workspace --features "$features" --bin corral --bin corral-bench "${tests[@]/#/--test=}" \
  --message-format=json-render-diagnostics >"$messages"

# cargo says where the build of llama.cpp has put its files, also when it was made earlier.
built=$(sed -n 's/^.*"package_id":"[^"]*llama-cpp-sys-2@[^"]*".*"out_dir":"\([^"]*\)".*$/\1/p' "$messages" | tail -n1)
[ -d "$built/backends" ] || die "cargo did not say where llama.cpp's backends are ('$built')"

shopt -s nullglob
rm -f "$out/corral" "$out"/libllama.* "$out"/libggml* "$out/backends"/libggml-*
mkdir -p "$out/backends"
cp "$target/release/corral" "$out/"
for folder in "$built/lib" "$built/lib64"; do
  libraries=("$folder"/lib*.so* "$folder"/lib*.dylib)
  # Several names for each: the loader asks for the one with the version.
  [ ${#libraries[@]} -eq 0 ] || cp -P "${libraries[@]}" "$out/"
done
# They are looked for by names that end in .so, and loaded by those.
for backend in "$built/backends"/libggml-*.so; do
  cp -L "$backend" "$out/backends/"
done
rm -f "$out/corral-bench"
if [ ${#tests[@]} -gt 0 ]; then
  cp "$target/release/corral-bench" "$out/"
  mkdir -p "$out/tests"
  for test in "${tests[@]}"; do
    made=$(sed -n 's/^.*"kind":\["test"\].*"name":"'"$test"'".*"executable":"\([^"]*\)".*$/\1/p' "$messages" | tail -n1)
    [ -f "$made" ] || die "cargo built no test '$test'"
    cp "$made" "$out/tests/$test"
  done
fi
# Without what only debuggers read: a tenth of the size. Names of functions stay, for backtraces.
for file in "$out"/corral{,-bench} "$out"/libllama.* "$out"/libggml* "$out/backends"/libggml-* "${tests[@]/#/$out/tests/}"; do
  [ -L "$file" ] || [ ! -e "$file" ] || strip -S "$file"
done

# It finds its libraries, or this fails.
env -u LD_LIBRARY_PATH -u DYLD_LIBRARY_PATH "$out/corral" --version >&2
for backend in cpu "${backends[@]}"; do
  # The library of ROCm is named after its interface.
  compgen -G "$out/backends/libggml-${backend/rocm/hip}*.so" >/dev/null || die "the backend $backend was not built"
done
say "$out: corral and $(find "$out/backends" -type f | wc -l) backends"
