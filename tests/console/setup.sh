#!/usr/bin/env bash
# Installs what tests of the web console need, and prints the directory with `node_modules`: playwright-core and axe-core in
# $CORRAL_CACHE (default ~/.cache/corral), and the browser Chromium. Everything else goes to stderr.
set -euo pipefail

say() { echo "tests/console/setup.sh: $*" >&2; }
die() { say "$*"; exit 1; }

cd "$(dirname "$0")"
# shellcheck source=../../host/apt.sh
source ../../host/apt.sh

# Node.js 18 or later, with npm.
node_works() {
  command -v node >/dev/null && command -v npm >/dev/null && [ "$(node -p 'parseInt(process.versions.node)')" -ge 18 ]
}

if ! node_works; then
  apt_install nodejs npm || true
  node_works || die "Node.js (18 or later) with npm is needed; on Debian: apt-get install nodejs npm"
fi
if ! command -v chromium >/dev/null; then
  apt_install chromium fonts-dejavu-core || true
  command -v chromium >/dev/null || die "Chromium is needed; on Debian: apt-get install chromium fonts-dejavu-core"
fi

# shellcheck source=../../host/npm.sh
source ../../host/npm.sh
npm_packages console-tests
echo "$folder"
