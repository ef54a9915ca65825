#!/usr/bin/env bash
# Validates the manifests of examples/kubernetes against published schemas, with packages of PyPI and npm (120 MB), which it
# installs in $CORRAL_CACHE (default ~/.cache/corral).
set -euo pipefail

cd "$(dirname "$0")"
cache=${CORRAL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/corral}
folder=$cache/kubernetes-$(cat kubernetes/requirements.txt kubernetes/package-lock.json | sha256sum | cut -c1-12)
manifests=$(cd ../examples/kubernetes && pwd)

if ! [ -f "$folder/ready" ]; then
  rm -rf "$folder"
  mkdir -p "$folder/node"
  timeout 120 python3 -m venv "$folder/python"
  timeout 600 "$folder/python/bin/python" -m pip install --quiet --disable-pip-version-check -r kubernetes/requirements.txt
  cp kubernetes/package.json kubernetes/package-lock.json kubernetes/validate.mjs "$folder/node"
  (cd "$folder/node" && timeout 300 npm ci --ignore-scripts --no-audit --no-fund --loglevel error)
  touch "$folder/ready"
fi
cp kubernetes/validate.mjs "$folder/node"
patched=$(mktemp)
trap 'rm -f "$patched"' EXIT
node "$folder/node/validate.mjs" "$manifests" >"$patched"
cd "$manifests/base"
"$folder/python/bin/kubernetes-validate" --strict deployment.yaml service.yaml disruption-budget.yaml ../cluster/nats.yaml "$patched"
