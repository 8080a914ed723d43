//! A pool that nobody serves: what only exports and imports needs no program.

use crate::cluster::Cluster;
use crate::error::TestbedError;

/// Target port of the pool.
pub const UNSERVED_PORT: u16 = 8000;

/// As each manifest says where a name stands.
const NAME: &str = "NAME";
const NAMESPACE: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: NAME}
";
/// No picker runs: the controller reads where one would be.
const POOL: &str = "
apiVersion: v1
kind: Service
metadata: {name: picker, namespace: NAME}
spec:
  ports: [{name: grpc-ext-proc, port: 9002}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: picker-by-hand, namespace: NAME, labels: {kubernetes.io/service-name: picker}}
addressType: IPv4
endpoints: [{addresses: [198.51.100.7], conditions: {ready: true}}]
ports: [{name: grpc-ext-proc, port: 9002}]
---
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata:
  name: NAME
  namespace: NAME
  annotations: {inference.networking.x-k8s.io/export: ClusterSet}
spec:
  selector: {matchLabels: {app: none}}
  targetPorts: [{number: PORT}]
  endpointPickerRef: {name: picker, port: {number: 9002}}
";

/// Adds a namespace: what is exported from another cluster's namespace of this name may then be imported.
///
/// # Errors
/// When the API server refuses or does not answer.
pub async fn add_namespace(cluster: &Cluster, name: &str) -> Result<(), TestbedError> {
    cluster.apply_yaml(&NAMESPACE.replace(NAME, name)).await
}

/// Adds a namespace with an exported pool of the same name, whose picker has an address and a ready endpoint.
///
/// # Errors
/// When the API server refuses or does not answer.
pub async fn export_unserved(cluster: &Cluster, name: &str) -> Result<(), TestbedError> {
    add_namespace(cluster, name).await?;
    let port = UNSERVED_PORT.to_string();
    let pool = POOL.replace(NAME, name).replace("PORT", &port);
    cluster.apply_yaml(&pool).await
}
