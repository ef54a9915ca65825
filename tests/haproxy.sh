#!/usr/bin/env bash
# Prints the path of haproxy, from Debian's packages (2.3 MB with its libraries). Everything else goes to stderr.
set -euo pipefail

say() { echo "tests/haproxy.sh: $*" >&2; }
works() { "$1" -v >/dev/null 2>&1; }
prepare() {
  cat >"$1/haproxy" <<'SCRIPT'
#!/bin/sh
folder=$(dirname "$0")/usr
LD_LIBRARY_PATH=$(echo "$folder"/lib/*-linux-gnu) exec "$folder/sbin/haproxy" "$@"
SCRIPT
  chmod +x "$1/haproxy"
}

# shellcheck source=apt_program.sh
source "$(dirname "$0")/apt_program.sh"
apt_program haproxy haproxy haproxy liblua5.3-0 libopentracing-c-wrapper0 libopentracing1
