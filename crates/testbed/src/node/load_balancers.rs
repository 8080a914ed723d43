//! What a cloud does: an address of its own for each Service of type LoadBalancer.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use tokio::time::{sleep, timeout};

use super::NodeContext;
use super::services::{ingress_address, is_load_balancer};

/// One request to the API server.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// Between attempts at what failed.
const RETRY: Duration = Duration::from_millis(500);

/// Gives each Service of type LoadBalancer an address of its own; never ends.
pub(super) async fn assign_load_balancers(context: Arc<NodeContext>) {
    let mut pool = context.network.addresses.load_balancers();
    let mut given: BTreeMap<String, IpAddr> = BTreeMap::new();
    let mut changes = context.services.subscribe();
    loop {
        changes.borrow_and_update();
        let services = context.services.all();
        let wanted: BTreeMap<String, &Arc<Service>> = services
            .iter()
            .filter(|service| is_load_balancer(service))
            .filter_map(|service| Some((service.uid()?, service)))
            .collect();
        given.retain(|uid, address| {
            let stays = wanted.contains_key(uid);
            if !stays {
                pool.release(*address);
            }
            stays
        });
        let mut failed = false;
        for (uid, service) in wanted {
            if ingress_address(service).is_some() {
                continue;
            }
            let address = given
                .get(&uid)
                .copied()
                .or_else(|| pool.allocate().map(IpAddr::V4));
            let Some(address) = address else {
                tracing::warn!(service = %service.name_any(), "no load balancer address is free");
                continue;
            };
            given.insert(uid, address);
            failed |= !write_ingress(&context, service, address).await;
        }
        if failed {
            sleep(RETRY).await;
        } else if changes.changed().await.is_err() {
            return;
        }
    }
}

async fn write_ingress(context: &NodeContext, service: &Service, address: IpAddr) -> bool {
    let services: Api<Service> = Api::namespaced(
        context.client.clone(),
        &service.namespace().unwrap_or_default(),
    );
    let name = service.name_any();
    let patch = json!({
        "metadata": {"uid": service.uid()},
        "status": {"loadBalancer": {"ingress": [{"ip": address, "ipMode": "VIP"}]}},
    });
    let params = PatchParams::default();
    let patch = Patch::Merge(&patch);
    match timeout(REQUEST_LIMIT, services.patch_status(&name, &params, &patch)).await {
        Ok(Ok(_)) => true,
        Ok(Err(kube::Error::Api(error))) if error.code == 404 || error.code == 409 => true,
        Ok(Err(error)) => {
            tracing::warn!(service = name, %error, "address not written");
            false
        }
        Err(_) => false,
    }
}
