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

# The clusters that up.sh makes.
known=(east west north south)

# number_of NAME: of the cluster's ranges of addresses. By its name, so that clusters that are added later get others.
number_of() {
  local index
  for index in "${!known[@]}"; do
    if [ "${known[$index]}" = "$1" ]; then
      echo $((index + 1))
      return
    fi
  done
  die "$1 is not one of ${known[*]}"
}

has_context() { kubectl config get-contexts --output=name | grep -x -- "$1" > /dev/null; }

# in_url ADDRESS: as it stands in a URL.
in_url() {
  case $1 in
    *:*) echo "[$1]" ;;
    *) echo "$1" ;;
  esac
}
