//! From a request to its answer.

use std::{io, sync::Arc, time::Duration};

use bytes::{BufMut, Bytes, BytesMut};
use futures::{StreamExt, stream};
use http::{HeaderMap, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Frame, Incoming};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    faults::Fault,
    kinds::{self, Kind},
    refusal::Refusal,
    selector::Selector,
    server::{Server, Shared},
    target::{Place, Target, Verb},
    watching::{Stage, Watching},
    write::{self, At, PatchType, Written},
};

pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// An answer that is whole, before faults.
struct Answer {
    code: u16,
    content_type: &'static str,
    retry_after: Option<u32>,
    body: Content,
}

enum Content {
    Whole(Bytes),
    Watch(Box<Watching>),
}

/// As large as the API server takes.
const MAX_BODY: usize = 3 * 1024 * 1024;
/// Without `timeoutSeconds`.
const WATCH_TIMEOUT: Duration = Duration::from_mins(30);
const JSON: &str = "application/json";

/// Answers one request; an error ends the connection.
pub(crate) async fn handle(
    shared: Arc<Shared>,
    request: Request<Incoming>,
) -> Result<Response<Body>, io::Error> {
    let arrived = Instant::now();
    let (parts, body) = request.into_parts();
    let target = Target::parse(&parts.method, &parts.uri);
    let number = shared.calls.lock().begin(&target, arrived);
    let body = Limited::new(body, MAX_BODY)
        .collect()
        .await
        .map_err(|error| io::Error::other(error.to_string()))?
        .to_bytes();
    let fate = shared.rules.lock().fate(&target);
    if !fate.late.is_zero() {
        sleep(fate.late).await;
    }
    let answer = match fate.end {
        Some(Fault::Never) => std::future::pending().await,
        Some(Fault::Refused { code, retry_after }) => Answer::refusal(
            &Refusal::new(code, reason(code), "refused by a fault"),
            retry_after,
        ),
        _ if !shared.admits(&parts.headers) => {
            Answer::refusal(&Refusal::new(401, "Unauthorized", "Unauthorized"), None)
        }
        _ => shared
            .answer(&target, &parts.headers, &body)
            .unwrap_or_else(|refusal| Answer::refusal(&refusal, None)),
    };
    let code = answer.code;
    let response = answer.into_response(fate.end.as_ref());
    shared.calls.lock().end(number, code, Instant::now());
    response
}

// === impl Server ===

impl Server {
    /// Answers a request at once: over no connection, so without faults, credentials or a place among the calls. A watch
    /// gets no events.
    pub fn answer(&self, request: &Request<Bytes>) -> Response<Bytes> {
        let target = Target::parse(request.method(), request.uri());
        let answer = self
            .shared
            .answer(&target, request.headers(), request.body())
            .unwrap_or_else(|refusal| Answer::refusal(&refusal, None));
        let body = match answer.body {
            Content::Whole(body) => body,
            Content::Watch(_) => Bytes::new(),
        };
        let mut response = Response::new(body);
        *response.status_mut() =
            StatusCode::from_u16(answer.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        response
    }
}

// === impl Shared ===

impl Shared {
    fn admits(&self, headers: &HeaderMap) -> bool {
        let token = self.token.lock();
        let given = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok());
        token.is_empty()
            || given.and_then(|given| given.strip_prefix("Bearer ")) == Some(token.as_str())
    }

    fn answer(
        self: &Arc<Self>,
        target: &Target,
        headers: &HeaderMap,
        body: &Bytes,
    ) -> Result<Answer, Refusal> {
        match &target.place {
            Place::Version => Ok(Answer::json(
                200,
                &json!({"major": "1", "minor": "34", "gitVersion": "v1.34.2-sim",
                "gitCommit": "", "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "", "platform": ""}),
            )),
            Place::AccessReview => {
                let mut review: Value = serde_json::from_slice(body).unwrap_or_default();
                review["status"] = json!({"allowed": true});
                Ok(Answer::json(201, &review))
            }
            Place::Nowhere(_) => Ok(Answer::not_served()),
            Place::Objects { kind, .. } if !self.serves(kind) => Ok(Answer::not_served()),
            Place::Objects {
                kind,
                namespace,
                name,
                status,
            } => {
                let at = At {
                    kind,
                    namespace,
                    name,
                    status: *status,
                };
                self.objects(target, at, headers, body)
            }
        }
    }

    fn serves(&self, kind: &'static Kind) -> bool {
        let store = self.store.lock();
        !kind.custom || store.get(&kinds::CRDS, "", &kind.crd_name()).is_some()
    }

    fn objects(
        self: &Arc<Self>,
        target: &Target,
        at: At<'_>,
        headers: &HeaderMap,
        body: &Bytes,
    ) -> Result<Answer, Refusal> {
        let header = |name| {
            headers
                .get(name)
                .and_then(|value: &http::HeaderValue| value.to_str().ok())
                .unwrap_or_default()
        };
        let partial = header(header::ACCEPT).contains("as=PartialObjectMetadata");
        let manager = match target.param("fieldManager") {
            "" => "unknown",
            named => named,
        };
        let bad = |error: serde_json::Error| Refusal::new(400, "BadRequest", error.to_string());
        let mut store = self.store.lock();
        let before = store.version;
        let written = match target.verb {
            Verb::Get => {
                let object = store.get(at.kind, at.namespace, at.name);
                let object = object
                    .ok_or_else(|| Refusal::not_found(at.kind.plural, at.kind.group, at.name))?;
                return Ok(Answer::bytes(200, store.shown(at.kind, &object, partial)));
            }
            Verb::List => {
                drop(store);
                return self.list(target, at, partial);
            }
            Verb::Watch => {
                drop(store);
                return self.watch(target, at, partial);
            }
            Verb::Create => {
                let value = serde_json::from_slice(body).map_err(bad)?;
                write::create(&mut store, at, manager, value)?
            }
            Verb::Update => {
                let value = serde_json::from_slice(body).map_err(bad)?;
                write::update(&mut store, at, manager, value)?
            }
            Verb::Patch => {
                let type_ = match header(header::CONTENT_TYPE) {
                    "application/apply-patch+yaml" => PatchType::Apply {
                        force: target.param("force") == "true",
                    },
                    "application/json-patch+json" => PatchType::Json,
                    "application/merge-patch+json" => PatchType::Merge,
                    other => {
                        return Err(Refusal::new(
                            415,
                            "UnsupportedMediaType",
                            format!("patches of type {other:?}"),
                        ));
                    }
                };
                write::patch(&mut store, at, manager, type_, body)?
            }
            Verb::Delete => {
                let options = if body.is_empty() {
                    Value::Null
                } else {
                    serde_json::from_slice(body).map_err(bad)?
                };
                let gone = write::delete(&mut store, at, &options)?;
                return Ok(Answer::json(
                    200,
                    &json!({"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Success",
                    "details": {"name": at.name, "group": at.kind.group, "kind": at.kind.plural, "uid": gone.uid}}),
                ));
            }
        };
        let Written { created, object } = written;
        if store.version == before {
            self.calls.lock().idle_writes += 1;
        }
        let code = if created { 201 } else { 200 };
        Ok(Answer::bytes(code, store.shown(at.kind, &object, partial)))
    }

    fn selector(target: &Target, at: At<'_>) -> Result<Selector, Refusal> {
        Selector::parse(
            at.namespace,
            target.param("fieldSelector"),
            target.param("labelSelector"),
        )
        .map_err(|problem| Refusal::new(400, "BadRequest", problem))
    }

    fn list(&self, target: &Target, at: At<'_>, partial: bool) -> Result<Answer, Refusal> {
        let selector = Self::selector(target, at)?;
        let limit = match target.param("limit") {
            "" | "0" => usize::MAX,
            limit => limit
                .parse()
                .map_err(|_| Refusal::new(400, "BadRequest", "limit"))?,
        };
        // `namespace/name` of the last one: neither holds a slash
        let after = target.param("continue").split_once('/');
        let after = after.map(|(namespace, name)| (namespace.to_owned(), name.to_owned()));
        let store = self.store.lock();
        let (page, more) = store.page(at.kind, &selector, after, limit);
        let next = page
            .last()
            .filter(|_| more)
            .map(|last| format!("{}/{}", last.namespace, last.name));
        let (version, kind) = if partial {
            ("meta.k8s.io/v1".to_owned(), "PartialObjectMetadata")
        } else {
            (at.kind.api_version(), at.kind.kind)
        };
        let head = json!({"resourceVersion": store.version.to_string(), "continue": next.unwrap_or_default()});
        let mut text = BytesMut::new();
        text.put_slice(
            format!(
                r#"{{"apiVersion":"{version}","kind":"{kind}List","metadata":{head},"items":["#
            )
            .as_bytes(),
        );
        for (position, object) in page.iter().enumerate() {
            if position > 0 {
                text.put_u8(b',');
            }
            text.put_slice(&store.shown(at.kind, object, partial));
        }
        text.put_slice(b"]}");
        Ok(Answer::bytes(200, text.freeze()))
    }

    fn watch(
        self: &Arc<Self>,
        target: &Target,
        at: At<'_>,
        partial: bool,
    ) -> Result<Answer, Refusal> {
        let selector = Self::selector(target, at)?;
        let seconds = target
            .param("timeoutSeconds")
            .parse()
            .map(Duration::from_secs);
        let orders = self.orders.subscribe();
        let seen = orders
            .borrow()
            .get(&at.kind.crd_name())
            .map_or(0, |(number, _)| *number);
        let mut store = self.store.lock();
        let version = match target.param("resourceVersion") {
            "" | "0" => store.version,
            version => version
                .parse()
                .map_err(|_| Refusal::new(400, "BadRequest", "resourceVersion"))?,
        };
        let bell = store.bell(at.kind);
        Ok(Answer {
            code: 200,
            content_type: JSON,
            retry_after: None,
            body: Content::Watch(Box::new(Watching {
                shared: self.clone(),
                kind: at.kind,
                selector,
                partial,
                bookmarks: target.param("allowWatchBookmarks") == "true",
                version,
                deadline: Instant::now() + seconds.unwrap_or(WATCH_TIMEOUT),
                bell,
                orders,
                seen,
                stage: Stage::Open,
            })),
        })
    }
}

// === impl Answer ===

impl Answer {
    fn bytes(code: u16, body: Bytes) -> Self {
        Self {
            code,
            content_type: JSON,
            retry_after: None,
            body: Content::Whole(body),
        }
    }

    fn json(code: u16, body: &Value) -> Self {
        Self::bytes(code, body.to_string().into())
    }

    fn refusal(refusal: &Refusal, retry_after: Option<u32>) -> Self {
        Self {
            retry_after,
            ..Self::bytes(refusal.code, refusal.body())
        }
    }

    /// A path that nobody serves is refused in plain text (K8).
    fn not_served() -> Self {
        Self {
            content_type: "text/plain; charset=utf-8",
            ..Self::bytes(404, Bytes::from_static(b"404 page not found\n"))
        }
    }

    fn into_response(self, fault: Option<&Fault>) -> Result<Response<Body>, io::Error> {
        let mut response = Response::builder()
            .status(StatusCode::from_u16(self.code).map_err(io::Error::other)?)
            .header(header::CONTENT_TYPE, self.content_type);
        if let Some(seconds) = self.retry_after {
            response = response.header(header::RETRY_AFTER, seconds);
        }
        let body = match (self.body, fault) {
            (_, Some(Fault::HeadersOnly)) => StreamBody::new(stream::pending()).boxed_unsync(),
            (Content::Whole(bytes), Some(Fault::Truncated)) => {
                let half = Ok(Frame::data(bytes.slice(..bytes.len() / 2)));
                let end = Err(io::ErrorKind::ConnectionAborted.into());
                StreamBody::new(stream::iter([half, end])).boxed_unsync()
            }
            (Content::Whole(bytes), _) => Full::new(bytes)
                .map_err(|never| match never {})
                .boxed_unsync(),
            (Content::Watch(watching), _) => {
                StreamBody::new(watching.stream().map(|chunk| chunk.map(Frame::data)))
                    .boxed_unsync()
            }
        };
        response.body(body).map_err(io::Error::other)
    }
}

/// Kubernetes' word for a code.
fn reason(code: u16) -> &'static str {
    match code {
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        410 => "Expired",
        422 => "Invalid",
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "InternalError",
    }
}
