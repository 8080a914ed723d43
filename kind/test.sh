#!/usr/bin/env bash
# test.sh [FILTER]: the end-to-end tests that need no more of clusters than a kubeconfig and a URL, on those of up.sh.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need cargo kubectl
address=$(kubectl --context west get nodes \
  -o jsonpath='{.items[0].status.addresses[?(@.type=="InternalIP")].address}')
port=$(kubectl --context west get services -n llm -l gateway.networking.k8s.io/gateway-name=inference \
  -o jsonpath='{.items[0].spec.ports[0].nodePort}')
export ISTHMUS_E2E_KUBECONFIG=$KUBECONFIG
# a node may have an address of each family
export ISTHMUS_E2E_GATEWAY=${ISTHMUS_E2E_GATEWAY:-http://$(in_url "${address%% *}"):$port}
cd "$root"
exec cargo test --locked --package e2e --test anywhere -- "$@"
