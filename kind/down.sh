#!/usr/bin/env bash
# down.sh: deletes the clusters of up.sh.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need kind
for name in $(kind get clusters | grep '^isthmus-' || true); do
  kind delete cluster --name "$name"
done
rm -rf "$state"
