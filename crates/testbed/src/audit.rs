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

/// All calls so far, oldest first. A log that is missing or that cannot be understood is an error: a test that looks for
/// calls that must not be there would take it for their absence.
pub(crate) fn read(path: &Path) -> Result<Vec<ApiCall>, TestbedError> {
    let failed = |source| TestbedError::File {
        path: path.to_owned(),
        source,
    };
    let text = std::fs::read_to_string(path).map_err(failed)?;
    parse(&text).map_err(|problem| failed(std::io::Error::other(problem)))
}

/// The calls in the text of a log; the error is what is wrong with the text.
fn parse(text: &str) -> Result<Vec<ApiCall>, String> {
    let mut seen = BTreeSet::new();
    let mut calls = Vec::new();
    for (index, line) in text.split_inclusive('\n').enumerate() {
        // the API server is still writing this one: it is read whole the next time
        let Some(line) = line.strip_suffix('\n') else {
            break;
        };
        let event: Event = serde_json::from_str(line).map_err(|error| {
            let number = index + 1;
            format!("line {number} is no event of an audit log ({error}): {line:?}")
        })?;
        if seen.insert(event.id.clone()) {
            calls.push(ApiCall::from(event));
        }
    }
    Ok(calls)
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
        let calls = calls.unwrap();
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

    #[test]
    fn a_log_that_is_missing_or_that_holds_anything_else_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("audit.log"), "{error}");
        std::fs::write(&path, "{\"auditID\":\"a\",\"verb\":\"get\"}\nno event\n").unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("line 2"), "{error}");
        assert!(error.contains("no event"), "{error}");
    }
}
