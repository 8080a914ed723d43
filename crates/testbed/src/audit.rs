//! What service accounts asked of an API server: its audit log, read back.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;

use crate::error::TestbedError;

/// Only what service accounts ask: the rest is the control plane's own, and much.
pub(crate) const POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  userGroups: [system:serviceaccounts]
- level: None
";

/// A request of a service account that was answered; of a watch, its beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiCall {
    /// As in `system:serviceaccount:isthmus-system:isthmus-mci-controller`.
    pub user: String,
    /// IP address that it came from; empty where the log does not say.
    pub source: String,
    /// When it arrived; the epoch where the log does not say.
    pub received: Timestamp,
    /// As RBAC names it.
    pub verb: String,
    /// API group; empty for the core's.
    pub group: String,
    /// Resource, with a slash and its subresource where it has one; empty for discovery.
    pub resource: String,
    /// Empty for what has none.
    pub namespace: String,
    /// Empty for lists and creations.
    pub name: String,
    /// HTTP status.
    pub code: u16,
    /// RBAC did not allow it.
    pub denied: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    #[serde(rename = "auditID")]
    id: String,
    verb: String,
    #[serde(rename = "sourceIPs", default)]
    sources: Vec<String>,
    #[serde(rename = "requestReceivedTimestamp")]
    received: Option<MicroTime>,
    #[serde(default)]
    user: User,
    #[serde(default)]
    object_ref: Object,
    #[serde(default)]
    response_status: Response,
    #[serde(default)]
    annotations: Annotations,
}

#[derive(Default, Deserialize)]
struct User {
    #[serde(default)]
    username: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Object {
    api_group: String,
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Default, Deserialize)]
struct Response {
    #[serde(default)]
    code: u16,
}

#[derive(Default, Deserialize)]
struct Annotations {
    #[serde(rename = "authorization.k8s.io/decision", default)]
    decision: String,
}

/// Name of the log in a cluster's log directory.
pub(crate) fn log(logs: &Path, cluster: &str) -> PathBuf {
    logs.join(cluster).join("audit.log")
}

/// All calls so far, oldest first; none before the first.
pub(crate) fn read(path: &Path) -> Result<Vec<ApiCall>, TestbedError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(parse(&text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(source) => Err(TestbedError::File {
            path: path.to_owned(),
            source,
        }),
    }
}

fn parse(text: &str) -> Vec<ApiCall> {
    let mut seen = BTreeSet::new();
    // a line that is being written is read whole the next time
    text.lines()
        .filter_map(|line| serde_json::from_str::<Event>(line).ok())
        .filter(|event| seen.insert(event.id.clone()))
        .map(ApiCall::from)
        .collect()
}

impl From<Event> for ApiCall {
    fn from(event: Event) -> Self {
        let object = event.object_ref;
        let resource = if object.subresource.is_empty() {
            object.resource
        } else {
            format!("{}/{}", object.resource, object.subresource)
        };
        Self {
            user: event.user.username,
            source: event.sources.into_iter().next().unwrap_or_default(),
            received: event.received.map(|time| time.0).unwrap_or_default(),
            verb: event.verb,
            group: object.api_group,
            resource,
            namespace: object.namespace,
            name: object.name,
            code: event.response_status.code,
            denied: event.annotations.decision == "forbid",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_counts_once_and_a_torn_line_not_yet() {
        let watch = r#"{"auditID":"a","stage":"ResponseStarted","verb":"watch","user":{"username":"u"},"objectRef":{"resource":"services"},"responseStatus":{"code":200},"annotations":{"authorization.k8s.io/decision":"allow"}}"#;
        let end = watch.replace("ResponseStarted", "ResponseComplete");
        let denied = r#"{"auditID":"b","verb":"update","sourceIPs":["10.0.0.7"],"requestReceivedTimestamp":"2026-01-02T03:04:05.678901Z","user":{"username":"u"},"objectRef":{"apiGroup":"g","resource":"r","subresource":"status","namespace":"n","name":"o"},"responseStatus":{"code":403},"annotations":{"authorization.k8s.io/decision":"forbid"}}"#;
        let calls = parse(&format!(
            "{watch}\n{end}\n{denied}\n{{\"auditID\":\"c\",\"ve"
        ));
        let [first, second] = &*calls else {
            panic!("{calls:?}");
        };
        assert_eq!(
            (&*first.verb, first.code, first.denied),
            ("watch", 200, false)
        );
        assert_eq!((&*second.group, &*second.resource), ("g", "r/status"));
        assert_eq!((&*second.namespace, &*second.name), ("n", "o"));
        assert!(second.denied);
        let received = second.received.to_string();
        assert_eq!(
            (&*second.source, &*received),
            ("10.0.0.7", "2026-01-02T03:04:05.678901Z")
        );
        assert_eq!((&*first.source, first.received), ("", Timestamp::default()));
    }
}
