#!/usr/bin/env bash
# Installs Claude Code and Codex and prints their directory, which lies in $CORRAL_CACHE (default ~/.cache/corral) and is
# named after the package lists. The programs take 0.8 GB. Everything else goes to stderr.
set -euo pipefail

cd "$(dirname "$0")"
cache=${CORRAL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/corral}
folder=$cache/agents-$(cat package.json package-lock.json | sha256sum | cut -c1-12)

if [ ! -f "$folder/ready" ]; then
  mkdir -p "$cache"
  # Other checkouts may share the cache.
  if command -v flock >/dev/null; then
    exec 9>"$cache/agents-lock"
    flock 9
  fi
  if [ ! -f "$folder/ready" ]; then
    rm -rf "$folder"
    mkdir -p "$folder"
    echo "tests/clients/agents/setup.sh: npm ci (at most 10 min)" >&2
    cp package.json package-lock.json "$folder"
    (cd "$folder" && timeout 600 npm ci --ignore-scripts --no-audit --no-fund --loglevel error >&2)
    touch "$folder/ready"
  fi
fi
echo "$folder"
