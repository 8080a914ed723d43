//! ClusterProperty (about.k8s.io, KEP-2149): what a cluster says of itself. Only what we read.

use kube::CustomResource;
use serde::{Deserialize, Serialize};

/// Name of the property that names the ClusterSet a cluster belongs to.
pub const CLUSTERSET: &str = "clusterset.k8s.io";
/// Versions of the API that may be served, the newest first; the field that we read is the same in all.
pub const VERSIONS: [&str; 2] = ["v1beta1", "v1alpha1"];

/// The property's value.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "about.k8s.io",
    version = "v1beta1",
    kind = "ClusterProperty",
    plural = "clusterproperties",
    schema = "disabled"
)]
pub struct ClusterPropertySpec {
    /// Free text.
    #[serde(default)]
    pub value: String,
}
