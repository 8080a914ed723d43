//! Checks of a connected server beside the watches: whether we may write there, and, periodically, whether it is still
//! the same cluster: an address may be reused.

use std::time::Duration;

use crd::annotations::{IMPORT_GROUP, IMPORT_PLURAL, POOL_GROUP};
use k8s_openapi::api::{
    authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
    core::v1::Namespace,
};
use kube::{Api, Client, api::PostParams};
use tokio::time::{sleep, timeout};
use watch::jittered;

use super::{
    health::HealthEvent,
    watches::{Gone, WatchContext},
};

/// Period of the identity check, plus or minus up to a fifth: a thousand members must not be checked at once.
const RECHECK: Duration = Duration::from_mins(10);
/// Timeout of one call. A failed check has no effect: contact is for the probes.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Verb, group, resource and subresource of the writes.
const WRITES: [(&str, &str, &str, &str); 5] = [
    ("create", IMPORT_GROUP, IMPORT_PLURAL, ""),
    ("patch", IMPORT_GROUP, IMPORT_PLURAL, ""),
    ("delete", IMPORT_GROUP, IMPORT_PLURAL, ""),
    ("patch", IMPORT_GROUP, IMPORT_PLURAL, "status"),
    ("update", POOL_GROUP, "inferencepools", "status"),
];

/// The same of the watches.
const WATCHES: [(&str, &str, &str, &str); 5] = [
    ("watch", POOL_GROUP, "inferencepools", ""),
    ("watch", "", "services", ""),
    ("watch", "discovery.k8s.io", "endpointslices", ""),
    ("watch", "", "namespaces", ""),
    ("watch", IMPORT_GROUP, IMPORT_PLURAL, ""),
];

/// Checks our rights once, then the identity periodically while the session lasts.
pub(super) async fn run_checks(ctx: WatchContext, client: Client, uid: String) -> Result<(), Gone> {
    let missing = missing_rights(&client, &WRITES).await;
    if !missing.is_empty() {
        tracing::warn!(member = %ctx.member, missing = missing.join(", "),
            "may not write all that is needed there: grant these (config/rbac)");
    }
    loop {
        sleep(jittered(RECHECK)).await;
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let call = namespaces.get_metadata("kube-system");
        if let Ok(Ok(system)) = timeout(CALL_TIMEOUT, call).await
            && system.metadata.uid.is_some_and(|found| found != uid)
        {
            ctx.report(HealthEvent::OtherCluster).await?;
        }
    }
}

/// Rights to watch and write that the new client lacks and the one in use does not.
pub(super) async fn lost_rights(new: &Client, in_use: &Client) -> Vec<String> {
    let rights = [WATCHES, WRITES].concat();
    let mut lost = missing_rights(new, &rights).await;
    if !lost.is_empty() {
        let before = missing_rights(in_use, &rights).await;
        lost.retain(|right| !before.contains(right));
    }
    lost
}

/// The rights that the server reports as denied; none for a server that does not answer the reviews.
async fn missing_rights(client: &Client, rights: &[(&str, &str, &str, &str)]) -> Vec<String> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let mut missing = Vec::new();
    for &(verb, group, resource, subresource) in rights {
        let spec = SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                group: Some(group.to_owned()),
                resource: Some(resource.to_owned()),
                subresource: Some(subresource.to_owned()).filter(|name| !name.is_empty()),
                verb: Some(verb.to_owned()),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        };
        let review = SelfSubjectAccessReview {
            spec,
            ..SelfSubjectAccessReview::default()
        };
        let options = PostParams::default();
        let call = reviews.create(&options, &review);
        let Ok(Ok(answer)) = timeout(CALL_TIMEOUT, call).await else {
            return missing;
        };
        if answer.status.is_some_and(|status| !status.allowed) {
            let slash = if subresource.is_empty() { "" } else { "/" };
            missing.push(format!("{verb} {resource}{slash}{subresource}"));
        }
    }
    missing
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};
    use tower::service_fn;

    use super::*;

    #[tokio::test]
    async fn missing_rights_are_named() {
        let server = service_fn(|request: Request<Body>| async move {
            let body = http_body_util::BodyExt::collect(request.into_body()).await;
            let body = body.expect("a body").to_bytes();
            let review: Value = serde_json::from_slice(&body).expect("JSON");
            let asked = &review["spec"]["resourceAttributes"];
            let allowed = asked["verb"] != "delete" && asked["subresource"] != "status";
            let answer = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
                "spec": {}, "status": {"allowed": allowed}});
            Ok::<_, std::convert::Infallible>(Response::new(Body::from(
                answer.to_string().into_bytes(),
            )))
        });
        let missing = missing_rights(&Client::new(server, "default"), &WRITES).await;
        assert_eq!(
            missing,
            [
                "delete inferencepoolimports",
                "patch inferencepoolimports/status",
                "update inferencepools/status"
            ]
        );
    }
}
