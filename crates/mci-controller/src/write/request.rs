//! Requests to an API server, and what its answers mean for a write.

use std::time::Duration;

use bytes::Bytes;
use crd::annotations::{IMPORT_GROUP, IMPORT_PLURAL, MCI_CONTROLLER, POOL_GROUP};
use http::{HeaderMap, Method, Request, StatusCode, header};
use kube::{client::Body, core::Status};
use serde_json::json;

use super::action::{Failure, Outcome};
use crate::name::Key;

const APPLY: &str = "application/apply-patch+yaml";
const JSON_PATCH: &str = "application/json-patch+json";
const JSON: &str = "application/json";
/// The body of a success is not needed: the server may send metadata alone.
const METADATA_ONLY: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

/// A request that can be sent more than once.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    method: Method,
    uri: String,
    content_type: &'static str,
    accept: &'static str,
    body: Bytes,
}

/// An answer: the status, and the body of a failure.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) retry_after: Option<Duration>,
    /// The failure as a Kubernetes `Status`; none if the body is something else, such as the plain 404 of a kind that is
    /// not served.
    pub(crate) failure: Option<Status>,
    pub(crate) body: Bytes,
}

fn import_path(key: &Key) -> String {
    let Key {
        namespace, name, ..
    } = key;
    let version = crd::import::VERSION;
    format!("/apis/{IMPORT_GROUP}/{version}/namespaces/{namespace}/{IMPORT_PLURAL}/{name}")
}

fn pool_path(key: &Key) -> String {
    let Key {
        namespace, name, ..
    } = key;
    format!("/apis/{POOL_GROUP}/v1/namespaces/{namespace}/inferencepools/{name}")
}

fn events_path(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/events")
}

/// Part of the message with which an API server refuses an apply with a field that the CRD lacks.
const UNDECLARED_FIELD: &str = "field not declared in schema";

// === impl Call ===

impl Call {
    /// Applies the object itself: our labels.
    pub(crate) fn apply_main(key: &Key, body: Bytes) -> Self {
        let path = import_path(key);
        Self::patch(
            format!("{path}?fieldManager={MCI_CONTROLLER}&force=false"),
            APPLY,
            body,
        )
    }

    pub(crate) fn apply_status(key: &Key, body: Bytes, force: bool) -> Self {
        let path = import_path(key);
        Self::patch(
            format!("{path}/status?fieldManager={MCI_CONTROLLER}&force={force}"),
            APPLY,
            body,
        )
    }

    pub(crate) fn get_import(key: &Key) -> Self {
        Self {
            method: Method::GET,
            uri: import_path(key),
            content_type: JSON,
            accept: JSON,
            body: Bytes::new(),
        }
    }

    pub(crate) fn patch_status(key: &Key, body: Bytes) -> Self {
        let path = import_path(key);
        Self::patch(
            format!("{path}/status?fieldManager={MCI_CONTROLLER}"),
            JSON_PATCH,
            body,
        )
    }

    /// Deletes the object only if it is the one that was seen, unchanged.
    pub(crate) fn delete(key: &Key, uid: &str, resource_version: &str) -> Self {
        let options = json!({
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid, "resourceVersion": resource_version},
        });
        Self {
            method: Method::DELETE,
            uri: import_path(key),
            content_type: JSON,
            accept: JSON,
            body: options.to_string().into(),
        }
    }

    pub(crate) fn get_pool(key: &Key) -> Self {
        Self {
            method: Method::GET,
            uri: pool_path(key),
            content_type: JSON,
            accept: JSON,
            body: Bytes::new(),
        }
    }

    pub(crate) fn put_pool_status(key: &Key, body: Bytes) -> Self {
        Self {
            method: Method::PUT,
            uri: format!("{}/status?fieldManager={MCI_CONTROLLER}", pool_path(key)),
            content_type: JSON,
            accept: METADATA_ONLY,
            body,
        }
    }

    /// Creates or updates an event.
    pub(crate) fn apply_event(namespace: &str, name: &str, body: Bytes) -> Self {
        let path = events_path(namespace);
        Self::patch(
            format!("{path}/{name}?fieldManager={MCI_CONTROLLER}&force=true"),
            APPLY,
            body,
        )
    }

    /// Reads the metadata of a Lease, for its uid.
    pub(crate) fn get_lease_metadata(namespace: &str, name: &str) -> Self {
        Self {
            method: Method::GET,
            uri: format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"),
            content_type: JSON,
            accept: METADATA_ONLY,
            body: Bytes::new(),
        }
    }

    fn patch(uri: String, content_type: &'static str, body: Bytes) -> Self {
        Self {
            method: Method::PATCH,
            uri,
            content_type,
            accept: METADATA_ONLY,
            body,
        }
    }

    /// Whether the call is made to read the body of the answer.
    pub(crate) fn reads(&self) -> bool {
        self.method == Method::GET
    }

    /// # Errors
    /// When the key does not fit a URL; keys are checked where they enter.
    pub(crate) fn request(&self) -> Result<Request<Body>, http::Error> {
        Request::builder()
            .method(self.method.clone())
            .uri(&self.uri)
            .header(header::CONTENT_TYPE, self.content_type)
            .header(header::ACCEPT, self.accept)
            .body(Body::from(self.body.clone()))
    }
}

// === impl Answer ===

impl Answer {
    pub(crate) fn new(status: StatusCode, headers: &HeaderMap, body: Bytes) -> Self {
        let retry_after = headers
            .get(header::RETRY_AFTER)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.parse().ok())
            .map(Duration::from_secs);
        let failure = if status.is_success() {
            None
        } else {
            serde_json::from_slice(&body).ok()
        };
        Self {
            status,
            retry_after,
            failure,
            body,
        }
    }

    /// Whether a write failed because another manager owns a field of it.
    pub(crate) fn is_field_conflict(&self) -> bool {
        self.status == StatusCode::CONFLICT && self.has_cause("FieldManagerConflict")
    }

    /// Whether the object, and nothing above it, is missing.
    pub(crate) fn is_object_missing(&self) -> bool {
        self.status == StatusCode::NOT_FOUND
            && self.missing_kind().is_some_and(|kind| kind != "namespaces")
    }

    /// The kind that the failure names.
    fn missing_kind(&self) -> Option<&str> {
        let details = self.failure.as_ref()?.details.as_ref()?;
        Some(details.kind.as_str())
    }

    /// What a failure means for the write.
    pub(crate) fn outcome(&self) -> Outcome {
        match self.status.as_u16() {
            200..=299 => Outcome::Done,
            401 => Outcome::Retry(Failure::Unauthorised),
            403 if self.has_cause("NamespaceTerminating") => Outcome::Retry(Failure::NamespaceGone),
            403 => Outcome::Retry(Failure::Denied),
            404 if self.missing_kind() == Some("namespaces") => {
                Outcome::Retry(Failure::NamespaceGone)
            }
            // the kind is missing: retried until its watch reports that, and the plan withdraws the write
            404 => Outcome::Retry(Failure::NotFound),
            409 => Outcome::Retry(Failure::Conflict),
            429 | 503 => Outcome::Throttled(self.retry_after),
            400 | 413 | 415 | 422 => Outcome::Rejected,
            504 => Outcome::Retry(Failure::GatewayTimeout),
            // the import CRD is not ours (K7): its watch reports that, and then another body is planned
            500 if self.message().contains(UNDECLARED_FIELD) => Outcome::Rejected,
            _ => Outcome::Retry(Failure::Other),
        }
    }

    /// For a log line.
    pub(crate) fn message(&self) -> &str {
        self.failure
            .as_ref()
            .map_or("", |failure| failure.message.as_str())
    }

    fn has_cause(&self, reason: &str) -> bool {
        self.failure
            .as_ref()
            .and_then(|failure| failure.details.as_ref())
            .is_some_and(|details| details.causes.iter().any(|cause| cause.reason == reason))
    }
}
