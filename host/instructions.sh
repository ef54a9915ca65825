#!/usr/bin/env bash
# Counts the instructions of the hot paths, each alone, and compares them with those that were written down: a count
# hardly changes from run to run, however busy the machine is.
#
#   host/instructions.sh [--json] [--write]
#
# --json prints one line for programs instead of a table; --write writes the counts down, in
# host/instructions-MACHINE.txt. Without it, it fails if a path takes over 10 % more than written there, or if the
# file and the paths are not the same ones. Where there is no such file nothing is compared.
#
# valgrind counts (cachegrind, without simulating caches). Each path runs twice, with its operations and without them;
# the difference by the number of operations is what one takes.
#
# Expects the environment that host/setup.sh prints. Builds in $CARGO_TARGET_DIR/counted, llama.cpp too the first
# time, since it is linked though it never runs.
set -euo pipefail

# Percent.
readonly tolerance=10

say() { echo "host/instructions.sh: $*" >&2; }
die() { say "$*"; exit 1; }

json='' write=''
for argument in "$@"; do
  case $argument in
    --json) json=1 ;;
    --write) write=1 ;;
    *) die "there is no argument '$argument'; expected --json, --write or none" ;;
  esac
done

cd "$(dirname "$0")/.."
# shellcheck source=apt.sh
source host/apt.sh
command -v valgrind >/dev/null || apt_install valgrind || true
command -v valgrind >/dev/null || die "valgrind is missing, which counts instructions; on Debian: apt-get install valgrind"

machine=$(uname -m)
reference=host/instructions-$machine.txt
target=${CARGO_TARGET_DIR:-$PWD/target}/counted
mkdir -p "$target"
# One at a time: the files beside the programs are shared.
exec {lock}>"$target/lock"
flock -n "$lock" || die "somebody counts in $target already; wait for that, or set another CARGO_TARGET_DIR"

# Not code of this very processor, which may be able to do more than valgrind knows (AVX-512), and so that counts of
# different processors can be compared.
flags=''
[ "$machine" != x86_64 ] || flags='-C target-cpu=x86-64-v3'

# Builds a package's program; prints where it is. llama.cpp without optimization, since that is quicker; and without
# debug information: valgrind 3.19 reads it at every start, and gives up where a newer compiler wrote it.
program() {
  local built
  env -u CARGO_ENCODED_RUSTFLAGS RUSTFLAGS="$flags" CARGO_TARGET_DIR="$target" LLAMA_LIB_PROFILE=Debug \
    cargo bench "$@" --bench instructions --no-run --message-format=json-render-diagnostics >"$target/messages" || return 1
  built=$(sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' "$target/messages" | grep .) || return 1
  strip -S -o "$built-stripped" "$built" || return 1
  echo "$built-stripped"
}

# Instructions of a whole run.
count() {
  valgrind --tool=cachegrind --cache-sim=no --cachegrind-out-file=/dev/null "$@" \
    </dev/null >"$target/log" 2>&1 || {
    cat "$target/log" >&2
    die "'$*' does not run in valgrind; above is what was printed"
  }
  sed -n 's/^==.*I *refs: *//p' "$target/log" | tr -d , | grep . || die "no count in $target/log; expected 'I refs: N'"
}

# What is written down for a path, or nothing.
written() {
  [ ! -f "$reference" ] || awk -v path="$1" '$1 == path { print $2 }' "$reference"
}

row() { [ -n "$json" ] || printf '%-36s %12s %12s  %s\n' "$@"; }

say "building, in $target"
programs=$(program -p corral-scheduler)
programs+=$'\n'$(program -p corral-engine)
programs+=$'\n'$(program --manifest-path plugins/Cargo.toml -p corral-sdk)

row path instructions written ''
names='' lines='' objects='' complaints=''
while read -r program; do
  paths=$("$program")
  while read -r name operations; do
    with=$(count "$program" count "$name")
    without=$(count "$program" count "$name" without)
    one=$(((with - without + operations / 2) / operations))
    [ "$one" -gt 0 ] || die "$name: $with instructions with its operations, $without without; expected more with them"
    case $'\n'$names in
      *$'\n'"$name"$'\n'*) die "there are two paths of the name $name" ;;
    esac
    was=$(written "$name")
    [[ $was =~ ^([1-9][0-9]*)?$ ]] || die "$reference: '$was' is written down for $name; expected one number above 0"
    remark=''
    if [ -n "$was" ]; then
      remark=$(awk -v one="$one" -v was="$was" 'BEGIN { printf "%+.1f %%", (one / was - 1) * 100 }')
      if [ $((one * 100)) -gt $((was * (100 + tolerance))) ]; then
        complaints+="$name takes $one instructions, over $tolerance % more than the $was written down"$'\n'
        remark+=', too many'
      elif [ $((one * 100)) -lt $((was * (100 - tolerance))) ]; then
        remark+=', to be written down'
      fi
    elif [ -f "$reference" ]; then
      complaints+="$name is not in $reference"$'\n'
      remark='not written down'
    fi
    row "$name" "$one" "${was:--}" "$remark"
    names+="$name"$'\n'
    lines+=$(printf '%-36s %12s' "$name" "$one")$'\n'
    objects+=",{\"path\":\"$name\",\"instructions\":$one,\"written\":${was:-null}}"
  done <<<"$paths"
done <<<"$programs"

[ -z "$json" ] || echo "{\"machine\":\"$machine\",\"tolerance\":$tolerance,\"paths\":[${objects#,}]}"

if [ -n "$write" ]; then
  {
    echo "# Instructions of one operation, as make instructions WRITE=1 counted them: $(rustc --version), $machine."
    printf %s "$lines"
  } >"$reference"
  say "wrote $reference"
  exit 0
fi
if [ ! -f "$reference" ]; then
  say "there is no $reference, so nothing was compared; make instructions WRITE=1 writes it"
  exit 0
fi
gone=$(grep -v '^#' "$reference" | awk '{ print $1 }' | grep -vxF -f <(printf %s "$names") || true)
[ -z "$gone" ] || complaints+="no path any more, but in $reference: ${gone//$'\n'/, }"$'\n'
if [ -n "$complaints" ]; then
  while read -r complaint; do say "$complaint"; done < <(printf %s "$complaints")
  die "if that is meant to be so: make instructions WRITE=1, and commit $reference"
fi
