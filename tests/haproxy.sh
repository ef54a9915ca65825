#!/usr/bin/env bash
# Prints the path of haproxy. Takes it and its libraries from Debian's packages (2.3 MB), without installing them, so that no
# service starts. Everything else goes to stderr.
set -euo pipefail

say() { echo "tests/haproxy.sh: $*" >&2; }

cd "$(dirname "$0")"
# shellcheck source=../host/apt.sh
source ../host/apt.sh

works() { "$1" -v >/dev/null 2>&1; }

folder=${CORRAL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/corral}/haproxy
file=$(command -v haproxy || echo "$folder/haproxy")
works "$file" || file=$folder/haproxy
if ! works "$file"; then
  new=$folder.new-$$
  rm -rf "$new"
  mkdir -p "$new"
  trap 'rm -rf "$new"' EXIT
  for package in haproxy liblua5.3-0 libopentracing-c-wrapper0 libopentracing1; do
    apt_unpack "$new" "$package" || true
  done
  cat >"$new/haproxy" <<'SCRIPT'
#!/bin/sh
folder=$(dirname "$0")/usr
LD_LIBRARY_PATH=$(echo "$folder"/lib/*-linux-gnu) exec "$folder/sbin/haproxy" "$@"
SCRIPT
  chmod +x "$new/haproxy"
  works "$new/haproxy" || {
    say "haproxy is needed; on Debian: apt-get install haproxy"
    exit 1
  }
  # Another run may have been quicker.
  works "$file" || { rm -rf "$folder"; mv "$new" "$folder"; }
fi
echo "$file"
