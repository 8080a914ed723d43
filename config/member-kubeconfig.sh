#!/bin/sh
# Prints the kubeconfig that the controller reaches a member with: the token of the account of config/rbac/member.yaml, and the
# member's address and certificate authority, as data.
#
#   config/member-kubeconfig.sh CONTEXT [NAMESPACE]
set -eu
context=${1:?name the kubectl context of the member}
namespace=${2:-isthmus-system}

of_cluster() {
  kubectl --context "$context" config view --raw --minify --flatten -o jsonpath="{.clusters[0].cluster.$1}"
}

server=$(of_cluster server)
authority=$(of_cluster certificate-authority-data)
token=$(kubectl --context "$context" --namespace "$namespace" create token isthmus-mci-controller --duration=8760h)
cat <<KUBECONFIG
apiVersion: v1
kind: Config
current-context: member
clusters: [{name: member, cluster: {server: "$server", certificate-authority-data: "$authority"}}]
users: [{name: member, user: {token: "$token"}}]
contexts: [{name: member, context: {cluster: member, user: member}}]
KUBECONFIG
