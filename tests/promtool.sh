#!/usr/bin/env bash
# Prints the path of promtool, Prometheus's checker of metrics. Installs it if apt-get can. Everything else goes to stderr.
set -euo pipefail

say() { echo "tests/promtool.sh: $*" >&2; }

cd "$(dirname "$0")"
# shellcheck source=../host/apt.sh
source ../host/apt.sh

# The package has promtool in it; the service of Prometheus itself does not run in a container, and is not needed.
command -v promtool >/dev/null || apt_install prometheus || true
command -v promtool || {
  say "promtool is needed; on Debian: apt-get install prometheus"
  exit 1
}
