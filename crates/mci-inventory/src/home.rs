//! The home cluster: where the lease, the inventory's objects and the identities of members are.

use kube::{Client, Config};

/// The home cluster, once it has answered. Cheap to clone.
#[derive(Clone)]
pub struct Home {
    /// Reads and writes there, for the life of the program.
    pub client: Client,
    /// What the client is made of: home may be a member as well.
    pub config: Config,
    /// Where our lease, Secrets and ConfigMap are.
    pub namespace: String,
    /// Uid of its `kube-system` namespace: the cluster's identity.
    pub uid: String,
}

/// Name of the Lease whose holder is the one controller of a ClusterSet that writes; it is in home's namespace.
pub fn lease_name(clusterset: &str) -> String {
    format!("isthmus-mci-{clusterset}")
}

// === impl Home ===

#[cfg(any(test, feature = "fixtures"))]
impl Home {
    /// A home behind this client.
    pub fn for_tests(client: Client) -> Self {
        Self {
            client,
            config: Config::new(http::Uri::from_static("https://192.0.2.1:6443")),
            namespace: "isthmus-system".to_owned(),
            uid: "home".to_owned(),
        }
    }
}
