#!/usr/bin/env bash
# test.sh [FILTER]: the end-to-end tests that need no more of clusters than a kubeconfig and a URL, on those of up.sh.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need cargo kubectl
port=$(kubectl --context west get services -n llm -l gateway.networking.k8s.io/gateway-name=inference \
  -o jsonpath='{.items[0].spec.ports[0].nodePort}')
export ISTHMUS_E2E_KUBECONFIG=$KUBECONFIG
export ISTHMUS_E2E_GATEWAY=${ISTHMUS_E2E_GATEWAY:-http://$(node_address west):$port}
cd "$root"
exec cargo test --locked --package e2e --test anywhere -- "$@"
