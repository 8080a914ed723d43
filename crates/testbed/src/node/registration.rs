//! The node as an object: registered, kept alive, and given the pods that wait for one.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Binding, Node, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Status};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::{MAX_PODS, NodeContext};

/// One request to the API server.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// As a kubelet's.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// Between attempts at what failed.
const RETRY: Duration = Duration::from_millis(500);

/// Registers the node, then repeats its heartbeat; never ends.
pub(super) async fn keep_registered(context: Arc<NodeContext>) {
    let nodes: Api<Node> = Api::all(context.client.clone());
    loop {
        match timeout(REQUEST_LIMIT, beat(&nodes, &context)).await {
            Ok(Ok(())) => sleep(HEARTBEAT).await,
            Ok(Err(error)) => {
                tracing::warn!(node = context.node_name, %error, "node not registered");
                sleep(RETRY).await;
            }
            Err(_) => {}
        }
    }
}

async fn beat(nodes: &Api<Node>, context: &NodeContext) -> kube::Result<()> {
    let status = make_status(context, Timestamp::now());
    let name = context.node_name.as_str();
    let patch = json!({"status": status});
    match nodes
        .patch_status(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
    {
        Err(kube::Error::Api(error)) if error.code == 404 => {}
        other => return other.map(|_| ()),
    }
    let pods = context.network.addresses.pod_cidr();
    let node = json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": std::env::consts::ARCH,
        }},
        "spec": {"podCIDR": pods, "podCIDRs": [pods]},
        "status": status,
    });
    let node = serde_json::from_value(node).map_err(kube::Error::SerdeError)?;
    nodes.create(&PostParams::default(), &node).await?;
    // admission marks every new node as not ready; here no controller takes that away
    let untainted = json!({"spec": {"taints": null}});
    nodes
        .patch(name, &PatchParams::default(), &Patch::Merge(&untainted))
        .await?;
    Ok(())
}

fn make_status(context: &NodeContext, now: Timestamp) -> Value {
    let capacity = json!({"cpu": "64", "memory": "256Gi", "pods": MAX_PODS.to_string()});
    json!({
        "capacity": capacity,
        "allocatable": capacity,
        "addresses": [
            {"type": "InternalIP", "address": context.network.addresses.node()},
            {"type": "Hostname", "address": context.node_name},
        ],
        "conditions": [{
            "type": "Ready",
            "status": "True",
            "reason": "TestbedReady",
            "message": "the simulated node runs inside the testbed",
            "lastHeartbeatTime": now.to_string(),
            "lastTransitionTime": context.started.to_string(),
        }],
        "nodeInfo": {
            "architecture": std::env::consts::ARCH,
            "bootID": "", "containerRuntimeVersion": "testbed://1", "kernelVersion": "",
            "kubeProxyVersion": "", "kubeletVersion": "v1.34.2", "machineID": "",
            "operatingSystem": "linux", "osImage": "testbed", "systemUUID": "",
        },
    })
}

/// Binds pods without a node to this one, the only one there is; never ends.
pub(super) async fn bind_pods(context: Arc<NodeContext>) {
    let mut changes = context.pods.subscribe();
    loop {
        changes.borrow_and_update();
        let pods = context.pods.all();
        let mut room =
            MAX_PODS.saturating_sub(pods.iter().filter(|pod| node_of(pod).is_some()).count());
        let mut failed = false;
        for pod in pods.iter().filter(|pod| is_unbound(pod)) {
            if room == 0 {
                tracing::warn!(pod = %pod.name_any(), "pending: the node has {MAX_PODS} pods");
                break;
            }
            room -= 1;
            failed |= !bind(&context, pod).await;
        }
        if failed {
            sleep(RETRY).await;
        } else if changes.changed().await.is_err() {
            return;
        }
    }
}

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

fn is_unbound(pod: &Pod) -> bool {
    let gated = pod.spec.as_ref().is_some_and(|spec| {
        spec.scheduling_gates
            .as_ref()
            .is_some_and(|gates| !gates.is_empty())
    });
    node_of(pod).is_none() && pod.metadata.deletion_timestamp.is_none() && !gated
}

/// False when it should be tried again.
async fn bind(context: &NodeContext, pod: &Pod) -> bool {
    let name = pod.name_any();
    let pods: Api<Pod> =
        Api::namespaced(context.client.clone(), &pod.namespace().unwrap_or_default());
    let binding = Binding {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            uid: pod.metadata.uid.clone(),
            ..ObjectMeta::default()
        },
        target: ObjectReference {
            kind: Some("Node".to_owned()),
            name: Some(context.node_name.clone()),
            ..ObjectReference::default()
        },
    };
    let params = PostParams::default();
    let posted = pods.create_subresource::<_, Status>("binding", &name, &params, &binding);
    match timeout(REQUEST_LIMIT, posted).await {
        Ok(Ok(_)) => true,
        // bound or gone already; the watch will tell
        Ok(Err(kube::Error::Api(error))) if error.code == 404 || error.code == 409 => true,
        Ok(Err(error)) => {
            tracing::warn!(pod = name, %error, "not bound");
            false
        }
        Err(_) => false,
    }
}
