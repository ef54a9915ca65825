#!/usr/bin/env bash
# Finds, or installs if apt-get can, a Vulkan device that every machine has and the build dependencies of llama.cpp's
# Vulkan backend: Mesa's lavapipe, which computes on the CPU, the loader with its headers, SPIR-V's headers and glslc.
# Prints the environment of tests on that device as `export` lines, or with the argument `build` that of the build alone;
# all other output goes to stderr. Fast if all is installed.
set -euo pipefail

readonly packages="mesa-vulkan-drivers libvulkan-dev spirv-headers glslc"

say() { echo "host/vulkan.sh: $*" >&2; }
# shellcheck source=apt.sh
source "$(dirname "$0")/apt.sh"

# The first of some files that exists.
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

# The loader's manifest of lavapipe; the one for this architecture if there are several.
lavapipe() {
  local name
  for name in "lvp_icd.$(uname -m).json" 'lvp_icd*.json'; do
    # shellcheck disable=SC2086
    first {/usr/share,/usr/local/share,/etc}/vulkan/icd.d/$name && return
  done
  return 1
}

# Lists missing files.
list_missing() {
  local root=${VULKAN_SDK:-/usr}
  lavapipe >/dev/null || echo "lavapipe (lvp_icd.*.json)"
  first {"$root",/usr,/usr/local}/include/vulkan/vulkan.hpp >/dev/null || echo "vulkan/vulkan.hpp"
  first {"$root",/usr,/usr/local}/{share,lib,lib/*}/cmake/SPIRV-Headers/SPIRV-HeadersConfig.cmake >/dev/null ||
    echo "SPIRV-HeadersConfig.cmake"
  command -v glslc >/dev/null || echo "glslc"
}

# shellcheck disable=SC2086
[ -z "$(list_missing)" ] || apt_install $packages || true
missing=$(list_missing)
if [ -n "$missing" ]; then
  say "missing: $(paste -sd, <<<"$missing" | sed 's/,/, /g'). On Debian: apt-get install $packages."
  exit 1
fi

# A header that supplements the old one of Debian 12 precedes it. Its path is the same for every clone, because another
# path rebuilds all C++ code.
cache=${CORRAL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/corral}
mkdir -p "$cache/include/vulkan"
header=$(dirname "$0")/include/vulkan/vulkan.hpp
cmp -s "$header" "$cache/include/vulkan/vulkan.hpp" || cp "$header" "$cache/include/vulkan/vulkan.hpp"
echo "export CPLUS_INCLUDE_PATH='$cache/include'"
[ "${1:-}" != build ] || exit 0

# Restrict the loader to lavapipe, with the variables of old and new loaders. Otherwise device 0 would be a GPU on some
# machines.
driver=$(lavapipe)
echo "export VK_DRIVER_FILES='$driver' VK_ICD_FILENAMES='$driver'"
# llama.cpp skips devices that are not GPUs, unless this variable lists their index.
echo "export GGML_VK_VISIBLE_DEVICES=0"
# lavapipe of Mesa 22.3 uses freed buffers. With fused kernels the process crashes when rows decode beside a prefill, and
# with reordered graphs when long prefill chunks overlap with sampling. Without both it crashes only with adapters, which
# no test uses there.
echo "export GGML_VK_DISABLE_FUSION=1 GGML_VK_DISABLE_GRAPH_OPTIMIZE=1"
# llama.cpp's name of that device.
echo "export CORRAL_TEST_DEVICE=Vulkan0"
# A step is many times slower than on the CPU backend.
echo "export CORRAL_TEST_SUMS=300"
# Keep compiled shaders, so that not every test compiles them.
echo "export MESA_SHADER_CACHE_DIR='$cache/shaders'"
