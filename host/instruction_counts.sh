#!/usr/bin/env bash
# Counts the instructions of each hot path and compares them with recorded counts. Counts hardly vary between runs,
# whatever else the machine does.
#
#   host/instruction_counts.sh [--json] [--write]
#
# --json prints one line of JSON instead of a table; --write records the counts in
# host/instruction_counts-MACHINE.txt. Without --write the script fails if a path exceeds its recorded count by more than
# 10 %, or if the file lists other paths. Without the file it compares nothing.
#
# valgrind (cachegrind without cache simulation) counts each path twice, with and without its operations; the difference
# divided by the number of operations is the count of one operation.
#
# Needs the environment that host/setup.sh prints. Builds in $CARGO_TARGET_DIR/counted, with llama.cpp the first time,
# because it is linked though it never runs.
set -euo pipefail

# Percent.
readonly tolerance=10

say() { echo "host/instruction_counts.sh: $*" >&2; }
die() { say "$*"; exit 1; }

json='' write=''
for argument in "$@"; do
  case $argument in
    --json) json=1 ;;
    --write) write=1 ;;
    *) die "unknown argument '$argument'; expected --json, --write or none" ;;
  esac
done

cd "$(dirname "$0")/.."
# shellcheck source=apt.sh
source host/apt.sh
command -v valgrind >/dev/null || apt_install valgrind || true
command -v valgrind >/dev/null || die "valgrind is missing; on Debian: apt-get install valgrind"

machine=$(uname -m)
reference=host/instruction_counts-$machine.txt
target=${CARGO_TARGET_DIR:-$PWD/target}/counted
mkdir -p "$target"
# One run at a time: runs share files.
exec {lock}>"$target/lock"
flock -n "$lock" || die "another run uses $target; wait for it, or set another CARGO_TARGET_DIR"

# Portable code: valgrind lacks AVX-512, and counts of different processors must be comparable.
flags=''
[ "$machine" != x86_64 ] || flags='-C target-cpu=x86-64-v3'

# Builds the bench of a package and prints its path. llama.cpp is not optimized, which builds faster. Debug information
# is stripped: valgrind 3.19 reads it at every start, and fails on that of newer compilers.
program() {
  local built
  env -u CARGO_ENCODED_RUSTFLAGS RUSTFLAGS="$flags" CARGO_TARGET_DIR="$target" LLAMA_LIB_PROFILE=Debug \
    cargo bench "$@" --bench instructions --no-run --message-format=json-render-diagnostics >"$target/messages" || return 1
  built=$(sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' "$target/messages" | grep .) || return 1
  strip -S -o "$built-stripped" "$built" || return 1
  echo "$built-stripped"
}

# Instructions of one run.
count() {
  valgrind --tool=cachegrind --cache-sim=no --cachegrind-out-file=/dev/null "$@" \
    </dev/null >"$target/log" 2>&1 || {
    cat "$target/log" >&2
    die "'$*' fails in valgrind; see its output above"
  }
  sed -n 's/^==.*I *refs: *//p' "$target/log" | tr -d , | grep . || die "no count in $target/log; expected 'I refs: N'"
}

# The recorded count of a path, or nothing.
recorded() {
  [ ! -f "$reference" ] || awk -v path="$1" '$1 == path { print $2 }' "$reference"
}

row() { [ -n "$json" ] || printf '%-36s %12s %12s  %s\n' "$@"; }

say "building, in $target"
programs=$(program -p corral-scheduler)
programs+=$'\n'$(program -p corral-engine)
programs+=$'\n'$(program --manifest-path plugins/Cargo.toml -p corral-sdk)

row path instructions recorded ''
names='' lines='' objects='' errors=''
while read -r program; do
  paths=$("$program")
  while read -r name operations; do
    with=$(count "$program" count "$name")
    without=$(count "$program" count "$name" without)
    one=$(((with - without + operations / 2) / operations))
    [ "$one" -gt 0 ] || die "$name: $with instructions with its operations and $without without; expected more with them"
    case $'\n'$names in
      *$'\n'"$name"$'\n'*) die "two paths have the name $name" ;;
    esac
    was=$(recorded "$name")
    [[ $was =~ ^([1-9][0-9]*)?$ ]] || die "$reference: '$was' is recorded for $name; expected one number above 0"
    remark=''
    if [ -n "$was" ]; then
      remark=$(awk -v one="$one" -v was="$was" 'BEGIN { printf "%+.1f %%", (one / was - 1) * 100 }')
      if [ $((one * 100)) -gt $((was * (100 + tolerance))) ]; then
        errors+="$name takes $one instructions, over $tolerance % more than the recorded $was"$'\n'
        remark+=', too many'
      elif [ $((one * 100)) -lt $((was * (100 - tolerance))) ]; then
        remark+=', record the new count'
      fi
    elif [ -f "$reference" ]; then
      errors+="$name is not in $reference"$'\n'
      remark='not recorded'
    fi
    row "$name" "$one" "${was:--}" "$remark"
    names+="$name"$'\n'
    lines+=$(printf '%-36s %12s' "$name" "$one")$'\n'
    objects+=",{\"path\":\"$name\",\"instructions\":$one,\"recorded\":${was:-null}}"
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
  say "$reference is missing, so nothing was compared; make instructions WRITE=1 writes it"
  exit 0
fi
gone=$(grep -v '^#' "$reference" | awk '{ print $1 }' | grep -vxF -f <(printf %s "$names") || true)
[ -z "$gone" ] || errors+="paths that no longer exist, in $reference: ${gone//$'\n'/, }"$'\n'
if [ -n "$errors" ]; then
  while read -r error; do say "$error"; done < <(printf %s "$errors")
  die "if this is intended, run make instructions WRITE=1 and commit $reference"
fi
