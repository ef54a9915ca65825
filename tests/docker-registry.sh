#!/usr/bin/env bash
# Prints the path of docker-registry, an OCI registry, from Debian's package. Everything else goes to stderr.
set -euo pipefail

say() { echo "tests/docker-registry.sh: $*" >&2; }
works() { "$1" --version >/dev/null 2>&1; }

# shellcheck source=apt_program.sh
source "$(dirname "$0")/apt_program.sh"
apt_program docker-registry usr/bin/docker-registry docker-registry
