# shellcheck shell=bash
# What the scripts share: where things are, and the clusters by the names of their contexts.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
state=$root/target/kind
# of their own: what the user's kubeconfig holds is not touched
KUBECONFIG=$(realpath -m "${KUBECONFIG_OF_CLUSTERS:-$state/kubeconfig}")
export KUBECONFIG
# the plugin, as it is built in the checkout
PATH=$PATH:$root/target/release

say() { printf '\n== %s\n' "$*"; }
die() {
  echo "$*" >&2
  exit 1
}

need() {
  local tool
  for tool in "$@"; do
    command -v "$tool" > /dev/null || die "$tool is not on PATH: see docs/kind.md"
  done
}
