#!/usr/bin/env bash
# down.sh: deletes the clusters of up.sh.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need kind
for cluster in "${known[@]}"; do
  if kind get clusters | grep -qx "isthmus-$cluster"; then
    kind delete cluster --name "isthmus-$cluster"
  fi
done
rm -rf "$state"
