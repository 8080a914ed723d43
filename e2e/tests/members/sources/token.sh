#!/bin/sh
# A credential plugin: prints the token that lies in a file of the cluster's name, with the life in seconds that it is to
# have from now on.
set -eu
cluster=$(printf %s "$KUBERNETES_EXEC_INFO" | sed -n 's/.*"clusterName":"\([a-z0-9-]*\)".*/\1/p')
read -r token life < "$TOKENS/$cluster"
end=$(date -u -d "@$(($(date +%s) + life))" +%Y-%m-%dT%H:%M:%SZ)
cat <<END
{
  "apiVersion": "client.authentication.k8s.io/v1",
  "kind": "ExecCredential",
  "status": {"token": "$token", "expirationTimestamp": "$end"}
}
END
