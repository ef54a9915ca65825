#!/usr/bin/env bash
# A newcomer: follows the README on a new Debian 12, and measures the minutes to the first answer and to a deployed plugin.
#
#   tests/newcomer.sh [LAST_STEP]        as root; steps: system, prerequisites, clone, answer, plugin (default)
#
# The system is a chroot that debootstrap makes, with nothing of this machine but its network: name resolution, trusted
# certificates, and the variables of proxies. The packages are those that the README names, and the clone is of the
# last commit here. The server gets 127.0.0.1:8080 and 8081, or LISTEN and ADMIN. It takes half an hour on two cores.
set -euo pipefail

readonly suite=${SUITE:-bookworm}
export LISTEN=${LISTEN:-127.0.0.1:8080} ADMIN=${ADMIN:-127.0.0.1:8081}
readonly last=${1:-plugin}
readonly steps="system prerequisites clone answer plugin"

say() { echo "newcomer: $*" >&2; }
die() { say "$*"; exit 1; }

[[ " $steps " == *" $last "* ]] || die "there is no step '$last'; it is one of: $steps"
[ "$(id -u)" = 0 ] || die "this needs root, for debootstrap and chroot"
command -v debootstrap >/dev/null || die "debootstrap is missing; install it with 'apt-get install debootstrap'"
for address in "$LISTEN" "$ADMIN"; do
  ! (exec 3<>"/dev/tcp/${address/://}") 2>/dev/null || die "$address is in use; give others as LISTEN and ADMIN"
done
repository=$(cd "$(dirname "$0")/.." && pwd)
root=$(mktemp -d)
chmod 755 "$root"
server=

clean_up() {
  [ -z "$server" ] || kill -- "-$server" 2>/dev/null || true
  [ -z "$server" ] || wait "$server" 2>/dev/null || true
  # The server's children may need a moment to end. Never remove a directory that still has the machine's devices in it.
  for _ in $(seq 50); do
    ! mountpoint -q "$root/dev" || umount "$root/dev" 2>/dev/null || true
    ! mountpoint -q "$root/proc" || umount "$root/proc" 2>/dev/null || true
    mountpoint -q "$root/dev" || mountpoint -q "$root/proc" || break
    sleep 0.2
  done
  rm -rf --one-file-system "$root"
}
trap clean_up EXIT

# Runs a script on the new system, in the newcomer's directory.
newcomer() {
  chroot "$root" /usr/bin/env -i HOME=/root LANG=C.UTF-8 PATH=/root/.cargo/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    LISTEN="$LISTEN" ADMIN="$ADMIN" ${http_proxy:+http_proxy="$http_proxy"} ${https_proxy:+https_proxy="$https_proxy"} \
    ${no_proxy:+no_proxy="$no_proxy"} bash -euo pipefail -c "cd /root; $1"
}

# Prints how long the step took, and the time since the start.
step_ends() {
  local now=$SECONDS
  printf '%-14s %5.1f min, %5.1f min in all\n' "$1" "$(minutes $((now - begun)))" "$(minutes $((now - start)))"
  begun=$now
  if [ "$1" = "$last" ]; then exit 0; fi
}
minutes() { awk "BEGIN { print $1 / 60 }"; }

# A code block of a document: the first of this language that contains the text.
block() {
  awk -v language="$2" -v text="$3" '
    $0 == "```" language { inside = 1; content = ""; next }
    inside && $0 == "```" { inside = 0; if (index(content, text)) { printf "%s", content; exit } }
    inside { content = content $0 "\n" }' "$repository/$1"
}

start=$SECONDS begun=$SECONDS
say "making a Debian ($suite) in $root"
debootstrap --variant=minbase "$suite" "$root" >"$root.log" 2>&1 || { tail -n 5 "$root.log" >&2; die "debootstrap failed"; }
rm -f "$root.log"
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
git clone --quiet --bare "$repository" "$root/root/origin.git"
step_ends system
# A Debian to start from is not the newcomer's work.
start=$SECONDS begun=$SECONDS

packages=$(grep -o 'apt-get install [a-z0-9 -]*' "$repository/README.md" | head -n 1)
[ -n "$packages" ] || die "the README names no packages"
say "$packages, and rustup"
newcomer "apt-get update -qq; export DEBIAN_FRONTEND=noninteractive; ${packages/install/install -qq -y --no-install-recommends -o Dpkg::Use-Pty=0} >/dev/null"
# Networks with a proxy of their own have certificates of their own.
cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
newcomer 'init=https://static.rust-lang.org/rustup/dist/$(uname -m)-unknown-linux-gnu/rustup-init
  curl -sSf --retry 3 "$init" -o rustup-init; chmod +x rustup-init; ./rustup-init -y --quiet >&2; rm rustup-init; cargo --version'
step_ends prerequisites

cloned=$SECONDS
newcomer 'git clone --quiet origin.git corral'
step_ends clone

say "make run (its output is $root/root/run.log)"
set -m
newcomer 'cd corral; exec make run >/root/run.log 2>&1 </dev/null' &
server=$!
set +m
until newcomer 'curl -sf -o /dev/null "http://$LISTEN/readyz"' 2>/dev/null; do
  kill -0 "$server" 2>/dev/null || { tail -n 20 "$root/root/run.log" >&2; die "make run failed"; }
  sleep 1
done
question=$(block README.md sh '12+7?' | sed "s/127.0.0.1:8080/$LISTEN/g")
answer=$(newcomer "$question")
[[ "$answer" == *'"19"'* ]] || die "the first answer is wrong: $answer"
printf 'from clone to first answer: %.1f min\n' "$(minutes $((SECONDS - cloned)))"
step_ends answer

# As the README says, in a directory of its own.
invoked=$(newcomer '
  rustup target add wasm32-wasip2 >&2
  eval "$(make -s -C corral env)"
  export CORRAL_ADMIN=http://$ADMIN CORRAL_ADMIN_TOKEN=$(cat "$STORE/admin-token")
  corral new shout >&2
  cd shout
  cargo test >&2
  corral build >&2
  corral deploy >&2
  corral invoke shout --data "12+7="')
[ "$invoked" = 19 ] || die "the plugin answers: $invoked"
step_ends plugin
