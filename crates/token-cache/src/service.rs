//! The HTTP interface of a cache, for a program to mount on its port.

use std::time::Duration;

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode,
    header::{ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE},
    request::Parts,
};
use processor_api::{
    API_HEADER, API_VERSION, ErrorBody, ErrorDetail, TOKENS_MODEL_HEADER, TOKENS_TOKENIZER_HEADER,
    TokenKey,
};

use crate::{
    body::{BodyError, BodyForm},
    entry::{Entry, MAX_BYTES},
    error::StoreError,
    remote::{count, headers_of, tag},
    store::Store,
};

/// What stands before the key.
pub const TOKENS_PATH: &str = "/v1/tokens/";

const ALLOWED: &str = "PUT, GET, DELETE";

/// Answers the requests of the interface. Who may ask is decided before.
#[derive(Clone, Debug)]
pub struct TokenService {
    store: Store,
    within: Duration,
}

/// A valid request, but for its body.
#[derive(Debug)]
pub struct Operation {
    key: TokenKey,
    what: What,
}

#[derive(Debug)]
enum What {
    Put {
        form: BodyForm,
        count: Option<usize>,
        entry: Entry,
    },
    Get(BodyForm),
    Delete,
}

/// A request that is refused before its body is read.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct RefusedRequest(Wrong);

#[derive(Debug, thiserror::Error)]
enum Wrong {
    #[error("there is only {TOKENS_PATH}{{key}} here")]
    Path,
    #[error("the method is none of {ALLOWED}")]
    Method,
    #[error("the key is none: {0}")]
    Key(#[from] processor_api::NameError),
    #[error("the header {0} is missing, or is no UTF-8")]
    Tag(&'static str),
    #[error("the header x-tokens-count is no number")]
    Count,
    #[error(transparent)]
    Body(#[from] BodyError),
    #[error("nothing has this key")]
    Absent,
    #[error(transparent)]
    Store(#[from] StoreError),
}

// === impl TokenService ===

impl TokenService {
    /// Of `store`; where that is not in memory, its operations end `within` that time.
    pub fn new(store: Store, within: Duration) -> Self {
        Self { store, within }
    }

    /// Checks all of a request but its body.
    ///
    /// # Errors
    /// [`RefusedRequest`], which is the response.
    pub fn begin(&self, head: &Parts) -> Result<Operation, RefusedRequest> {
        operation(head).map_err(RefusedRequest)
    }

    /// Does it. `body` is that of the request if [`Operation::reads_body`], else nothing.
    pub async fn run(&self, operation: Operation, body: &[u8]) -> Response<Bytes> {
        let result = self.answer(operation, body).await;
        result.unwrap_or_else(|wrong| wrong.response())
    }

    /// The response to a body that is larger than [`Operation::max_body`], or was not read to its end for that.
    pub fn too_large(&self) -> Response<Bytes> {
        Wrong::Body(BodyError::TooLarge).response()
    }

    async fn answer(&self, operation: Operation, body: &[u8]) -> Result<Response<Bytes>, Wrong> {
        let Operation { key, what } = operation;
        match what {
            What::Put { form, count, entry } => {
                let entry = Entry {
                    ids: form.read(body, count)?.into(),
                    ..entry
                };
                self.store.put(key, entry, self.within).await?;
                Ok(respond(
                    StatusCode::NO_CONTENT,
                    HeaderMap::new(),
                    Bytes::new(),
                ))
            }
            What::Get(form) => {
                let entry = self.store.get(key, self.within).await?;
                let entry = entry.ok_or(Wrong::Absent)?;
                let mut headers = headers_of(&entry, form).ok_or(Wrong::Absent)?;
                headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
                let body = form.write(&entry.ids).into();
                Ok(respond(StatusCode::OK, headers, body))
            }
            What::Delete => {
                self.store.delete(key, self.within).await?;
                Ok(respond(
                    StatusCode::NO_CONTENT,
                    HeaderMap::new(),
                    Bytes::new(),
                ))
            }
        }
    }
}

fn operation(head: &Parts) -> Result<Operation, Wrong> {
    let key = head.uri.path().strip_prefix(TOKENS_PATH);
    let key = key.filter(|key| !key.contains('/')).ok_or(Wrong::Path)?;
    if ![Method::PUT, Method::GET, Method::DELETE].contains(&head.method) {
        return Err(Wrong::Method);
    }
    let key = key.parse()?;
    let what = match head.method {
        Method::PUT => put(&head.headers)?,
        Method::GET => What::Get(BodyForm::of_accept(text(&head.headers, &ACCEPT))),
        _ => What::Delete,
    };
    Ok(Operation { key, what })
}

fn put(headers: &HeaderMap) -> Result<What, Wrong> {
    let form = BodyForm::of_content_type(text(headers, &CONTENT_TYPE))?;
    let length = text(headers, &CONTENT_LENGTH).parse();
    if length.is_ok_and(|length: usize| length > MAX_BYTES) {
        return Err(BodyError::TooLarge.into());
    }
    let named = |name| tag(headers, name).ok_or(Wrong::Tag(name));
    Ok(What::Put {
        form,
        count: count(headers).map_err(|()| Wrong::Count)?,
        entry: Entry {
            model: named(TOKENS_MODEL_HEADER)?,
            tokenizer: named(TOKENS_TOKENIZER_HEADER)?,
            ids: [].into(),
        },
    })
}

/// Empty where there is no such text.
fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> &'a str {
    let value = headers.get(name);
    value
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
}

fn respond(status: StatusCode, headers: HeaderMap, body: Bytes) -> Response<Bytes> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    let version = HeaderValue::from_static(API_VERSION);
    let api = HeaderName::from_static(API_HEADER);
    response.headers_mut().insert(api, version);
    response
}

// === impl Operation ===

impl Operation {
    /// Bytes of the largest body: of a larger one nothing is kept.
    pub const fn max_body() -> usize {
        MAX_BYTES
    }

    /// Whether the body says anything.
    pub fn reads_body(&self) -> bool {
        matches!(self.what, What::Put { .. })
    }
}

// === impl RefusedRequest ===

impl RefusedRequest {
    /// The response.
    pub fn response(&self) -> Response<Bytes> {
        self.0.response()
    }
}

// === impl Wrong ===

impl Wrong {
    fn status_and_kind(&self) -> (StatusCode, &'static str) {
        match self {
            Self::Path => (StatusCode::NOT_FOUND, "not-found"),
            Self::Absent => (StatusCode::NOT_FOUND, "unknown-key"),
            Self::Method => (StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed"),
            Self::Key(_) | Self::Tag(_) | Self::Count => (StatusCode::BAD_REQUEST, "bad-request"),
            Self::Body(error) => {
                let status =
                    StatusCode::from_u16(error.status()).unwrap_or(StatusCode::BAD_REQUEST);
                let kind = match status {
                    StatusCode::PAYLOAD_TOO_LARGE => "too-large",
                    StatusCode::UNSUPPORTED_MEDIA_TYPE => "unsupported-type",
                    _ => "bad-request",
                };
                (status, kind)
            }
            Self::Store(StoreError::Conflict) => (StatusCode::CONFLICT, "conflict"),
            Self::Store(StoreError::TooLarge) => (StatusCode::PAYLOAD_TOO_LARGE, "too-large"),
            Self::Store(_) => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
        }
    }

    fn response(&self) -> Response<Bytes> {
        let (status, kind) = self.status_and_kind();
        let body = ErrorBody {
            error: ErrorDetail {
                message: self.to_string(),
                kind: kind.to_owned(),
                code: status.as_u16(),
            },
        };
        let mut headers = HeaderMap::new();
        let json = BodyForm::Json.content_type();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(json));
        if status == StatusCode::METHOD_NOT_ALLOWED {
            headers.insert(ALLOW, HeaderValue::from_static(ALLOWED));
        }
        let body = serde_json::to_vec(&body).unwrap_or_default();
        respond(status, headers, body.into())
    }
}

#[cfg(test)]
mod tests;
