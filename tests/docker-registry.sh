#!/usr/bin/env bash
# Prints the path of docker-registry, an OCI registry. Takes it from Debian's package, without installing it, so that no
# service starts. Everything else goes to stderr.
set -euo pipefail

say() { echo "tests/docker-registry.sh: $*" >&2; }

cd "$(dirname "$0")"
# shellcheck source=../host/apt.sh
source ../host/apt.sh

works() { "$1" --version >/dev/null 2>&1; }

folder=${CORRAL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/corral}/docker-registry
file=$(command -v docker-registry || echo "$folder/usr/bin/docker-registry")
works "$file" || file=$folder/usr/bin/docker-registry
if ! works "$file"; then
  new=$folder.new-$$
  rm -rf "$new"
  mkdir -p "$new"
  trap 'rm -rf "$new"' EXIT
  apt_unpack "$new" docker-registry || true
  works "$new/usr/bin/docker-registry" || {
    say "docker-registry is needed; on Debian: apt-get install docker-registry"
    exit 1
  }
  # Another run may have been quicker.
  works "$file" || { rm -rf "$folder"; mv "$new" "$folder"; }
fi
echo "$file"
