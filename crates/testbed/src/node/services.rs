//! What kube-proxy and a load balancer do: Service addresses lead to ready endpoints, or else to those that still serve
//! while they terminate.
//!
//! The node listens on every Service address inside the cluster's namespace, where the whole range is local, and passes
//! bytes on. There is a listener only while an endpoint is ready, so that a Service without one refuses connections.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Service, ServicePort};
use k8s_openapi::api::discovery::v1::{EndpointConditions, EndpointSlice};
use kube::ResourceExt as _;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::NodeContext;

/// Connections through one Service address at a time: each costs two descriptors of the testbed's process.
const MAX_CONNECTIONS: usize = 1024;
/// As long as a client would try by itself.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Changes of Services and EndpointSlices that come together are taken together.
const SETTLE: Duration = Duration::from_millis(20);
/// Between attempts at what failed.
const RETRY: Duration = Duration::from_millis(500);
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Address to listen on → endpoints in use, sorted; never empty.
type Table = BTreeMap<SocketAddr, Vec<SocketAddr>>;

/// Keeps a listener for every Service address that has ready endpoints; never ends.
pub(super) async fn forward_services(context: Arc<NodeContext>) {
    let mut services = context.services.subscribe();
    let mut slices = context.slices.subscribe();
    let mut forwards: BTreeMap<SocketAddr, watch::Sender<Vec<SocketAddr>>> = BTreeMap::new();
    let mut tasks = JoinSet::new();
    loop {
        services.borrow_and_update();
        slices.borrow_and_update();
        let table = make_table(&context.services.all(), &context.slices.all());
        forwards.retain(|address, _| table.contains_key(address));
        let mut failed = false;
        for (address, endpoints) in table {
            if let Some(forward) = forwards.get(&address) {
                forward.send_if_modified(|now| {
                    let differs = *now != endpoints;
                    *now = endpoints;
                    differs
                });
                continue;
            }
            match listen(&context, address) {
                Ok(listener) => {
                    let (sender, receiver) = watch::channel(endpoints);
                    tasks.spawn(accept(listener, receiver));
                    forwards.insert(address, sender);
                }
                Err(error) => {
                    // the listener before it may not be closed yet
                    tracing::debug!(%address, %error, "not listening");
                    failed = true;
                }
            }
        }
        tokio::select! {
            _ = services.changed() => {}
            _ = slices.changed() => {}
            // one that is no longer wanted, after its last connection
            Some(_) = tasks.join_next() => {}
            () = sleep(RETRY), if failed => {}
        }
        sleep(SETTLE).await;
    }
}

pub(super) fn is_load_balancer(service: &Service) -> bool {
    let kind = service.spec.as_ref().and_then(|spec| spec.type_.as_deref());
    kind == Some("LoadBalancer") && service.metadata.deletion_timestamp.is_none()
}

pub(super) fn ingress_address(service: &Service) -> Option<IpAddr> {
    let balancer = service.status.as_ref()?.load_balancer.as_ref()?;
    balancer
        .ingress
        .as_ref()?
        .first()?
        .ip
        .as_ref()?
        .parse()
        .ok()
}

/// The cluster address and, for a load balancer, the one given to it.
fn service_addresses(service: &Service) -> Vec<IpAddr> {
    let cluster_ip = service
        .spec
        .as_ref()
        .and_then(|spec| spec.cluster_ip.as_deref());
    let cluster_ip = cluster_ip.and_then(|ip| ip.parse().ok());
    let balancer = is_load_balancer(service)
        .then(|| ingress_address(service))
        .flatten();
    cluster_ip.into_iter().chain(balancer).collect()
}

fn make_table(services: &[Arc<Service>], slices: &[Arc<EndpointSlice>]) -> Table {
    let mut table = Table::new();
    for service in services {
        let own: Vec<&EndpointSlice> = slices
            .iter()
            .filter(|slice| slice.namespace() == service.namespace())
            .filter(|slice| slice.labels().get(SERVICE_NAME) == Some(&service.name_any()))
            .map(|slice| &**slice)
            .collect();
        for port in service
            .spec
            .iter()
            .flat_map(|spec| spec.ports.iter().flatten())
        {
            let endpoints = endpoints_in_use(&own, port);
            let Ok(number) = u16::try_from(port.port) else {
                continue;
            };
            if endpoints.is_empty()
                || port
                    .protocol
                    .as_deref()
                    .is_some_and(|protocol| protocol != "TCP")
            {
                continue;
            }
            for address in service_addresses(service) {
                table.insert(SocketAddr::new(address, number), endpoints.clone());
            }
        }
    }
    table
}

/// The ready endpoints behind one port; where there is none, those that still serve while they terminate.
fn endpoints_in_use(slices: &[&EndpointSlice], port: &ServicePort) -> Vec<SocketAddr> {
    let ready = |conditions: &EndpointConditions| conditions.ready != Some(false);
    let last = |conditions: &EndpointConditions| {
        conditions.serving == Some(true) && conditions.terminating == Some(true)
    };
    let found = endpoints_that(slices, port, ready);
    if found.is_empty() {
        endpoints_that(slices, port, last)
    } else {
        found
    }
}

/// Slices carry the Service port's name and the resolved target port.
fn endpoints_that(
    slices: &[&EndpointSlice],
    port: &ServicePort,
    hold: impl Fn(&EndpointConditions) -> bool,
) -> Vec<SocketAddr> {
    let mut endpoints = Vec::new();
    let name = port.name.as_deref().unwrap_or_default();
    for slice in slices {
        let targets = slice.ports.iter().flatten();
        let mut target =
            targets.filter(|target| target.name.as_deref().unwrap_or_default() == name);
        let Some(target) = target.find_map(|target| u16::try_from(target.port?).ok()) else {
            continue;
        };
        let wanted = slice.endpoints.iter().filter(|endpoint| {
            let unset = EndpointConditions::default();
            hold(endpoint.conditions.as_ref().unwrap_or(&unset))
        });
        let addresses = wanted.flat_map(|endpoint| &endpoint.addresses);
        let parsed = addresses.filter_map(|address| address.parse::<IpAddr>().ok());
        endpoints.extend(parsed.map(|address| SocketAddr::new(address, target)));
    }
    endpoints.sort();
    endpoints.dedup();
    endpoints
}

/// The socket belongs to the cluster's namespace, whoever reads it.
fn listen(context: &NodeContext, address: SocketAddr) -> std::io::Result<TcpListener> {
    let listener = context.network.namespace.run(|| {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    })?;
    TcpListener::from_std(listener)
}

/// Listens until the sender of `endpoints` is gone. As with kube-proxy, connections that are there stay to their own end.
async fn accept(listener: TcpListener, endpoints: watch::Receiver<Vec<SocketAddr>>) {
    let mut wanted = endpoints.clone();
    let mut unwanted = pin!(async move { while wanted.changed().await.is_ok() {} });
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let next = AtomicUsize::new(0);
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let accepted = async {
            let slot = Arc::clone(&slots).acquire_owned().await;
            (slot, listener.accept().await)
        };
        let accepted = tokio::select! {
            () = &mut unwanted => break,
            accepted = accepted => accepted,
        };
        let (slot, client) = match accepted {
            (Ok(slot), Ok((client, _))) => (slot, client),
            (Err(_), _) => break,
            (Ok(_), Err(error)) => {
                tracing::warn!(%error, "connection not accepted");
                sleep(RETRY).await;
                continue;
            }
        };
        let endpoint = {
            let endpoints = endpoints.borrow();
            let turn = next.fetch_add(1, Ordering::Relaxed);
            turn.checked_rem(endpoints.len())
                .and_then(|nth| endpoints.get(nth).copied())
        };
        if let Some(endpoint) = endpoint {
            connections.spawn(async move {
                pass(client, endpoint).await;
                drop(slot);
            });
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn pass(mut client: TcpStream, endpoint: SocketAddr) {
    let Ok(Ok(mut server)) = timeout(CONNECT_LIMIT, TcpStream::connect(endpoint)).await else {
        // a reset, which is what the client would have had from the endpoint
        let _closed = client.set_zero_linger();
        return;
    };
    // best effort: tokens must not wait for each other
    let _quick = client
        .set_nodelay(true)
        .and_then(|()| server.set_nodelay(true));
    if copy_bidirectional(&mut client, &mut server).await.is_err() {
        let _closed = client.set_zero_linger();
        let _closed = server.set_zero_linger();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn mk_service(status: serde_json::Value) -> Arc<Service> {
        let service = json!({
            "metadata": {"name": "echo", "namespace": "ml"},
            "spec": {
                "type": "LoadBalancer", "clusterIP": "10.1.128.9",
                "ports": [{"name": "http", "port": 80, "targetPort": "web"}, {"name": "udp", "port": 53, "protocol": "UDP"}],
            },
            "status": status,
        });
        Arc::new(serde_json::from_value(service).unwrap())
    }

    fn mk_slice(name: &str, ready: bool) -> Arc<EndpointSlice> {
        let slice = json!({
            "metadata": {"name": "echo-x", "namespace": "ml", "labels": {SERVICE_NAME: name}},
            "addressType": "IPv4",
            "ports": [{"name": "other", "port": 1}, {"name": "http", "port": 8080}],
            "endpoints": [
                {"addresses": ["10.1.0.3"], "conditions": {"ready": true}},
                {"addresses": ["10.1.0.2"], "conditions": {"ready": ready}},
            ],
        });
        Arc::new(serde_json::from_value(slice).unwrap())
    }

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn both_addresses_lead_to_ready_endpoints_by_port_name() {
        let service = mk_service(json!({"loadBalancer": {"ingress": [{"ip": "10.1.192.1"}]}}));
        let table = make_table(&[service], &[mk_slice("echo", true)]);
        let endpoints = vec![address("10.1.0.2:8080"), address("10.1.0.3:8080")];
        let expected = [address("10.1.128.9:80"), address("10.1.192.1:80")]
            .map(|listen| (listen, endpoints.clone()));
        assert_eq!(table, Table::from(expected));
    }

    #[test]
    fn unready_endpoints_and_other_services_slices_are_left_out() {
        let table = make_table(
            &[mk_service(json!({}))],
            &[mk_slice("echo", false), mk_slice("other", true)],
        );
        assert_eq!(
            table,
            Table::from([(address("10.1.128.9:80"), vec![address("10.1.0.3:8080")])])
        );
    }

    #[test]
    fn an_address_leads_to_endpoints_that_terminate_only_where_none_is_ready() {
        let mk_slice = |others: serde_json::Value| -> Arc<EndpointSlice> {
            let mut slice = (*mk_slice("echo", true)).clone();
            slice.endpoints = serde_json::from_value(others).unwrap();
            Arc::new(slice)
        };
        let terminating =
            |serving: bool| json!({"ready": false, "serving": serving, "terminating": true});
        let leads_to = |slice| {
            let table = make_table(&[mk_service(json!({}))], &[slice]);
            table.into_values().next()
        };
        let only = json!([
            {"addresses": ["10.1.0.2"], "conditions": terminating(true)},
            {"addresses": ["10.1.0.3"], "conditions": terminating(false)},
        ]);
        assert_eq!(
            leads_to(mk_slice(only)),
            Some(vec![address("10.1.0.2:8080")])
        );
        let with_another = json!([
            {"addresses": ["10.1.0.2"], "conditions": terminating(true)},
            {"addresses": ["10.1.0.4"], "conditions": {"ready": true, "serving": true}},
        ]);
        assert_eq!(
            leads_to(mk_slice(with_another)),
            Some(vec![address("10.1.0.4:8080")])
        );
    }

    #[test]
    fn a_service_without_endpoints_is_not_listened_on() {
        assert!(make_table(&[mk_service(json!({}))], &[]).is_empty());
    }
}
