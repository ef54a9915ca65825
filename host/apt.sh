# Source this from a script that defines a function `say`.

# Installs Debian packages, if apt-get exists and needs no password.
apt_install() {
  local sudo=
  command -v apt-get >/dev/null || return 1
  if [ "$(id -u)" != 0 ]; then
    sudo -n true 2>/dev/null || return 1
    sudo="sudo -n"
  fi
  say "apt-get install $* (at most 10 min)"
  # shellcheck disable=SC2016
  timeout 600 $sudo sh -c 'apt-get update -qq && export DEBIAN_FRONTEND=noninteractive &&
    apt-get install -qq -y --no-install-recommends "$@"' apt-get "$@" >&2
}

# apt_unpack DIR PACKAGE: unpacks a Debian package into an existing directory, without what it depends on and without its
# scripts, which could start a service. Needs a password only if apt-get has no list of packages yet.
apt_unpack() {
  local sudo=
  command -v apt-get >/dev/null || return 1
  say "apt-get download $2 (at most 10 min)"
  if ! (cd "$1" && timeout 300 apt-get download -qq "$2" >&2); then
    [ "$(id -u)" = 0 ] || sudo="sudo -n"
    timeout 300 $sudo apt-get update -qq >&2 || return 1
    (cd "$1" && timeout 300 apt-get download -qq "$2" >&2) || return 1
  fi
  dpkg-deb -x "$1/$2"_*.deb "$1" && rm "$1/$2"_*.deb
}
