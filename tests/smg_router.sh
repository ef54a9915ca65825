#!/usr/bin/env bash
# Prints the path of smg, a router for inference servers, of a pinned version. Fetches it once, from PyPI (38 MB), into
# $CORRAL_CACHE (default ~/.cache/corral). Everything else goes to stderr.
set -euo pipefail

say() { echo "tests/smg_router.sh: $*" >&2; }

# shellcheck source=pip_program.sh
source "$(dirname "$0")/pip_program.sh"
pip_program smg smg 1.13.0 bin/smg setproctitle==1.3.7
