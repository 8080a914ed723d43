#!/usr/bin/env bash
# up.sh [CLUSTER...]: kind clusters (default: east west; north is the third) whose pods reach each other, with Isthmus, a
# simulated pool in each, and west's gateway leading to the pool that east exports. Again: what is there stays, and what
# changed is installed.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need docker go helm kind kubectl kubectl-mci
clusters=("$@")
[ $# -gt 0 ] || clusters=(east west)
mkdir -p "$state"

number=0
for cluster in "${clusters[@]}"; do
  number=$((number + 1))
  if ! kind get clusters | grep -qx "isthmus-$cluster"; then
    say "$cluster: a cluster with pods in 10.20$number.0.0/16"
    kind create cluster --name "isthmus-$cluster" --wait 3m --config - << END
kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
networking: {podSubnet: 10.20$number.0.0/16, serviceSubnet: 10.21$number.0.0/16}
END
    kubectl config rename-context "kind-isthmus-$cluster" "$cluster"
  fi
done

say "images of target/images (by cargo xtask images)"
for archive in "$root"/target/images/*.tar; do
  [ -e "$archive" ] || die "there are none: run cargo xtask images"
  for cluster in "${clusters[@]}"; do
    kind load image-archive "$archive" --name "isthmus-$cluster"
  done
done

say "routes between their pods"
for from in "${clusters[@]}"; do
  for to in "${clusters[@]}"; do
    [ "$from" != "$to" ] || continue
    kubectl --context "$to" get nodes -o jsonpath='{range .items[*]}{.spec.podCIDR} via {.status.addresses[?(@.type=="InternalIP")].address}{"\n"}{end}' |
      while read -r route; do
        for node in $(kind get nodes --name "isthmus-$from"); do
          # shellcheck disable=SC2086 # a route is several words
          docker exec "$node" ip route replace $route < /dev/null
        done
      done
  done
done

# that of cargo xtask images --envoy, where it is there
envoy=$root/target/images/envoy.tar
if [ -e "$envoy" ]; then
  ENVOY_IMAGE=$(tar -xOf "$envoy" index.json | grep -o 'isthmus/envoy:[^"]*')
  export ENVOY_IMAGE
fi
"$root/kind/install.sh" "${clusters[@]}"
