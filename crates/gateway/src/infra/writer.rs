//! Applies infrastructure by server-side apply.

use std::future::Future;
use std::pin::Pin;

use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use serde_json::Value;

use crate::metrics::{WriteMetrics, WriteResult};
use crate::world::Key;

use super::Part;

/// A write that is under way.
type Writing = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// One write per call, of the whole object as we want it.
pub(crate) fn make_writer(
    client: Client,
    manager: String,
    metrics: WriteMetrics,
) -> impl Fn((Part, Key), Value) -> Writing {
    move |(part, key), body| {
        let (client, manager, metrics) = (client.clone(), manager.clone(), metrics.clone());
        Box::pin(async move {
            let (api_version, kind) = part.api();
            let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
            let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
            let api: Api<DynamicObject> = Api::namespaced_with(client, &key.namespace, &resource);
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
