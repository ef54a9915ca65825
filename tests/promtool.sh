#!/usr/bin/env bash
# Prints the path of promtool, Prometheus's checker of metrics, with the program `prometheus` beside it. Takes both from
# Debian's package, without installing it, so that no service starts. Everything else goes to stderr.
set -euo pipefail

say() { echo "tests/promtool.sh: $*" >&2; }

cd "$(dirname "$0")"
# shellcheck source=../host/apt.sh
source ../host/apt.sh

# works FILE: promtool lies there, and prometheus beside it.
works() { "$1" --version >/dev/null 2>&1 && "$(dirname "$1")/prometheus" --version >/dev/null 2>&1; }

folder=${CORRAL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/corral}/prometheus
file=$(command -v promtool || echo "$folder/usr/bin/promtool")
works "$file" || file=$folder/usr/bin/promtool
if ! works "$file"; then
  new=$folder.new-$$
  rm -rf "$new"
  mkdir -p "$new"
  trap 'rm -rf "$new"' EXIT
  apt_unpack "$new" prometheus || true
  works "$new/usr/bin/promtool" || {
    say "prometheus with promtool is needed; on Debian: apt-get install prometheus"
    exit 1
  }
  # Another run may have been quicker.
  works "$file" || { rm -rf "$folder"; mv "$new" "$folder"; }
fi
echo "$file"
