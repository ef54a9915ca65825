#!/usr/bin/env bash
# On a machine with an NVIDIA GPU and its compiler, without a network: builds llama.cpp's CUDA backend, tests Corral on
# the GPU, and benchmarks it. Part of the archive of pack.sh; see README.md.
#
#   ./run.sh [--out DIR] [--work DIR] [--limit SECONDS] [--device NAME]
#
# --out     the directory of report.md, report.json and log.txt, also of an unfinished run (default report/ here)
# --work    the directory of builds and the results of steps (default work/ here)
# --limit   seconds until this run ends; the next run continues (default 540)
# --device  the device, as `corral doctor` lists it (default CUDA0)
#
# Exits with 0 if all steps succeeded, 1 if one failed, 75 if steps remain. To repeat a failed step, remove its file in
# the work directory's state/.
#
# The steps call functions in other processes:
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
    *) say "'$1' is unknown or has no value; see the head of this script"; exit 2 ;;
  esac
  shift 2
done
[ -x "$here/dist/corral" ] || { say "dist/corral is missing; run this script in the unpacked archive of pack.sh"; exit 2; }
mkdir -p "$out" "$work"/{state,logs,tmp}
out=$(cd "$out" && pwd)
work=$(cd "$work" && pwd)
cd "$here"

readonly streams="1 8 32 64 128 256"
# Most seconds of a step. The build takes the rest of the limit, and continues in the next run.
readonly max_step=480
# Seconds reserved for the report, and fewest seconds to start a step.
readonly reserve=15 min_step=30

# CMake of the system, of a Python package, or of the archive.
python=$(command -v python3 || true)
export PATH=$PATH:${python:+$(dirname "$python"):}$here/cmake/bin
export TMPDIR=$work/tmp
export here work device model=$work/qwen3-0.6b.gguf backend=$here/dist/backends/libggml-cuda.so
# The environment of the tests.
export CORRAL_BIN=$here/dist/corral CORRAL_PLUGINS=$here/plugins CORRAL_MODEL=$here/model/tiny.gguf
export CORRAL_TEST_DEVICE=$device CORRAL_TEST_BACKENDS=$here/dist/backends

# ---- steps: `step` calls these in processes of their own ----

# Lists the hardware and checks that the packed binary runs.
inspect() {
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

# Builds the CUDA backend, unless it is prebuilt.
build() {
  if [ -e "$backend" ]; then
    echo "$backend is prebuilt"
  else
    "$here/cuda.sh" "$here/ggml" "$work/cuda" "$here/dist/backends"
  fi
}

# Checks that the program finds the GPU.
doctor() {
  local devices
  devices=$("$here/dist/corral" doctor)
  echo "$devices"
  grep -qw "$device" <<<"$devices" || { echo "corral doctor does not list $device" >&2; return 1; }
}

# Runs a test binary; its libraries are in another directory. Other files of `generation` need programs that are not here.
run_test() {
  local files=()
  [ "$1" != generation ] || files=(generate:: guest_sampling::)
  LD_LIBRARY_PATH=$here/dist${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$here/dist/tests/$1" "${files[@]}" --test-threads 4
}

# Benchmarks all stages with this many concurrent requests.
stages() {
  local concurrency=$1 requests
  requests=$((concurrency < 8 ? 8 : 3 * concurrency))
  "$here/dist/corral-bench" stages --model "$model" --plugins "$here/plugins" --device "$device" \
    --concurrency "$concurrency" --requests "$requests" --rounds 5 --json
}

export -f inspect build doctor run_test stages

# A prebuilt backend has no rpath to CUDA's libraries. Finds those that the system does not know and sets LD_LIBRARY_PATH.
# Their dependencies lie in the same directories.
find_libraries() {
  local name file
  for name in $(ldd "$backend" 2>/dev/null | awk '/not found/ && !/libggml/ { print $1 }'); do
    file=$(find /usr /opt "$HOME" -name "$name" -not -path '*/stubs/*' -print -quit 2>/dev/null || true)
    if [ -n "$file" ]; then
      say "using $name from $(dirname "$file")"
      export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$(dirname "$file")
    else
      say "$name, which the CUDA backend needs, is missing on this machine"
    fi
  done
}

# ---- running steps ----

state_of() { cut -d' ' -f1 "$work/state/$1" 2>/dev/null || true; }

# Writes the report and exits.
finish() {
  report
  say "$2; the report is in $out"
  exit "$1"
}

# step NAME COMMAND…: runs a step once. Its output goes to logs/NAME.out and NAME.err.
step() {
  local name=$1 start=$SECONDS left=$((limit - SECONDS - reserve)) code=0 seconds
  shift
  [ ! -e "$work/state/$name" ] || return 0
  [ "$left" -ge "$min_step" ] || finish 75 "the time limit is reached: run again"
  seconds=$left
  [ "$name" = build ] || [ "$left" -le "$max_step" ] || seconds=$max_step
  say "$name, at most $seconds s"
  # `timeout` starts a process, which gets the exported functions.
  timeout "$seconds" bash -euo pipefail -c '"$@"' step "$@" >"$work/logs/$name.out" 2>"$work/logs/$name.err" || code=$?
  if [ "$code" = 124 ] && [ "$seconds" -lt "$max_step" ] && [ "$start" -gt 10 ]; then
    finish 75 "$name was stopped at the time limit: run again"
  elif [ "$code" = 124 ] && [ "$name" = build ]; then
    finish 75 "the build was stopped and will continue: run again"
  elif [ "$code" = 0 ]; then
    echo "ok $((SECONDS - start))" >"$work/state/$name"
  else
    echo "failed $((SECONDS - start)) $code" >"$work/state/$name"
    say "$name failed ($code): $(tail -n 5 "$work/logs/$name.err")"
  fi
}

# Runs a step that all later ones need. The next run repeats it after a failure.
needed() {
  step "$@"
  [ "$(state_of "$1")" != ok ] || return 0
  report
  rm -f "$work/state/$1"
  say "the later steps need '$1'; the report is in $out"
  exit 1
}

# All steps in order.
steps() {
  local test concurrency
  echo inspect build doctor
  for test in dist/tests/*; do echo "test-${test##*/}"; done
  echo model
  for concurrency in $streams; do echo "stages-$concurrency"; done
}

# ---- the report ----

# Prints a text as a JSON string, with semicolons for newlines.
quoted() { printf '"%s"' "$(tr '\n\t' '; ' | tr -d '\000-\037' | sed 's/; *$//; s/[\\"]/\\&/g')"; }

# Prints the JSON of `corral-bench stages` as a table.
table() {
  echo "| stage | name | tok/s | ratio to raw | min | max | CPU µs/token |"
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
      printf "| %s | %s | %.0f | %.3f | %.3f | %.3f | %s |\n", member("stage"), member("name"), member("tokens_per_second"),
        member("ratio"), member("ratio_min"), member("ratio_max"), (cpu == "null" ? "" : sprintf("%.1f", cpu))
    }'
}

markdown() {
  local name state
  echo "# Corral on a GPU"
  echo
  sed 's/^/    /' "$work/logs/inspect.out" 2>/dev/null || true
  echo
  echo "| step | | seconds |"
  echo "|---|---|---|"
  for name in $(steps); do
    state=(pending "")
    [ ! -e "$work/state/$name" ] || read -ra state <"$work/state/$name"
    echo "| $name | ${state[0]} | ${state[1]} |"
  done
  for name in $streams; do
    [ "$(state_of "stages-$name")" = ok ] || continue
    printf '\n## %s concurrent requests\n\n' "$name"
    table "$work/logs/stages-$name.out"
  done
}

json() {
  local name state separator=
  printf '{"machine":'
  quoted 2>/dev/null <"$work/logs/inspect.out"
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
    echo "==== $name: $(cat "$work/state/$name" 2>/dev/null || echo "pending")"
    # The end of a long log names the error.
    for end in out err; do tail -c 100000 "$work/logs/$name.$end"; done
  done
}

report() {
  [ -e "$work/logs/inspect.out" ] || : >"$work/logs/inspect.out"
  markdown >"$out/report.md"
  json >"$out/report.json"
  log >"$out/log.txt"
}

needed inspect inspect
needed build build
find_libraries
needed doctor doctor
for test in dist/tests/*; do
  step "test-${test##*/}" run_test "${test##*/}"
done
needed model "$here/dist/corral-bench" model "$model"
for concurrency in $streams; do
  step "stages-$concurrency" stages "$concurrency"
done

failed=$(grep -l '^failed' "$work/state"/* | sed 's|.*/||' | paste -sd' ' || true)
[ -z "$failed" ] || finish 1 "failed: $failed"
finish 0 "all steps succeeded"
