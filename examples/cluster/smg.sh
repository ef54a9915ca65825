#!/usr/bin/env bash
# Hosts behind SMG, which sends requests that begin alike to the same host. Arguments go to every host.
# shellcheck source=hosts.sh
source "$(dirname "$0")/hosts.sh"
need smg "pip install smg==1.13.0"

# SMG asks /health and /v1/models, which the plugin `openai` answers, and /v1/loads, which --metrics-public serves.
start_hosts --plugin "/=$PLUGINS/openai.wasm" --error-format /=openai --metrics-public "$@"
# SMG serves metrics of its own, on port 29000 and all interfaces unless told otherwise. The tokenizers that it would load
# are for workers that speak gRPC.
start smg smg launch --host 127.0.0.1 --port "$port" --worker-urls "${urls[@]}" --policy cache_aware \
  --health-check-interval-secs 2 --disable-tokenizer-autoload --prometheus-host 127.0.0.1 --prometheus-port $((port + 20)) \
  --log-level warn
ready "http://$ROUTER/readiness"
serve_until_stopped "http://$ROUTER"
