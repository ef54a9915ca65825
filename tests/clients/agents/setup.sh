#!/usr/bin/env bash
# Installs agents (Claude Code, Codex, Cline, Continue, aider) and lm-eval, and prints their directory, which lies in
# $CORRAL_CACHE (default ~/.cache/corral) and is named after the package lists. They take 2.5 GB. Everything else goes to
# stderr. Run ../setup.sh first: it installs Python and Node.js if they are missing.
set -euo pipefail

cd "$(dirname "$0")"
# shellcheck source=../../../host/cache.sh
source ../../../host/cache.sh
folder=$cache/agents-$(cat package.json package-lock.json aider.txt lm-eval.txt | sha256sum | cut -c1-12)

if [ ! -f "$folder/ready" ]; then
  lock_cache agents
  if [ ! -f "$folder/ready" ]; then
    rm -rf "$folder"
    mkdir -p "$folder"
    echo "tests/clients/agents/setup.sh: npm ci (at most 10 min)" >&2
    cp package.json package-lock.json "$folder"
    (cd "$folder" && timeout 600 npm ci --ignore-scripts --no-audit --no-fund --loglevel error >&2)
    # As in ../setup.sh: the Python in PATH may lack the module venv.
    python=python3
    "$python" -c 'import ensurepip, venv' >/dev/null 2>&1 || python=/usr/bin/python3
    for name in aider lm-eval; do
      echo "tests/clients/agents/setup.sh: pip install of $name (at most 10 min)" >&2
      timeout 120 "$python" -m venv "$folder/$name" >&2
      timeout 600 "$folder/$name/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
        -r "$name.txt" >&2
    done
    touch "$folder/ready"
  fi
fi
echo "$folder"
