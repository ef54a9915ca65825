#!/usr/bin/env bash
# Builds llama.cpp's CUDA backend for the GPUs of this machine or of others, for a `corral` that `make dist` has
# built, here or elsewhere. Without a network.
#
#   tests/gpu/cuda.sh GGML BUILD BACKENDS
#
# GGML      the folder ggml of the very llama.cpp that this corral was built with
# BUILD     where it is built, some 150 files: stopped and started again it goes on
# BACKENDS  the folder backends beside corral; it gets libggml-cuda.so
#
# CMAKE_CUDA_ARCHITECTURES in the environment names the kinds of GPU, as 90-real for those of capability 9.0. Then none
# has to be here; and where the backend runs, the system finds CUDA's libraries, or they lie beside corral.
#
# Needs the CUDA toolkit with cuBLAS, a C++ compiler, CMake 3.18 or later, and make or ninja.
set -euo pipefail

say() { echo "tests/gpu/cuda.sh: $*" >&2; }
die() { say "$*"; exit 1; }

[ $# -eq 3 ] || die "expected three folders: llama.cpp's ggml, where to build, and the backends beside corral"
[ -f "$1/src/ggml-cuda/CMakeLists.txt" ] || die "$1 is not the folder ggml of llama.cpp's sources"
ggml=$(cd "$1" && pwd)
mkdir -p "$2" "$3"
build=$(cd "$2" && pwd)
backends=$(cd "$3" && pwd)
cd "$(dirname "$0")"

nvcc=$(command -v nvcc || true)
for place in "${CUDA_PATH:-}"/bin/nvcc /usr/local/cuda/bin/nvcc /opt/cuda/bin/nvcc; do
  [ -n "$nvcc" ] || [ ! -x "$place" ] || nvcc=$place
done
[ -n "$nvcc" ] || die "nvcc is not there; install the CUDA toolkit, or say where it is in CUDA_PATH"
command -v cmake >/dev/null || die "cmake is not there; 3.18 or later is needed"
toolkit=$(dirname "$(dirname "$(readlink -f "$nvcc")")")

# Code of these GPUs alone: that is quicker to build than code for all there are.
architectures=${CMAKE_CUDA_ARCHITECTURES:-}
elsewhere=$architectures
if [ -z "$elsewhere" ]; then
  capabilities=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader) ||
    die "nvidia-smi does not say what GPUs there are; name their kinds in CMAKE_CUDA_ARCHITECTURES, such as 90-real"
  architectures=$(tr -d . <<<"$capabilities" | sort -u | sed 's/$/-real/' | paste -sd';')
fi

# A toolkit without cuBLAS is not rare; the library may have come with something else.
flags=()
folders=("$toolkit"/lib64 "$toolkit"/targets/*/lib)
if ! compgen -G "$toolkit/include/cublas_v2.h" >/dev/null && ! compgen -G "$toolkit/targets/*/include/cublas_v2.h" >/dev/null; then
  # Not the stand-ins that a toolkit has to link against.
  found() { find /usr /opt "$HOME" -name "$1" -not -path '*/stubs/*' -print -quit 2>/dev/null || true; }
  header=$(found cublas_v2.h)
  library=$(found 'libcublas.so*')
  [ -n "$header" ] && [ -n "$library" ] || die "cuBLAS is not there, neither in $toolkit nor elsewhere"
  say "takes cuBLAS from $library"
  # The other headers beside it may be of another version: the toolkit's come first.
  flags+=("-DCMAKE_CUDA_FLAGS=-isystem $(dirname "$header")" "-DCUDA_cublas_LIBRARY=$library")
  folders+=("$(dirname "$library")")
fi
# Against the driver only its stand-in is linked; where the toolkit has none, the driver itself, or it is done without.
if ! compgen -G "$toolkit/lib64/stubs/libcuda.so" >/dev/null &&
  ! compgen -G "$toolkit/targets/*/lib/stubs/libcuda.so" >/dev/null; then
  # Those who are not root may not have its folder among theirs.
  driver=$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null | sed -n 's/^.*libcuda\.so\.1 .*=> //p' | sed -n 1p) || true
  if [ -n "$driver" ]; then
    flags+=("-DCUDA_cuda_driver_LIBRARY=$driver")
  else
    say "there is no libcuda.so to link against: memory is taken from the GPU in another way (GGML_CUDA_NO_VMM)"
    flags+=(-DGGML_CUDA_NO_VMM=ON)
  fi
fi
# The libraries are found when the backend is loaded, also where the system was not told of them; and those, too, that
# they need themselves.
# shellcheck disable=SC2016
paths='$ORIGIN;$ORIGIN/..'
for folder in "${folders[@]}"; do
  [ -n "$elsewhere" ] || [ ! -d "$folder" ] || paths+=";$folder"
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

# A compiler takes up to 3 GiB.
jobs=$(nproc)
memory=$(awk '/^MemAvailable/ { print int($2 / 3145728) }' /proc/meminfo)
[ "${memory:-0}" -ge "$jobs" ] || jobs=$((memory > 1 ? memory : 1))
say "compiles for $architectures, $jobs files at a time"
cmake --build "$build" --target ggml-cuda --parallel "$jobs"

# It is linked against a libggml-base built beside it, and finds the one that corral has already loaded by its name.
cp -L "$build/bin/libggml-cuda.so" "$backends/libggml-cuda.so.new"
strip -S "$backends/libggml-cuda.so.new"
mv "$backends/libggml-cuda.so.new" "$backends/libggml-cuda.so"
say "$backends/libggml-cuda.so"
