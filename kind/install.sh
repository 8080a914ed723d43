#!/usr/bin/env bash
# install.sh [CLUSTER...]: Isthmus and a simulated pool in the clusters of any kubeconfig, by its contexts of these names
# (default: east west). The controller and a Gateway go to west, and east exports its pool. Again: upgrades.
#
# KUBECONFIG_OF_CLUSTERS  the kubeconfig (default: that of up.sh)
# SERVICE_TYPE            of the Gateways' Services: NodePort (default), ClusterIP, LoadBalancer
# IMAGES                  registry and path of the images of Isthmus, such as registry.example.com/isthmus (default: the nodes have them)
# ENVOY_IMAGE             REPOSITORY:TAG of the Gateways' Envoys (default: the chart's); it is on the nodes, where it names no registry
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need go helm kubectl kubectl-mci
clusters=("$@")
[ $# -gt 0 ] || clusters=(east west)
home=west
charts=$root/charts
system=(--namespace isthmus-system)
pool=(--namespace llm)
# what names no registry is on the nodes: it is never pulled, since that would be from Docker Hub
if [ -n "${IMAGES:-}" ]; then
  images=(--set "controller.image.registry=$IMAGES,controller.image.repository=mci-controller"
    --set "gateway.image.registry=$IMAGES,gateway.image.repository=gateway")
  pool_images=(--set "image.hub=$IMAGES")
else
  images=(--set "controller.image.pullPolicy=Never,gateway.image.pullPolicy=Never")
  pool_images=(--set "image.hub=isthmus,image.pullPolicy=Never")
fi
envoy=()
if [ -n "${ENVOY_IMAGE:-}" ]; then
  envoy=(--set "gateway.envoyImage.registry=,gateway.envoyImage.repository=${ENVOY_IMAGE%:*},gateway.envoyImage.tag=${ENVOY_IMAGE##*:}")
  case ${ENVOY_IMAGE%%/*} in
    *[.:]*) ;;
    *) envoy+=(--set gateway.gatewayClass.parameters.imagePullPolicy=Never) ;;
  esac
fi

module() { (cd "$root/e2e/tools/crds" && go mod download "$1" && go list -m -f '{{.Dir}}' "$1"); }
gateway_api=$(module sigs.k8s.io/gateway-api)
inference_extension=$(module sigs.k8s.io/gateway-api-inference-extension)

install_in() {
  local cluster=$1 namespace
  kubectl --context "$cluster" apply --server-side \
    -f "$gateway_api/config/crd/standard" \
    -f "$inference_extension/config/crd/bases/inference.networking.k8s.io_inferencepools.yaml"
  for namespace in isthmus-system llm; do
    kubectl create namespace "$namespace" --dry-run=client -o yaml |
      kubectl --context "$cluster" apply --server-side -f -
    kubectl --context "$cluster" label --overwrite namespace "$namespace" pod-security.kubernetes.io/enforce=restricted
  done
  helm upgrade --install isthmus-crds "$charts/isthmus-crds" --kube-context "$cluster" "${system[@]}"
  helm upgrade --install isthmus "$charts/isthmus" --kube-context "$cluster" "${system[@]}" --wait --timeout 3m \
    --set clusterName="$cluster" \
    --set controller.enabled="$([ "$cluster" = "$home" ] && echo true || echo false)" \
    --set gateway.gatewayClass.parameters.serviceType="${SERVICE_TYPE:-NodePort}" "${images[@]}" "${envoy[@]}"
  # the pickers' own addresses: the clusters' pods reach each other
  helm upgrade --install llama "$charts/isthmus-pool" --kube-context "$cluster" "${pool[@]}" --wait --timeout 3m \
    --set inferenceExtension.service.type=Headless "${pool_images[@]}" \
    --set inferenceExtension.resources.requests.cpu=100m \
    --set worker.kind=sim,worker.model=llama,worker.replicas=3 \
    --set 'worker.extraArgs={--time-to-first-token=20ms,--inter-token-latency=5ms}'
}

say "CRDs, Isthmus and a pool in each"
installs=()
for cluster in "${clusters[@]}"; do
  install_in "$cluster" 2>&1 | sed "s/^/$cluster: /" &
  installs+=($!)
done
for install in "${installs[@]}"; do wait "$install"; done

for cluster in "${clusters[@]}"; do
  say "$cluster: a member of the ClusterSet"
  server=()
  case $(kubectl --context "$cluster" config view --minify -o jsonpath='{.clusters[0].cluster.server}') in
    https://127.* | https://localhost:* | https://0.0.0.0:* | https://\[::*)
      # a port of this machine, as of kind; the API server's address among the nodes is in its own EndpointSlice
      read -r address port < <(kubectl --context "$cluster" get endpointslices -n default \
        -l kubernetes.io/service-name=kubernetes -o jsonpath='{.items[0].endpoints[0].addresses[0]} {.items[0].ports[0].port}{"\n"}') ||
        die "$cluster: the EndpointSlice of Service kubernetes in namespace default names no address"
      server=(--server "https://$(in_url "$address"):$port")
      ;;
  esac
  if [[ -n $(kubectl --context "$home" "${system[@]}" get secret "$cluster" --ignore-not-found -o name) ]]; then
    # it may have been made anew since it was a member
    uid=$(kubectl --context "$cluster" get namespace kube-system -o jsonpath='{.metadata.uid}')
    kubectl --context "$home" "${system[@]}" annotate --overwrite secret "$cluster" "isthmus.dev/accept-identity=$uid"
  fi
  # on a terminal join would ask about the networks of the pods that it finds, and prints
  kubectl mci join "$cluster" --context "$cluster" --home-context "$home" "${server[@]}" < /dev/null
done

say "$home: a Gateway whose route leads to the pool that east exports"
# the end-to-end tests write to the route, too
kubectl --context "$home" apply --server-side --force-conflicts -f "$root/config/samples/route.yaml"
kubectl --context "$home" wait "${pool[@]}" --for=condition=Programmed --timeout=120s gateway/inference
kubectl mci export llm/llama --context east --wait
kubectl --context "$home" get inferencepoolimports --all-namespaces
