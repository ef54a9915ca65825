#!/usr/bin/env bash
# Builds llama.cpp's CUDA backend, for a `corral` of `make dist`. Needs no network.
#
#   tests/gpu/cuda.sh GGML BUILD BACKENDS
#
# GGML      the directory ggml of the same llama.cpp version
# BUILD     the build directory, some 150 files; a second run continues there
# BACKENDS  the directory backends beside corral; it gets libggml-cuda.so
#
# By default the backend is for the GPUs of this machine. CMAKE_CUDA_ARCHITECTURES in the environment names others, e.g.
# 90-real for capability 9.0; then the machine that runs it must find CUDA's libraries on the system or beside corral.
#
# Needs the CUDA toolkit with cuBLAS, a C++ compiler, CMake 3.18 or later, and make or ninja.
set -euo pipefail

say() { echo "tests/gpu/cuda.sh: $*" >&2; }
die() { say "$*"; exit 1; }

[ $# -eq 3 ] || die "expected GGML BUILD BACKENDS"
[ -f "$1/src/ggml-cuda/CMakeLists.txt" ] || die "$1 is not the directory ggml of llama.cpp's sources"
ggml=$(cd "$1" && pwd)
mkdir -p "$2" "$3"
build=$(cd "$2" && pwd)
backends=$(cd "$3" && pwd)
cd "$(dirname "$0")"

nvcc=$(command -v nvcc || true)
for path in "${CUDA_PATH:-}"/bin/nvcc /usr/local/cuda/bin/nvcc /opt/cuda/bin/nvcc; do
  [ -n "$nvcc" ] || [ ! -x "$path" ] || nvcc=$path
done
[ -n "$nvcc" ] || die "nvcc is missing; install the CUDA toolkit, or set CUDA_PATH to its directory"
command -v cmake >/dev/null || die "cmake is missing; install 3.18 or later"
toolkit=$(dirname "$(dirname "$(readlink -f "$nvcc")")")

# Code for these GPUs only, which builds faster.
architectures=${CMAKE_CUDA_ARCHITECTURES:-}
other_machine=$architectures
if [ -z "$other_machine" ]; then
  capabilities=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader) ||
    die "nvidia-smi lists no GPU; set CMAKE_CUDA_ARCHITECTURES, e.g. to 90-real"
  architectures=$(tr -d . <<<"$capabilities" | sort -u | sed 's/$/-real/' | paste -sd';')
fi

# Some toolkits lack cuBLAS; another package may have installed it.
flags=()
folders=("$toolkit"/lib64 "$toolkit"/targets/*/lib)
if ! compgen -G "$toolkit/include/cublas_v2.h" >/dev/null && ! compgen -G "$toolkit/targets/*/include/cublas_v2.h" >/dev/null; then
  # Skip the stubs that a toolkit has for linking.
  found() { find /usr /opt "$HOME" -name "$1" -not -path '*/stubs/*' -print -quit 2>/dev/null || true; }
  header=$(found cublas_v2.h)
  library=$(found 'libcublas.so*')
  [ -n "$header" ] && [ -n "$library" ] || die "cuBLAS is missing in $toolkit and elsewhere; install it"
  say "using cuBLAS from $library"
  # Other headers in that directory may have another version, so the toolkit's come first.
  flags+=("-DCMAKE_CUDA_FLAGS=-isystem $(dirname "$header")" "-DCUDA_cublas_LIBRARY=$library")
  folders+=("$(dirname "$library")")
fi
# Link the driver's stub; without one, link the driver itself, or build without it.
if ! compgen -G "$toolkit/lib64/stubs/libcuda.so" >/dev/null &&
  ! compgen -G "$toolkit/targets/*/lib/stubs/libcuda.so" >/dev/null; then
  # ldconfig may not be in the PATH of a normal user.
  driver=$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null | sed -n 's/^.*libcuda\.so\.1 .*=> //p' | sed -n 1p) || true
  if [ -n "$driver" ]; then
    flags+=("-DCUDA_cuda_driver_LIBRARY=$driver")
  else
    say "libcuda.so is missing; building without virtual memory management (GGML_CUDA_NO_VMM)"
    flags+=(-DGGML_CUDA_NO_VMM=ON)
  fi
fi
# The backend finds the libraries and their dependencies through its rpath, also if the system does not know them.
# shellcheck disable=SC2016
paths='$ORIGIN;$ORIGIN/..'
for folder in "${folders[@]}"; do
  [ -n "$other_machine" ] || [ ! -d "$folder" ] || paths+=";$folder"
done

if [ ! -f "$build/configured" ]; then
  generator=()
  ! command -v ninja >/dev/null || generator=(-G Ninja)
  cmake -S . -B "$build" "${generator[@]}" -DGGML_SOURCE="$ggml" -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_CUDA_COMPILER="$nvcc" -DCMAKE_CUDA_ARCHITECTURES="$architectures" \
    -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON -DCMAKE_INSTALL_RPATH="$paths" \
    -DCMAKE_MODULE_LINKER_FLAGS=-Wl,--disable-new-dtags "${flags[@]}" \
    -DBUILD_SHARED_LIBS=ON -DGGML_BACKEND_DL=ON -DGGML_CPU=OFF -DGGML_NATIVE=OFF -DGGML_OPENMP=OFF \
    -DGGML_CCACHE=OFF -DGGML_CUDA=ON -DGGML_CUDA_GRAPHS=ON -DGGML_CUDA_NCCL=OFF \
    -DGGML_CUDA_FA_QUANTS='f16-f16;q8_0-q8_0'
  touch "$build/configured"
fi

# A compiler process needs up to 3 GiB.
jobs=$(nproc)
memory=$(awk '/^MemAvailable/ { print int($2 / 3145728) }' /proc/meminfo)
[ "${memory:-0}" -ge "$jobs" ] || jobs=$((memory > 1 ? memory : 1))
say "compiling for $architectures, $jobs files at a time"
cmake --build "$build" --target ggml-cuda --parallel "$jobs"

# It is linked against its own libggml-base; at run time it uses the one of the same name that corral has loaded.
cp -L "$build/bin/libggml-cuda.so" "$backends/libggml-cuda.so.new"
strip -S "$backends/libggml-cuda.so.new"
mv "$backends/libggml-cuda.so.new" "$backends/libggml-cuda.so"
say "$backends/libggml-cuda.so"
