#!/usr/bin/env bash
# Prints the path of promtool, Prometheus's checker of metrics, with the program `prometheus` beside it, from Debian's package.
# Everything else goes to stderr.
set -euo pipefail

say() { echo "tests/promtool.sh: $*" >&2; }
works() { "$1" --version >/dev/null 2>&1 && "$(dirname "$1")/prometheus" --version >/dev/null 2>&1; }

# shellcheck source=apt_program.sh
source "$(dirname "$0")/apt_program.sh"
apt_program promtool usr/bin/promtool prometheus
