#!/usr/bin/env bash
# Prints a directory with the Python packages pyzmq and msgpack, of pinned versions, for the interpreter of the client suites.
# Fetches them once, from PyPI, into $CORRAL_CACHE (default ~/.cache/corral). Everything else goes to stderr.
set -euo pipefail

say() { echo "tests/zmq.sh: $*" >&2; }

cd "$(dirname "$0")"
readonly packages="pyzmq==27.3.0 msgpack==1.2.4"
python=${CORRAL_CLIENTS:-$(clients/setup.sh)}/python/bin/python
# shellcheck source=../host/cache.sh
source ../host/cache.sh
key=$(echo "$packages" "$("$python" --version)" | sha256sum | cut -c1-12)
folder=$cache/zmq-$key
works() { PYTHONPATH=$folder "$python" -c 'import msgpack, zmq' >/dev/null 2>&1; }

if ! works; then
  lock_cache zmq
  if ! works; then
    say "pip install $packages (at most 5 min)"
    rm -rf "$folder"
    # shellcheck disable=SC2086
    timeout 300 "$python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$folder" $packages >&2
    works || { say "the packages do not work on this machine"; exit 1; }
  fi
fi
echo "$folder"
