#!/usr/bin/env bash
# Hosts behind HAProxy, which sends the requests of a session to the same host: see haproxy.cfg. Arguments go to every host.
# shellcheck source=hosts.sh
source "$(dirname "$0")/hosts.sh"
need haproxy "on Debian: apt-get install haproxy"

start_hosts --plugin "/=$PLUGINS/openai.wasm" --error-format /=openai "$@"
start haproxy haproxy -db -f haproxy.cfg
ready "http://$ROUTER/readyz"
serve_until_stopped "http://$ROUTER"
