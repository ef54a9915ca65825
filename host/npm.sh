# Source this from a script that defines a function `say`, and apt_install (apt.sh) if it calls need_node.

# shellcheck source=cache.sh
source "$(dirname "${BASH_SOURCE[0]}")/cache.sh"

# Whether there is Node.js 18 or later, with npm.
node_works() {
  command -v node >/dev/null && command -v npm >/dev/null && [ "$(node -p 'parseInt(process.versions.node)')" -ge 18 ]
}

# Installs them from Debian's packages, unless they are there.
need_node() {
  node_works && return
  apt_install nodejs npm || true
  node_works || { say "Node.js (18 or later) with npm is needed; on Debian: apt-get install nodejs npm"; exit 1; }
}

# npm_packages NAME: installs the packages of package.json and package-lock.json in the working directory into a folder of
# $CORRAL_CACHE (default ~/.cache/corral) that NAME begins, unless they are there, and sets $folder to it.
npm_packages() {
  folder=$cache/$1-$(cat package.json package-lock.json | sha256sum | cut -c1-12)
  [ -f "$folder/ready" ] && return
  lock_cache "$1"
  if ! [ -f "$folder/ready" ]; then
    rm -rf "$folder"
    mkdir -p "$folder"
    cp package.json package-lock.json .npmrc "$folder"
    say "npm ci (at most 5 min)"
    (cd "$folder" && timeout 300 npm ci --ignore-scripts --no-audit --no-fund --loglevel error >&2)
    touch "$folder/ready"
  fi
}
