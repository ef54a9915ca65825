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

cache=${CORRAL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/corral}
folder=$cache/console-tests-$(cat package.json package-lock.json | sha256sum | cut -c1-12)
if ! [ -f "$folder/ready" ]; then
  mkdir -p "$cache"
  # Other checkouts may share the cache.
  if command -v flock >/dev/null; then
    exec 9>"$cache/console-lock"
    flock 9
  fi
  if ! [ -f "$folder/ready" ]; then
    rm -rf "$folder"
    mkdir -p "$folder"
    cp package.json package-lock.json .npmrc "$folder"
    say "npm ci (at most 5 min)"
    (cd "$folder" && timeout 300 npm ci --ignore-scripts --no-audit --no-fund --loglevel error >&2)
    touch "$folder/ready"
  fi
fi
echo "$folder"
