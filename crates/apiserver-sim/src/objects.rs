//! Objects as users of a cluster write them.

use serde_json::{Value, json};

use crate::{
    kinds::{ENDPOINT_SLICES, NAMESPACES, POOLS, SERVICES},
    server::Server,
};

/// Annotation that exports a pool.
pub const EXPORT: &str = crd::annotations::EXPORT;
/// Name of the EPP Service of each pool.
pub const EPP: &str = "epp";

/// A pool of this name, exported.
pub fn exported_pool(namespace: &str, name: &str) -> Value {
    let mut pool = pool(namespace, name);
    pool["metadata"]["annotations"] = json!({EXPORT: crd::annotations::EXPORT_CLUSTER_SET});
    pool
}

/// A pool of this name.
pub fn pool(namespace: &str, name: &str) -> Value {
    json!({
        "metadata": {"namespace": namespace, "name": name},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "targetPorts": [{"number": 8000}],
            "endpointPickerRef": {"name": EPP, "port": {"number": 9002}, "failureMode": "FailOpen"},
        },
    })
}

/// A Service of type LoadBalancer with this address.
pub fn load_balancer(namespace: &str, name: &str, address: &str) -> Value {
    json!({
        "metadata": {"namespace": namespace, "name": name},
        "spec": {
            "type": "LoadBalancer", "clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"],
            "ports": [
                {"name": "grpc", "port": 9002, "protocol": "TCP", "appProtocol": "kubernetes.io/h2c"},
                {"name": "health", "port": 9003, "protocol": "TCP"},
                {"name": "metrics", "port": 9090, "protocol": "TCP"},
            ],
        },
        "status": {"loadBalancer": {"ingress": [{"ip": address}]}},
    })
}

/// The EndpointSlice of a Service with these ready addresses.
pub fn endpoint_slice(namespace: &str, service: &str, ready: &[&str]) -> Value {
    let endpoints: Vec<Value> = ready
        .iter()
        .map(|ip| json!({"addresses": [ip], "conditions": {"ready": true}}))
        .collect();
    json!({
        "metadata": {"namespace": namespace, "name": format!("{service}-1"),
            "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{"name": "grpc", "port": 9002, "protocol": "TCP"}],
    })
}

// === impl Server ===

impl Server {
    /// A namespace with an EPP behind a load balancer of this address: all that an exported pool refers to.
    pub fn add_epp(&self, namespace: &str, address: &str) {
        self.put(&NAMESPACES, json!({"metadata": {"name": namespace}}));
        self.put(&SERVICES, load_balancer(namespace, EPP, address));
        self.put(
            &ENDPOINT_SLICES,
            endpoint_slice(namespace, EPP, &["10.0.0.1"]),
        );
    }

    /// Exports a pool; one that is there is annotated.
    pub fn export(&self, namespace: &str, name: &str) {
        let there = self.edit(&POOLS, namespace, name, |pool| {
            pool["metadata"]["annotations"][EXPORT] = crd::annotations::EXPORT_CLUSTER_SET.into();
        });
        if !there {
            self.put(&POOLS, exported_pool(namespace, name));
        }
    }

    /// Takes the annotation away.
    pub fn unexport(&self, namespace: &str, name: &str) {
        self.edit(&POOLS, namespace, name, |pool| {
            if let Some(annotations) = pool
                .pointer_mut("/metadata/annotations")
                .and_then(Value::as_object_mut)
            {
                annotations.remove(EXPORT);
            }
        });
    }

    /// Names of the entries of an import, sorted: the list is a map. Empty also where there is none.
    pub fn entries(&self, namespace: &str, name: &str) -> Vec<String> {
        let text = self.text(&crate::kinds::IMPORTS, namespace, name);
        entries_of(text.as_ref().map_or(b"", |(_, text)| text))
    }

    /// An entry of an import.
    pub fn entry(&self, namespace: &str, name: &str, cluster: &str) -> Option<Value> {
        let import = self.get(&crate::kinds::IMPORTS, namespace, name)?;
        let entries = import.pointer("/status/clusters")?.as_array()?;
        entries
            .iter()
            .find(|entry| entry.get("name").is_some_and(|one| one == cluster))
            .cloned()
    }

    /// `status/reason` of a condition in a list such as an entry's.
    pub fn exported_condition(&self, namespace: &str, name: &str) -> Option<String> {
        let pool = self.get(&POOLS, namespace, name)?;
        let parents = pool.pointer("/status/parents")?.as_array()?;
        let ours = parents.iter().find(|parent| {
            parent
                .get("controllerName")
                .is_some_and(|one| one == crd::annotations::MCI_CONTROLLER)
        })?;
        condition(ours, crd::conditions::EXPORTED)
    }
}

/// Names of the entries in an import's JSON text, sorted.
pub fn entries_of(text: &[u8]) -> Vec<String> {
    #[derive(Default, serde::Deserialize)]
    #[serde(default)]
    struct Import {
        status: Status,
    }
    #[derive(Default, serde::Deserialize)]
    #[serde(default)]
    struct Status {
        clusters: Vec<Entry>,
    }
    #[derive(serde::Deserialize)]
    struct Entry {
        name: String,
    }
    // what was never written has no entries
    let import: Import = serde_json::from_slice(text).unwrap_or_default();
    let entries = import.status.clusters.into_iter();
    let mut names: Vec<String> = entries.map(|entry| entry.name).collect();
    names.sort_unstable();
    names
}

/// `status/reason` of a condition of an object or entry.
pub fn condition(holder: &Value, type_: &str) -> Option<String> {
    let conditions = holder.get("conditions")?.as_array()?;
    let found = conditions
        .iter()
        .find(|one| one.get("type").is_some_and(|name| name == type_))?;
    let text = |field: &str| found.get(field).and_then(Value::as_str).unwrap_or_default();
    Some(format!("{}/{}", text("status"), text("reason")))
}
