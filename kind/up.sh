#!/usr/bin/env bash
# up.sh [CLUSTER...]: kind clusters (default: east west; also north and south) whose pods reach each other, with Isthmus, a
# simulated pool in each, and west's gateway leading to the pool that east exports. Again: what is there stays, what a run
# that was interrupted left undone is done, and what changed is installed.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need docker go helm kind kubectl kubectl-mci
clusters=("$@")
[ $# -gt 0 ] || clusters=(east west)
for cluster in "${clusters[@]}"; do number_of "$cluster" > /dev/null; done
for cluster in east west; do
  [[ " ${clusters[*]} " = *" $cluster "* ]] || die "$cluster is missing: the pool of east is used by way of west"
done
mkdir -p "$state"

# What follows the making of a cluster, and a run that ended in between has left undone.
finish() {
  local name=isthmus-$1
  if ! has_context "$1"; then
    kind export kubeconfig --name "$name" || return
    kubectl config rename-context "kind-$name" "$1" || return
  fi
  kubectl --context "$1" wait --for=condition=Ready nodes --all --timeout=3m
}

# Programs start anew, by the images that are on the nodes now.
restart() {
  local namespace
  for namespace in isthmus-system llm; do
    kubectl --context "$1" -n "$namespace" get deployments -o name |
      xargs -r kubectl --context "$1" -n "$namespace" rollout restart
  done
}

for cluster in "${clusters[@]}"; do
  name=isthmus-$cluster
  number=$(number_of "$cluster")
  if ! kind get clusters | grep -x -- "$name" > /dev/null; then
    say "$cluster: a cluster with pods in 10.20$number.0.0/16"
    # kind takes away only contexts that have kept its name
    ! has_context "$cluster" || kubectl config delete-context "$cluster"
    kind create cluster --name "$name" --wait 3m --config - << END
kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
networking: {podSubnet: 10.20$number.0.0/16, serviceSubnet: 10.21$number.0.0/16}
END
    rm -f "$state/images-$cluster"
  fi
  finish "$cluster" || die "$name is not whole: kind delete cluster --name $name, and run this again"
done

say "images of target/images (by cargo xtask images)"
compgen -G "$root/target/images/*.tar" > /dev/null || die "there are none: run cargo xtask images"
images=$(cat "$root"/target/images/*.tar | sha256sum)
for cluster in "${clusters[@]}"; do
  loaded=$state/images-$cluster
  if [ -e "$loaded" ] && [ "$(cat "$loaded")" = "$images" ]; then
    echo "$cluster has them"
    continue
  fi
  for archive in "$root"/target/images/*.tar; do
    kind load image-archive "$archive" --name "isthmus-$cluster"
  done
  # they have the names of those before: nobody else notices
  [ ! -e "$loaded" ] || restart "$cluster"
  echo "$images" > "$loaded"
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
