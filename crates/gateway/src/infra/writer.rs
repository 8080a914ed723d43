//! Applies infrastructure by server-side apply, but not over what is another's.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::Notify;

use crate::metrics::{WriteMetrics, WriteResult};
use crate::world::Key;

use super::{Part, controlling_gateway};

/// A write that is under way.
type Writing = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// Objects of others that stand where ours should be.
#[derive(Clone, Default)]
pub(crate) struct Taken {
    /// With the Gateway that needs the place.
    found: Arc<Mutex<BTreeMap<(Part, Key), Key>>>,
    changed: Arc<Notify>,
}

/// One write per call, of the whole object as we want it; it fails over an object that the Gateway
/// does not control.
pub(crate) fn make_writer(
    client: Client,
    manager: String,
    metrics: WriteMetrics,
    taken: Taken,
) -> impl Fn((Part, Key), Value) -> Writing {
    move |(part, key), body| {
        let (client, manager, metrics) = (client.clone(), manager.clone(), metrics.clone());
        let taken = taken.clone();
        Box::pin(async move {
            let (api_version, kind) = part.api();
            let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
            let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
            let api: Api<DynamicObject> = Api::namespaced_with(client, &key.namespace, &resource);
            let gateway = gateway_of(&key, &body);
            let there = api.get_metadata_opt(&key.name).await;
            let there = there.map_err(|error| error.to_string())?;
            let is_foreign = there.is_some_and(|object| !is_of(&object.metadata, &gateway));
            let id = (part, key.clone());
            if is_foreign {
                // a budget that somebody made does as well, and the Gateway works without one
                if part != Part::DisruptionBudget {
                    taken.note(id, gateway);
                }
                metrics.count(kind, WriteResult::Failed);
                return Err(format!("{kind} {key} exists and is another's"));
            }
            taken.free(&id);
            // Fields that others set on what is the Gateway's are ours to say.
            let params = PatchParams::apply(&manager).force();
            let result = api.patch(&key.name, &params, &Patch::Apply(&body)).await;
            let counted = match &result {
                Ok(_) => WriteResult::Written,
                Err(_) => WriteResult::Failed,
            };
            metrics.count(kind, counted);
            result.map(drop).map_err(|error| error.to_string())
        })
    }
}

/// The Gateway that the object to be applied names as its controller.
fn gateway_of(key: &Key, body: &Value) -> Key {
    let name = body.pointer("/metadata/ownerReferences/0/name");
    Key::new(
        &key.namespace,
        name.and_then(Value::as_str).unwrap_or_default(),
    )
}

/// A Gateway that was made anew takes over what its namesake left.
fn is_of(meta: &ObjectMeta, gateway: &Key) -> bool {
    controlling_gateway(meta).is_some_and(|owner| owner.name == gateway.name)
}

// === impl Taken ===

impl Taken {
    /// Comes back when places were found taken or free.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// What to tell of each of these Gateways; others are forgotten.
    pub(crate) fn of<V>(&self, gateways: &BTreeMap<Key, V>) -> BTreeMap<Key, String> {
        let mut found = self.found.lock();
        found.retain(|_, gateway| gateways.contains_key(gateway));
        let told = found.iter().map(|((part, key), gateway)| {
            let (_, kind) = part.api();
            let text = format!(
                "{kind} {key} exists and the Gateway does not control it: delete it, or rename the Gateway"
            );
            (gateway.clone(), text)
        });
        told.collect()
    }

    fn note(&self, id: (Part, Key), gateway: Key) {
        let before = self.found.lock().insert(id, gateway.clone());
        if before != Some(gateway) {
            self.changed.notify_one();
        }
    }

    fn free(&self, id: &(Part, Key)) {
        let before = self.found.lock().remove(id);
        if before.is_some() {
            self.changed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::client::Body;
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn mk_meta(kind: &str, name: &str, controller: bool) -> ObjectMeta {
        let meta = json!({ "ownerReferences": [{
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": kind,
            "name": name,
            "uid": "u",
            "controller": controller,
        }] });
        serde_json::from_value(meta).unwrap()
    }

    #[test]
    fn only_what_the_gateway_controls_is_written_over() {
        let gateway = Key::new("ns", "gw");
        assert!(is_of(&mk_meta("Gateway", "gw", true), &gateway));
        for foreign in [
            ObjectMeta::default(),
            mk_meta("Gateway", "other", true),
            mk_meta("Gateway", "gw", false),
            mk_meta("ReplicaSet", "gw", true),
        ] {
            assert!(!is_of(&foreign, &gateway), "{foreign:?}");
        }
        let body = json!({ "metadata": mk_meta("Gateway", "gw", true) });
        assert_eq!(gateway_of(&Key::new("ns", "gw-isthmus"), &body), gateway);
    }

    /// Only a look at it, no write; and whether the Gateway's status is to say so.
    #[rstest]
    #[case::service(Part::Service, "/api/v1/namespaces/ns/services/gw-isthmus", true)]
    #[case::budget(
        Part::DisruptionBudget,
        "/apis/policy/v1/namespaces/ns/poddisruptionbudgets/gw-isthmus",
        false
    )]
    #[tokio::test]
    async fn object_without_our_owner_is_looked_at_and_left(
        #[case] part: Part,
        #[case] uri: &str,
        #[case] is_told: bool,
    ) {
        let (service, mut server) =
            tower_test::mock::pair::<axum::http::Request<Body>, axum::http::Response<Body>>();
        let taken = Taken::default();
        let mut registry = prometheus_client::registry::Registry::default();
        let metrics = WriteMetrics::register(&mut registry, "infra");
        let client = Client::new(service, "default");
        let write = make_writer(client, "isthmus".to_owned(), metrics, taken.clone());
        let body = json!({ "metadata": mk_meta("Gateway", "gw", true) });
        let key = Key::new("ns", "gw-isthmus");
        let answer = async {
            let (request, send) = server.next_request().await.unwrap();
            let uri = request.uri().to_string();
            let theirs = json!({
                "apiVersion": "meta.k8s.io/v1",
                "kind": "PartialObjectMetadata",
                "metadata": {"namespace": "ns", "name": "gw-isthmus"},
            });
            let text = serde_json::to_vec(&theirs).unwrap();
            send.send_response(axum::http::Response::new(Body::from(text)));
            (request.method().to_string(), uri)
        };
        let (result, seen) = tokio::join!(write((part, key), body), answer);
        assert_eq!(seen, ("GET".to_owned(), uri.to_owned()));
        assert!(result.unwrap_err().contains("another's"));
        drop(write);
        assert!(server.next_request().await.is_none(), "a write");
        let gateways = BTreeMap::from([(Key::new("ns", "gw"), true)]);
        assert_eq!(taken.of(&gateways).len(), usize::from(is_told));
    }

    #[test]
    fn taken_place_is_told_until_it_is_free_or_the_gateway_gone() {
        let (taken, gateway) = (Taken::default(), Key::new("ns", "gw"));
        let id = (Part::Service, Key::new("ns", "gw-isthmus"));
        let gateways = BTreeMap::from([(gateway.clone(), true)]);
        taken.note(id.clone(), gateway.clone());
        let told = taken.of(&gateways);
        assert!(told[&gateway].contains("Service ns/gw-isthmus"), "{told:?}");
        taken.free(&id);
        assert_eq!(taken.of(&gateways), BTreeMap::new());
        taken.note(id, gateway);
        taken.of(&BTreeMap::<Key, bool>::new());
        assert_eq!(taken.of(&gateways), BTreeMap::new());
    }
}
