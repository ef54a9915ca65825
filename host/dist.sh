#!/usr/bin/env bash
# Builds a `corral` for other machines: it runs on any processor of this architecture, and loads the backends that fit
# the machine from a directory when it starts.
#
#   host/dist.sh DIR [BACKENDS [TESTS]]
#
#   DIR/corral, corral.debug                           the program, and its debug information
#   DIR/lib{llama,mtmd,ggml,ggml-base}.so…             the binary finds them there
#   DIR/backends/libggml-cpu-*.so, libggml-vulkan.so…
#   DIR/tests/NAME                                     for each of TESTS
#
# BACKENDS is one argument with any of vulkan, cuda, rocm, metal; their compilers and libraries must be installed. TESTS
# is one argument with names of test binaries of the host workspace.
#
# llama.cpp's CMake gets all environment variables that start with CMAKE_ or GGML_. For cuda set
# CMAKE_CUDA_ARCHITECTURES: 90-real builds code for GPUs of capability 9.0 only, in about an hour on two cores; without
# it, code for seven capabilities takes several times as long. CUDACXX and CUDAToolkit_ROOT choose nvcc and the toolkit.
# The script copies nothing of CUDA: libcudart and libcublas must be installed on the target, in LD_LIBRARY_PATH, or
# beside corral. Without them or the driver, corral runs without that backend.
#
# Needs the environment that host/setup.sh prints. Builds in $CARGO_TARGET_DIR/dist-build, in one directory for each choice
# of backends and settings, apart from the native build.
set -euo pipefail

say() { echo "host/dist.sh: $*" >&2; }
die() { say "$*"; exit 1; }

[ $# -ge 1 ] && [ $# -le 3 ] && [ -n "$1" ] || die "expected DIR [BACKENDS [TESTS]]"
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
# The script replaces the files there: refuse a directory that it did not fill.
if [ -n "$(ls -A "$out")" ] && [ ! -f "$out/corral" ]; then
  die "$out holds other files; give an empty directory, or one that this script has filled"
fi

name=cpu
features=corral-cli/dynamic-backends
for backend in "${backends[@]}"; do
  name+=-$backend
  features+=,corral-cli/$backend
done
# CMake keeps the settings of its first run in a directory, so each choice gets its own.
settings=$(env | grep -E '^(CMAKE_|GGML_|CUDA)' | grep -v '^CMAKE_BUILD_PARALLEL_LEVEL=' | LC_ALL=C sort || true)
[ -z "$settings" ] || name+=-$(cksum <<<"$settings" | cut -d' ' -f1)
target=${CARGO_TARGET_DIR:-$PWD/target}/dist-build/$name
mkdir -p "$target"

# The build of llama-cpp-sys-2 links libraries into these directories and fails if one exists. Nothing uses them there.
for folder in "$target/release" "$target/release/deps" "$target/release/examples"; do
  rm -f "$folder"/lib{llama,mtmd,ggml*}.{so,dylib}
done

# Where a library finds the others: beside it, and in the parent directory for backends.
if [ "$(uname -s)" = Darwin ]; then
  rpath='@loader_path;@loader_path/..'
else
  # shellcheck disable=SC2016
  rpath='$ORIGIN:$ORIGIN/..'
fi

# lld folds identical functions.
link_argument=-Wl,--icf=all
rustc --crate-name probe -C link-arg="$link_argument" -o "$target/probe" - <<<'fn main() {}' 2>/dev/null || link_argument=

# Empty flags override .cargo/config.toml, which requests code for this processor only. One command builds the binary and
# the tests, because with other targets cargo may choose other features and build llama.cpp twice. As one unit, the
# largest crates contain fewer copies of generic functions.
messages=$target/messages
env -u CARGO_ENCODED_RUSTFLAGS RUSTFLAGS='' CMAKE_INSTALL_RPATH="$rpath" CARGO_TARGET_DIR="$target" \
  CORRAL_LINK_ARGUMENT="$link_argument" \
  cargo build --release --workspace --features "$features" --bin corral --bin corral-bench "${tests[@]/#/--test=}" \
  --config profile.release.package.corral-cli.codegen-units=1 \
  --config profile.release.package.corral-server.codegen-units=1 \
  --message-format=json-render-diagnostics >"$messages"

# cargo prints the directory of llama.cpp's build, also if it is up to date.
built=$(sed -n 's/^.*"package_id":"[^"]*llama-cpp-sys-2@[^"]*".*"out_dir":"\([^"]*\)".*$/\1/p' "$messages" | tail -n1)
[ -d "$built/backends" ] || die "cargo did not print the directory of llama.cpp's build ('$built')"

shopt -s nullglob
rm -f "$out"/corral{,-bench}{,.debug} "$out"/lib{llama,mtmd,ggml}* "$out/backends"/libggml-*
mkdir -p "$out/backends"
cp "$target/release/corral" "$out/"
for folder in "$built/lib" "$built/lib64"; do
  libraries=("$folder"/lib*.so* "$folder"/lib*.dylib)
  # Each library has several names; the loader uses the one with the version.
  [ ${#libraries[@]} -eq 0 ] || cp -P "${libraries[@]}" "$out/"
done
# The process finds and loads backends by names that end in .so.
for backend in "$built/backends"/libggml-*.so; do
  cp -L "$backend" "$out/backends/"
done
if [ ${#tests[@]} -gt 0 ]; then
  cp "$target/release/corral-bench" "$out/"
  mkdir -p "$out/tests"
  for test in "${tests[@]}"; do
    made=$(sed -n 's/^.*"kind":\["test"\].*"name":"'"$test"'".*"executable":"\([^"]*\)".*$/\1/p' "$messages" | tail -n1)
    [ -f "$made" ] || die "cargo built no test '$test'"
    cp "$made" "$out/tests/$test"
  done
fi
# Debug information and symbols are nine tenths of the size. Where objcopy exists they go to FILE.debug, which backtraces
# and debuggers read if it lies beside FILE; elsewhere function names stay.
split_symbols() {
  if command -v objcopy >/dev/null; then
    objcopy --only-keep-debug "$1" "$1.debug"
    chmod -x "$1.debug"
    strip --strip-unneeded "$1"
    objcopy --add-gnu-debuglink="$1.debug" "$1"
  else
    strip -S "$1"
  fi
}
for file in "$out"/corral "$out"/lib{llama,mtmd,ggml}* "$out/backends"/libggml-*; do
  [ -L "$file" ] || split_symbols "$file"
done
for file in "$out"/corral-bench "${tests[@]/#/$out/tests/}"; do
  [ ! -e "$file" ] || strip -S "$file"
done

# Fails if the binary does not find its libraries.
env -u LD_LIBRARY_PATH -u DYLD_LIBRARY_PATH "$out/corral" --version >&2
for backend in cpu "${backends[@]}"; do
  # ROCm's library is named hip.
  compgen -G "$out/backends/libggml-${backend/rocm/hip}*.so" >/dev/null || die "the backend $backend was not built"
done
say "$out: corral and $(find "$out/backends" -name '*.so' | wc -l) backends"
