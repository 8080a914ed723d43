//! Responses.

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Response, StatusCode, header};
use http_body_util::Full;
use processor_api::{API_HEADER, API_VERSION, ErrorBody, ErrorDetail, Refusal};

pub(crate) type Reply = Response<Full<Bytes>>;

/// Why a call gets no answer, beyond what a [`Refusal`] says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Refused(Refusal),
    NotFound,
    /// The path has this method alone.
    Method(Method),
    Unauthorized,
    /// The body did not come in time, or broke off.
    LateBody,
    Internal,
    /// The Router could not be reached.
    NoRouter,
    /// The Router did not answer in time.
    LateRouter,
    /// The Router knows no such booking.
    UnknownReservation,
}

// === impl Fault ===

impl Fault {
    fn status(&self) -> u16 {
        match self {
            Self::Refused(refusal) => refusal.status(),
            Self::NotFound | Self::UnknownReservation => 404,
            Self::Method(_) => 405,
            Self::Unauthorized => 401,
            Self::LateBody => 408,
            Self::Internal => 500,
            Self::NoRouter => 502,
            Self::LateRouter => 504,
        }
    }

    /// Stable: on the wire and in logs alike.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Refused(refusal) => refusal.reason(),
            Self::NotFound => "not-found",
            Self::Method(_) => "method",
            Self::Unauthorized => "unauthorized",
            Self::LateBody => "late-body",
            Self::Internal => "internal",
            Self::NoRouter => "router-unreachable",
            Self::LateRouter => "router-timeout",
            Self::UnknownReservation => "unknown-reservation",
        }
    }

    fn message(&self) -> String {
        match self {
            Self::Refused(refusal) => return refusal.to_string(),
            Self::NotFound => "no such path",
            Self::Method(method) => return format!("use {method} here"),
            Self::Unauthorized => "this service needs a bearer token",
            Self::LateBody => "the body did not come in time",
            Self::Internal => "internal error",
            Self::NoRouter => "the Router cannot be reached",
            Self::LateRouter => "the Router does not answer in time",
            Self::UnknownReservation => "no such reservation",
        }
        .to_owned()
    }

    /// The response; `ends`: no other one comes on this connection.
    pub(crate) fn reply(&self, ends: bool) -> Reply {
        let body = match self {
            Self::Refused(refusal) => ErrorBody::from(refusal),
            fault => ErrorBody {
                error: ErrorDetail {
                    message: fault.message(),
                    kind: fault.reason().to_owned(),
                    code: fault.status(),
                },
            },
        };
        let status = StatusCode::from_u16(self.status());
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        // strings and numbers only: it cannot fail
        let body = serde_json::to_vec(&body).unwrap_or_default();
        let mut reply = json(status, body.into());
        let headers = reply.headers_mut();
        match self {
            Self::Method(method) => {
                let value = HeaderValue::from_str(method.as_str());
                headers.extend(value.ok().map(|value| (header::ALLOW, value)));
            }
            Self::Unauthorized => {
                let bearer = HeaderValue::from_static("Bearer");
                headers.insert(header::WWW_AUTHENTICATE, bearer);
            }
            _ => {}
        }
        if ends {
            let close = HeaderValue::from_static("close");
            headers.insert(header::CONNECTION, close);
        }
        reply
    }
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// A response of JSON.
pub(crate) fn json(status: StatusCode, body: Bytes) -> Reply {
    let mut reply = empty(status);
    let kind = HeaderValue::from_static("application/json");
    reply.headers_mut().insert(header::CONTENT_TYPE, kind);
    *reply.body_mut() = Full::new(body);
    reply
}

/// A response without a body.
pub(crate) fn empty(status: StatusCode) -> Reply {
    let mut reply = Response::new(Full::new(Bytes::new()));
    *reply.status_mut() = status;
    let version = HeaderValue::from_static(API_VERSION);
    let headers = reply.headers_mut();
    headers.insert(HeaderName::from_static(API_HEADER), version);
    reply
}
