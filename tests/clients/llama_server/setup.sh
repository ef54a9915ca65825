#!/usr/bin/env bash
# Fetches the tests of llama.cpp's server and prints their directory, with `tests`, `packages` (Python packages) and
# `clients` (a link to the directory of the client suites). The directory lies in $CORRAL_CACHE (default
# ~/.cache/corral) and is named after the lists beside this file, so a second run is quick. Everything else goes to stderr.
set -euo pipefail

say() { echo "tests/clients/llama_server/setup.sh: $*" >&2; }

cd "$(dirname "$0")"
clients=$(../setup.sh)
python=$clients/python/bin/python
# shellcheck source=../../../host/cache.sh
source ../../../host/cache.sh
key=$(cat sources.txt requirements.txt | sha256sum | cut -c1-12)
folder=$cache/llama-server-suite-$key

if [ ! -f "$folder/ready" ]; then
  lock_cache clients
  if [ ! -f "$folder/ready" ]; then
    rm -rf "$folder"
    mkdir -p "$folder/sources" "$folder/tests"
    say "pip download of 77 MB (at most 10 min)"
    # pip checks the hash before it reads the archive.
    timeout 600 "$python" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-python \
      --require-hashes -r sources.txt --dest "$folder/sources" >&2
    tar xzf "$folder"/sources/*.tar.gz -C "$folder/tests" --wildcards --strip-components=6 \
      '*/vendor/llama.cpp/tools/server/tests/*'
    rm -r "$folder/sources"
    say "pip install (at most 5 min)"
    timeout 300 "$python" -m pip install --quiet --disable-pip-version-check --no-deps \
      --target "$folder/packages" -r requirements.txt >&2
    touch "$folder/ready"
  fi
fi
ln -sfn "$clients" "$folder/clients"
echo "$folder"
