#!/usr/bin/env bash
# Finds, or installs where apt-get can, a Vulkan device that every machine has and what llama.cpp's Vulkan backend is
# built with: Mesa's lavapipe, which computes on the processor, the loader with its headers, SPIR-V's headers, and
# glslc. Prints the environment of tests on that device as `export` lines, or with the word `build` that of building
# alone; everything else goes to stderr. Quick when all is there.
set -euo pipefail

readonly packages="mesa-vulkan-drivers libvulkan-dev spirv-headers glslc"

say() { echo "host/vulkan.sh: $*" >&2; }
# shellcheck source=apt.sh
source "$(dirname "$0")/apt.sh"

# The first of some files that is there.
first() {
  local file
  for file in "$@"; do
    if [ -f "$file" ]; then
      echo "$file"
      return 0
    fi
  done
  return 1
}

# The file that tells the loader of lavapipe, in the folders that it reads: that of this kind of processor, where
# there are several.
lavapipe() {
  local name
  for name in "lvp_icd.$(uname -m).json" 'lvp_icd*.json'; do
    # shellcheck disable=SC2086
    first {/usr/share,/usr/local/share,/etc}/vulkan/icd.d/$name && return
  done
  return 1
}

# Names what is missing, or nothing.
lacks() {
  local root=${VULKAN_SDK:-/usr}
  lavapipe >/dev/null || echo "lavapipe (lvp_icd.*.json)"
  first {"$root",/usr,/usr/local}/include/vulkan/vulkan.hpp >/dev/null || echo "vulkan/vulkan.hpp"
  first {"$root",/usr,/usr/local}/{share,lib,lib/*}/cmake/SPIRV-Headers/SPIRV-HeadersConfig.cmake >/dev/null ||
    echo "SPIRV-HeadersConfig.cmake"
  command -v glslc >/dev/null || echo "glslc"
}

# shellcheck disable=SC2086
[ -z "$(lacks)" ] || apt_install $packages || true
missing=$(lacks)
if [ -n "$missing" ]; then
  say "missing: $(paste -sd, <<<"$missing" | sed 's/,/, /g'). On Debian: apt-get install $packages." \
    "To leave the tests on a Vulkan device out: make test DEVICE_TESTS="
  exit 1
fi

# A header that Debian 12's is too old for stands before it. At a place that is the same for every clone: where it
# changes, what is written in C++ is built anew.
cache=${CORRAL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/corral}
mkdir -p "$cache/include/vulkan"
header=$(dirname "$0")/include/vulkan/vulkan.hpp
cmp -s "$header" "$cache/include/vulkan/vulkan.hpp" || cp "$header" "$cache/include/vulkan/vulkan.hpp"
echo "export CPLUS_INCLUDE_PATH='$cache/include'"
[ "${1:-}" != build ] || exit 0

# The loader is told of lavapipe alone, and by both names that loaders know this by. Otherwise device 0 would be a
# GPU where there is one: the tests would run on another device on each machine, and take it from whoever works on it.
driver=$(lavapipe)
echo "export VK_DRIVER_FILES='$driver' VK_ICD_FILENAMES='$driver'"
# llama.cpp leaves out devices that are no GPUs, unless they are asked for by their number.
echo "export GGML_VK_VISIBLE_DEVICES=0"
# lavapipe of Mesa 22.3 goes on using buffers that were freed (it is well when what it frees is kept). With the kernels
# that do several operations at once, the process then ends where a few rows generate beside prompts that are read, and
# with operations in another order than the graph's where long parts of prompts are read ahead; without either that
# was not seen, but for adapters, which no test uses there.
echo "export GGML_VK_DISABLE_FUSION=1 GGML_VK_DISABLE_GRAPH_OPTIMIZE=1"
# The name that llama.cpp gives to that device.
echo "export CORRAL_TEST_DEVICE=Vulkan0"
# A step takes many times as long as on the processor itself.
echo "export CORRAL_TEST_SUMS=300"
# Shaders are compiled for the processor when they are first used: once, and not in each test's process.
echo "export MESA_SHADER_CACHE_DIR='$cache/shaders'"
