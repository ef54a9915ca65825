#!/usr/bin/env bash
# Checks that dist/ is what the sources give. With --write, writes it. Needs Node.js 18 or later with npm; without them it
# says so and succeeds, since Corral is built without them, too. The packages lie in $CORRAL_CACHE (default
# ~/.cache/corral), so a second run is quick. All output goes to stderr.
set -euo pipefail

say() { echo "host/console/check.sh: $*" >&2; }

cd "$(dirname "$0")"
# shellcheck source=../npm.sh
source ../npm.sh
if ! node_works; then
  say "no Node.js 18 or later with npm; the console's bundle is not checked"
  exit 0
fi
npm_packages console

# Node finds packages in the directories above the program, so a copy of the sources is built beside them.
work=$folder/build-$$
trap 'rm -rf "$work"' EXIT
mkdir "$work"
cp -r package.json build.mjs tsconfig.json src "$work"
(cd "$work" && timeout 120 "$folder/node_modules/.bin/tsc" --noEmit >&2 && timeout 60 node build.mjs dist)

if diff -rq "$work/dist" dist >&2; then
  exit 0
fi
if [ "${1:-}" != --write ]; then
  say "host/console/dist is not what host/console/src gives; run 'make console', and commit the result"
  exit 1
fi
rm -rf dist
cp -r "$work/dist" dist
