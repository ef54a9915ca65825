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
