# shellcheck shell=bash
# Source this for the directory of what scripts build and fetch: $CORRAL_CACHE (default ~/.cache/corral).
cache=${CORRAL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/corral}

# lock_cache NAME: makes the directory, which other checkouts may share, and waits for this lock. The script's end frees it.
lock_cache() {
  mkdir -p "$cache"
  command -v flock >/dev/null || return 0
  exec 9>"$cache/$1-lock"
  flock 9
}
