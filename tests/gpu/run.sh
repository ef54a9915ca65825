#!/usr/bin/env bash
# On a machine with an NVIDIA GPU and its compiler, without a network: builds llama.cpp's CUDA backend, tests Corral on
# the GPU, and measures it. Lies in what pack.sh packed; see README.md.
#
#   ./run.sh [--out FOLDER] [--work FOLDER] [--limit SECONDS] [--device NAME]
#
# --out     gets report.md, report.json and log.txt, also while there is more to do; report/ here unless it is said
# --work    what is built, and what was done; work/ here unless it is said
# --limit   how long this call may take, 540 unless it is said: it ends before, and the next one goes on
# --device  as `corral doctor` lists it, CUDA0 unless it is said
#
# Ends with 0 when everything ran and was right, 1 when something was not, 75 when there is more to do: start it again.
# What failed is done again once its file in the work folder's state/ is removed.
#
# Functions that are called in other processes:
# shellcheck disable=SC2329
set -euo pipefail

say() { echo "run.sh: $*" >&2; }

here=$(cd "$(dirname "$0")" && pwd)
out=$here/report work=$here/work limit=540 device=CUDA0
while [ $# -gt 0 ]; do
  case ${2:+$1} in
    --out) out=$2 ;;
    --work) work=$2 ;;
    --limit) limit=$2 ;;
    --device) device=$2 ;;
    *) say "'$1' is not known, or has no value; see the head of this script"; exit 2 ;;
  esac
  shift 2
done
[ -x "$here/dist/corral" ] || { say "there is no dist/corral here: this runs in what pack.sh has packed"; exit 2; }
mkdir -p "$out" "$work"/{state,logs,tmp}
out=$(cd "$out" && pwd)
work=$(cd "$work" && pwd)
cd "$here"

readonly streams="1 8 32 64"
# Seconds that a step may take. The build takes what there is, and goes on the next time.
readonly most=480
# Seconds that are left for the report, and those without which nothing is begun.
readonly spare=15 least=30

# CMake of the system, of a Python that has it, or the one that was packed.
python=$(command -v python3 || true)
export PATH=$PATH:${python:+$(dirname "$python"):}$here/cmake/bin
export TMPDIR=$work/tmp
export here work device model=$work/qwen3-0.6b.gguf backend=$here/dist/backends/libggml-cuda.so
# Where the tests look, those of the engine and those of the whole program.
export CORRAL_BIN=$here/dist/corral CORRAL_PLUGINS=$here/plugins CORRAL_MODEL=$here/model/tiny.gguf
export CORRAL_TEST_DEVICE=$device CORRAL_TEST_BACKENDS=$here/dist/backends

# ---- what is done: `step` calls these, in processes of their own ----

# What this machine is, and whether what was built elsewhere runs here.
look() {
  local program missing=() programs=(nvidia-smi cmake)
  [ ! -e "$backend" ] || programs=(nvidia-smi)
  paste -sd' ' version
  uname -srm
  ldd --version 2>&1 | sed -n 1p
  sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | sed -n 1p
  echo "$(nproc) processors, $(awk '/^MemTotal/ { print int($2 / 1048576) }' /proc/meminfo) GiB"
  for program in "${programs[@]}"; do
    command -v "$program" >/dev/null || missing+=("$program")
  done
  [ ${#missing[@]} -eq 0 ] || { echo "missing: ${missing[*]}" >&2; return 1; }
  nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap --format=csv,noheader
  [ -e "$backend" ] || cmake --version | sed -n 1p
  "$here/dist/corral" --version
}

# The CUDA backend, where it did not come with the pack.
build() {
  if [ -e "$backend" ]; then
    echo "$backend was built elsewhere"
  else
    "$here/cuda.sh" "$here/ggml" "$work/cuda" "$here/dist/backends"
  fi
}

# That the program itself sees the GPU.
doctor() {
  local told
  told=$("$here/dist/corral" doctor)
  echo "$told"
  grep -qw "$device" <<<"$told" || { echo "corral doctor says nothing of $device" >&2; return 1; }
}

# One of the test binaries. They are not neighbours of their libraries.
run_test() {
  LD_LIBRARY_PATH=$here/dist${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$here/dist/tests/$1" --test-threads 4
}

# Tokens a second of each stage with so many requests at once.
stages() {
  local at_once=$1 requests
  requests=$((at_once < 8 ? 8 : 3 * at_once))
  "$here/dist/corral-bench" stages --model "$model" --plugins "$here/plugins" --device "$device" \
    --concurrency "$at_once" --requests "$requests" --rounds 5 --json
}

export -f look build doctor run_test stages

# A backend that was built elsewhere knows no folder of this machine: where CUDA's libraries are not the system's, they
# are looked for, and the loader is told. What one of them needs lies beside it.
find_libraries() {
  local name file
  for name in $(ldd "$backend" 2>/dev/null | awk '/not found/ && !/libggml/ { print $1 }'); do
    file=$(find /usr /opt "$HOME" -name "$name" -not -path '*/stubs/*' -print -quit 2>/dev/null || true)
    if [ -n "$file" ]; then
      say "takes $name from $(dirname "$file")"
      export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$(dirname "$file")
    else
      say "$name, which the CUDA backend needs, is not on this machine"
    fi
  done
}

# ---- step after step ----

state_of() { cut -d' ' -f1 "$work/state/$1" 2>/dev/null || true; }

# Writes the report of what was done so far, and ends.
finish() {
  report
  say "$2; the report is in $out"
  exit "$1"
}

# step NAME COMMAND…: does it, once. What it prints is kept in logs/NAME.out and NAME.err.
step() {
  local name=$1 began=$SECONDS left=$((limit - SECONDS - spare)) code=0 may
  shift
  [ ! -e "$work/state/$name" ] || return 0
  [ "$left" -ge "$least" ] || finish 75 "the time is up: start it again"
  may=$left
  [ "$name" = build ] || [ "$left" -le "$most" ] || may=$most
  say "$name, at most $may s"
  # What `timeout` runs is a process of its own: it knows the functions above, since they are exported.
  timeout "$may" bash -euo pipefail -c '"$@"' step "$@" >"$work/logs/$name.out" 2>"$work/logs/$name.err" || code=$?
  if [ "$code" = 124 ] && [ "$may" -lt "$most" ] && [ "$began" -gt 10 ]; then
    finish 75 "$name was stopped, as the time is up: start it again"
  elif [ "$code" = 124 ] && [ "$name" = build ]; then
    finish 75 "the build was stopped, and goes on where it was: start it again"
  elif [ "$code" = 0 ]; then
    echo "ok $((SECONDS - began))" >"$work/state/$name"
  else
    echo "failed $((SECONDS - began)) $code" >"$work/state/$name"
    say "$name failed ($code): $(tail -n 5 "$work/logs/$name.err")"
  fi
}

# The same, where there is nothing more to do without it. It is tried again the next time.
needed() {
  step "$@"
  [ "$(state_of "$1")" != ok ] || return 0
  report
  rm -f "$work/state/$1"
  say "without '$1' nothing else can be done; the report is in $out"
  exit 1
}

# All steps, in their order.
steps() {
  local test at_once
  echo look build doctor
  for test in dist/tests/*; do echo "test-${test##*/}"; done
  echo model
  for at_once in $streams; do echo "stages-$at_once"; done
}

# ---- the report ----

# A text as a string of JSON, its lines with semicolons between them.
quoted() { printf '"%s"' "$(tr '\n\t' '; ' | tr -d '\000-\037' | sed 's/; *$//; s/[\\"]/\\&/g')"; }

# The rows of `corral-bench stages --json` as a table.
table() {
  echo "| stage | what | tok/s | ratio to raw | least | most | µs CPU a token |"
  echo "|---|---|---|---|---|---|---|"
  tr '{' '\n' <"$1" | awk '
    function member(name,   rest) {
      if (!match($0, "\"" name "\":")) return ""
      rest = substr($0, RSTART + RLENGTH)
      if (substr(rest, 1, 1) == "\"") { rest = substr(rest, 2); sub(/".*/, "", rest) }
      else sub(/[],}].*/, "", rest)
      return rest
    }
    member("ratio") != "" {
      cpu = member("cpu_us_per_token")
      printf "| %s | %s | %.0f | %.3f | %.3f | %.3f | %s |\n", member("stage"), member("name"), member("tok_s"),
        member("ratio"), member("ratio_min"), member("ratio_max"), (cpu == "null" ? "" : sprintf("%.1f", cpu))
    }'
}

markdown() {
  local name state
  echo "# Corral on a GPU"
  echo
  sed 's/^/    /' "$work/logs/look.out" 2>/dev/null || true
  echo
  echo "| step | | seconds |"
  echo "|---|---|---|"
  for name in $(steps); do
    state=(not-done "")
    [ ! -e "$work/state/$name" ] || read -ra state <"$work/state/$name"
    echo "| $name | ${state[0]} | ${state[1]} |"
  done
  for name in $streams; do
    [ "$(state_of "stages-$name")" = ok ] || continue
    printf '\n## %s at once\n\n' "$name"
    table "$work/logs/stages-$name.out"
  done
}

json() {
  local name state separator=
  printf '{"machine":'
  quoted 2>/dev/null <"$work/logs/look.out"
  printf ',"device":'
  quoted <<<"$device"
  printf ',"steps":['
  for name in $(steps); do
    [ -e "$work/state/$name" ] || continue
    read -ra state <"$work/state/$name"
    printf '%s{"name":"%s","result":"%s","seconds":%s}' "$separator" "$name" "${state[0]}" "${state[1]}"
    separator=,
  done
  printf '],"benches":['
  separator=
  for name in $streams; do
    [ "$(state_of "stages-$name")" = ok ] || continue
    printf '%s' "$separator"
    tr -d '\n' <"$work/logs/stages-$name.out"
    separator=,
  done
  printf ']}\n'
}

log() {
  local name end
  for name in $(steps); do
    [ -e "$work/logs/$name.err" ] || continue
    echo "==== $name: $(cat "$work/state/$name" 2>/dev/null || echo "not done")"
    # Of a long one the end says what went wrong.
    for end in out err; do tail -c 100000 "$work/logs/$name.$end"; done
  done
}

report() {
  [ -e "$work/logs/look.out" ] || : >"$work/logs/look.out"
  markdown >"$out/report.md"
  json >"$out/report.json"
  log >"$out/log.txt"
}

needed look look
needed build build
find_libraries
needed doctor doctor
for test in dist/tests/*; do
  step "test-${test##*/}" run_test "${test##*/}"
done
needed model "$here/dist/corral-bench" model "$model"
for at_once in $streams; do
  step "stages-$at_once" stages "$at_once"
done

wrong=$(grep -l '^failed' "$work/state"/* | sed 's|.*/||' | paste -sd' ' || true)
[ -z "$wrong" ] || finish 1 "failed: $wrong"
finish 0 "everything ran and was right"
