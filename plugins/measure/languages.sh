#!/usr/bin/env bash
# Builds the plugin `measure` in Python, JavaScript, C and Go, for `corral-bench languages`.
#
#   plugins/measure/languages.sh OUT_DIR
#
# Writes OUT_DIR/measure-LANGUAGE.wasm. `corral` is CORRAL_BIN, or the one in PATH. The compilers are those of
# tests/clients/setup.sh and tests/go.sh, which install them unless CORRAL_CLIENTS has the directory of the former, and CORRAL_GO
# the path of Go.
set -euo pipefail

die() { echo "plugins/measure/languages.sh: $*" >&2; exit 1; }

[ $# -eq 1 ] || die "expected one argument, the directory for the components"
corral=$(command -v "${CORRAL_BIN:-corral}") || die "cannot find corral; put it into PATH, or name it in CORRAL_BIN"
mkdir -p "$1"
out=$(cd "$1" && pwd)
cd "$(dirname "$0")"
sources=$PWD
clients=${CORRAL_CLIENTS:-$(../../tests/clients/setup.sh)}
go=${CORRAL_GO:-$(../../tests/go.sh)}
export PATH=$clients/python/bin:${go%/*}:$PATH NODE_PATH=$clients/node/node_modules PYTHONDONTWRITEBYTECODE=1
export GOTOOLCHAIN=local GOPROXY=off
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export XDG_CACHE_HOME=$scratch/cache

# build LANGUAGE SOURCE FILE: a new project whose FILE is SOURCE.
build() {
  cd "$scratch"
  "$corral" new "measure-$1" --lang "$1" >&2
  cd "measure-$1"
  cp "$sources/$2" "$3"
  # As `npm install` does.
  [ "$1" != javascript ] || { mkdir node_modules; ln -s ../corral-sdk node_modules/corral-sdk; }
  "$corral" build >&2
  mv "measure-$1.wasm" "$out"
}

build python measure.py app.py
build javascript measure.js app.js
build c measure.c plugin.c
build go measure.go plugin.go
