#!/usr/bin/env bash
# Installs the packages of the client suites and prints their directory, with `python` and `openai_2` (virtual environments;
# the latter for clients that need an older version of the package openai), `node/node_modules`, and `wheels` and `npm`,
# from which projects of plugins install their packages. They take 1.1 GB. The directory lies in $CORRAL_CACHE (default
# ~/.cache/corral) and is named after the package lists, so a second run is quick. Everything else goes to stderr. Programs
# that other tests call are installed, too, such as the C compiler for plugins.
set -euo pipefail

say() { echo "tests/clients/setup.sh: $*" >&2; }
die() { say "$*"; exit 1; }

cd "$(dirname "$0")"
# shellcheck source=../../host/apt.sh
source ../../host/apt.sh
# shellcheck source=../../host/npm.sh
source ../../host/npm.sh

programs_work() { command -v openssl >/dev/null && command -v curl >/dev/null && command -v script >/dev/null; }

if ! programs_work; then
  apt_install openssl curl bsdutils || true
  programs_work || die "openssl, curl and script are needed; on Debian: apt-get install openssl curl bsdutils"
fi

# clang for WebAssembly, with Debian's C library, and its C++ library for the bindings of tests/tests/languages/wit.rs.
readonly c_packages="clang-19 lld-19 wasi-libc libclang-rt-19-dev-wasm32 libc++-19-dev-wasm32"
c_works() {
  [ -f /usr/lib/wasm32-wasi/libc.a ] && [ -f /usr/lib/wasm32-wasi/libc++.a ] && command -v wasm-ld-19 >/dev/null &&
    [ -f "$(clang-19 --target=wasm32-wasi --sysroot=/usr -print-libgcc-file-name 2>/dev/null)" ]
}
if ! c_works; then
  # shellcheck disable=SC2086
  apt_install $c_packages || true
  c_works || die "a C compiler for WebAssembly is needed; on Debian: apt-get install $c_packages"
fi

templates=../../host/cli/templates
key=$(cat requirements.txt openai_2/requirements.txt package.json package-lock.json \
  $templates/python/requirements.txt $templates/javascript/package.json | sha256sum | cut -c1-12)
folder=$cache/clients-$key
# The interpreter that made the environment may be gone.
ready() { [ -f "$folder/ready" ] && "$folder/python/bin/python" --version >/dev/null 2>&1; }
# install NAME REQUIREMENTS: a virtual environment with these packages.
install() {
  timeout 120 "$python" -m venv "$folder/$1" >&2
  timeout 600 "$folder/$1/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r "$2" >&2
}

need_node
if ! ready; then
  python=python3
  can_make_environments() {
    "$1" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
  }
  if ! can_make_environments "$python"; then
    apt_install python3 python3-venv || true
    can_make_environments "$python" || python=/usr/bin/python3
    can_make_environments "$python" ||
      die "Python 3.11 or later with its module venv is needed; on Debian: apt-get install python3 python3-venv"
  fi
  lock_cache clients
  if ! ready; then
    rm -rf "$folder"
    mkdir -p "$folder/node"
    say "pip install (at most 20 min)"
    install python requirements.txt
    install openai_2 openai_2/requirements.txt
    say "npm ci (at most 5 min)"
    cp package.json package-lock.json "$folder/node"
    (cd "$folder/node" && timeout 300 npm ci --ignore-scripts --no-audit --no-fund --loglevel error >&2)
    say "packages for projects of plugins (at most 10 min)"
    timeout 300 "$folder/python/bin/python" -m pip download --quiet --disable-pip-version-check \
      --dest "$folder/wheels" -r $templates/python/requirements.txt >&2
    mkdir -p "$folder/project/corral-sdk"
    sed 's/{{name}}/project/' $templates/javascript/package.json >"$folder/project/package.json"
    cp ../../plugins/javascript/package.json "$folder/project/corral-sdk"
    (cd "$folder/project" && timeout 300 npm install --cache "$folder/npm" --ignore-scripts --no-audit --no-fund \
      --loglevel error >&2)
    rm -rf "$folder/project"
    touch "$folder/ready"
  fi
fi
# Builds packages of Python in a checkout. Directories of earlier versions of this script lack it.
readonly setuptools=80.9.0
if ! [ -f "$folder/wheels/setuptools-$setuptools-py3-none-any.whl" ]; then
  timeout 300 "$folder/python/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps \
    --dest "$folder/new-$$" "setuptools==$setuptools" >&2
  mv "$folder/new-$$"/* "$folder/wheels"
  rmdir "$folder/new-$$"
fi
echo "$folder"
