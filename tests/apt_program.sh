# shellcheck shell=bash
# Sourced by scripts that need a program of a Debian package. They define `say`, and `works FILE`, which tries the program.

# shellcheck source=../host/apt.sh
source "$(dirname "${BASH_SOURCE[0]}")/../host/apt.sh"
# shellcheck source=../host/cache.sh
source "$(dirname "${BASH_SOURCE[0]}")/../host/cache.sh"

# apt_program NAME PATH PACKAGE...: prints the path of the program NAME, or else PATH in a folder of $CORRAL_CACHE (default
# ~/.cache/corral), where it unpacks the packages once. It does not install them, so no service starts. A script may define
# `prepare FOLDER`, which completes what was unpacked.
apt_program() {
  local file folder=$cache/$3 package
  file=$(command -v "$1" || true)
  works "$file" || file=$folder/$2
  if ! works "$file"; then
    new=$folder.new-$$
    rm -rf "$new"
    mkdir -p "$new"
    trap 'rm -rf "$new"' EXIT
    for package in "${@:3}"; do
      apt_unpack "$new" "$package" || true
    done
    if declare -F prepare >/dev/null; then prepare "$new"; fi
    works "$new/$2" || { say "$1 is needed; on Debian: apt-get install $3"; exit 1; }
    # Another run may have been quicker.
    works "$file" || { rm -rf "$folder"; mv "$new" "$folder"; }
  fi
  echo "$file"
}
