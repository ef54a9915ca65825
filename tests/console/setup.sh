#!/usr/bin/env bash
# Installs what tests of the web console need, and prints the directory with `node_modules`: playwright-core and axe-core in
# $CORRAL_CACHE (default ~/.cache/corral), and the browser Chromium. Everything else goes to stderr.
set -euo pipefail

say() { echo "tests/console/setup.sh: $*" >&2; }
die() { say "$*"; exit 1; }

cd "$(dirname "$0")"
# shellcheck source=../../host/apt.sh
source ../../host/apt.sh
# shellcheck source=../../host/npm.sh
source ../../host/npm.sh

need_node
if ! command -v chromium >/dev/null; then
  apt_install chromium fonts-dejavu-core || true
  command -v chromium >/dev/null || die "Chromium is needed; on Debian: apt-get install chromium fonts-dejavu-core"
fi

npm_packages console-tests
echo "$folder"
