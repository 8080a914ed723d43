//! Reads the object, edits its status, writes it back.

use std::future::Future;
use std::pin::Pin;

use jiff::Timestamp;
use kube::Client;
use kube::api::{
    Api, ApiResource, DynamicObject, GroupVersionKind, Patch as KubePatch, PatchParams, PostParams,
};
use serde_json::{Value, json};

use crate::metrics::{WriteMetrics, WriteResult};

use super::diff::{Patch, diff};
use super::{Target, Wanted};

/// Tries to replace a status that others write to as well.
const CONFLICT_TRIES: usize = 5;

/// What one write came to.
enum Done {
    Written,
    /// It said so already, or the object is gone.
    Unneeded(WriteResult),
}

pub(crate) fn make_writer(
    client: Client,
    controller: String,
    metrics: WriteMetrics,
) -> impl Fn(Target, Wanted) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send>> {
    move |target, wanted| {
        let (client, controller, metrics) = (client.clone(), controller.clone(), metrics.clone());
        Box::pin(async move {
            let (_, _, kind) = target.api();
            match write(client, &controller, &target, &wanted).await {
                Ok(Done::Written) => metrics.count(kind, WriteResult::Written),
                Ok(Done::Unneeded(result)) => metrics.count(kind, result),
                Err(error) => {
                    metrics.count(kind, WriteResult::Failed);
                    return Err(error);
                }
            }
            Ok(())
        })
    }
}

async fn write(
    client: Client,
    controller: &str,
    target: &Target,
    wanted: &Wanted,
) -> Result<Done, String> {
    let (group, version, kind) = target.api();
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    let key = target.key();
    let api: Api<DynamicObject> = if key.namespace.is_empty() {
        Api::all_with(client, &resource)
    } else {
        Api::namespaced_with(client, &key.namespace, &resource)
    };
    let text = |error: kube::Error| error.to_string();
    for _ in 0..CONFLICT_TRIES {
        let Some(mut object) = api.get_opt(&key.name).await.map_err(text)? else {
            return Ok(Done::Unneeded(WriteResult::Gone));
        };
        let live = object.data.get("status").cloned().unwrap_or(Value::Null);
        let patch = diff(target, wanted, &live, controller, Timestamp::now());
        match patch.map_err(|error| error.to_string())? {
            None => return Ok(Done::Unneeded(WriteResult::Unneeded)),
            Some(Patch::Apply(status)) => {
                let body = json!({
                    "apiVersion": resource.api_version,
                    "kind": resource.kind,
                    "metadata": { "name": key.name },
                    "status": status,
                });
                let params = PatchParams::apply(controller).force();
                let patch = KubePatch::Apply(&body);
                api.patch_status(&key.name, &params, &patch)
                    .await
                    .map_err(text)?;
                return Ok(Done::Written);
            }
            Some(Patch::Replace(status)) => {
                object.data["status"] = status;
                let params = PostParams {
                    field_manager: Some(controller.to_owned()),
                    ..PostParams::default()
                };
                match api.replace_status(&key.name, &params, &object).await {
                    Ok(_) => return Ok(Done::Written),
                    Err(kube::Error::Api(status)) if status.code == 409 => {} // read again
                    Err(error) => return Err(error.to_string()),
                }
            }
        }
    }
    Err(format!(
        "others changed the status {CONFLICT_TRIES} times meanwhile"
    ))
}
