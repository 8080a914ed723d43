#!/usr/bin/env bash
# down.sh: deletes the clusters of up.sh.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need kind
existing=$(kind get clusters)
for cluster in "${known[@]}"; do
  if grep -x -- "isthmus-$cluster" <<< "$existing" > /dev/null; then
    kind delete cluster --name "isthmus-$cluster"
  fi
done
rm -rf "$state"
