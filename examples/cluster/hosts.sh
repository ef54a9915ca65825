# shellcheck shell=bash
# Sourced by the scripts of this directory. Starts hosts with the demo model on 127.0.0.1; when the script ends, all that it
# started ends, and its files are removed.
#
#   HOSTS     hosts, 1 to 3 (default 3)
#   PORT      port of the router (default 8080); host N has its admin listener at PORT+N and serves at PORT+10+N
#   PLUGINS   directory of the components, as `make env` prints it
#
# It needs corral in PATH. `log` and `pid` are of the process that `start` started last.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")"
hosts=${HOSTS:-3}
port=${PORT:-8080}
urls=()
export ROUTER=127.0.0.1:$port
export HOST_1=127.0.0.1:$((port + 11)) HOST_2=127.0.0.1:$((port + 12)) HOST_3=127.0.0.1:$((port + 13))

die() { echo "${0##*/}: $*" >&2; exit 1; }

# need PROGRAM HOW: PROGRAM is in PATH, or the script says how to get it.
need() { command -v "$1" >/dev/null || die "$1 is not in PATH: $2"; }

need curl "install it"
need corral "run 'eval \"\$(make -s env)\"' in the checkout, after 'make plugins'"
[ -f "${PLUGINS:-}/openai.wasm" ] || die "PLUGINS has to name the directory with openai.wasm: see 'make env'"
[[ $hosts =~ ^[123]$ ]] || die "HOSTS is '$hosts'; expected 1, 2 or 3"

work=$(mktemp -d)
stop() {
  local pids
  pids=$(jobs -p)
  # shellcheck disable=SC2086
  [ -z "$pids" ] || kill $pids 2>/dev/null || true
  wait
  rm -rf "$work"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# start NAME COMMAND...: starts a process in the background, with its output in a file.
start() {
  log=$work/$1.log
  shift
  "$@" >"$log" 2>&1 </dev/null &
  pid=$!
}

# ready URL: waits, for at most a minute, until the process answers there.
ready() {
  for _ in $(seq 600); do
    kill -0 "$pid" 2>/dev/null || break
    if curl --noproxy '*' -sf "$1" >/dev/null; then return; fi
    sleep 0.1
  done
  cat "$log" >&2
  die "nothing answered at $1"
}

# start_hosts ARGUMENT...: starts the hosts, each with these arguments. `STORE` in them becomes a directory of the host.
start_hosts() {
  local host arguments
  for host in $(seq "$hosts"); do
    arguments=("${@/#STORE/$work/store-$host}")
    start "host-$host" corral serve --model ../../models/tiny/tiny.gguf --threads 1 \
      --listen "127.0.0.1:$((port + 10 + host))" --admin "127.0.0.1:$((port + host))" "${arguments[@]}"
    # One after another, so that the first compiles the plugin for all.
    ready "http://127.0.0.1:$((port + 10 + host))/readyz"
    urls+=("http://127.0.0.1:$((port + 10 + host))")
    echo "host $host at ${urls[-1]}, admin listener at http://127.0.0.1:$((port + host)), process $pid"
  done
}

# serve_until_stopped URL: says what to try, and waits until the router ends (without one, the last host) or the script is
# stopped.
serve_until_stopped() {
  echo "try: curl -s $1/v1/chat/completions -H 'content-type: application/json' \\"
  echo "  -d '{\"model\": \"tiny\", \"messages\": [{\"role\": \"user\", \"content\": \"12+7=\"}]}'"
  echo "output of all processes in $work; Ctrl-C stops them"
  wait "$pid" || { cat "$log" >&2; die "it ended"; }
}
