//! The Router, over HTTP: its choices, and the messages of bookings' lives that are passed on to it.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header, uri::PathAndQuery};
use http_call::{BaseUrl, Call, CallError, Hop, Outcome, Reply, Settings, Trust};
use processor_api::{ROUTE_PATH, ReservationId, RouteReply, TOKENS_TYPE};
use tracing::debug;

use crate::steps::{RouteCall, RouteFailure, Routes};

/// Bytes of a reply: a choice with 1024 fallbacks takes some 30 KiB.
const MAX_REPLY: usize = 256 << 10;

/// Calls of each kind at once: as many as an endpoint picker has in flight here.
const MAX_IN_FLIGHT: usize = 1024;

/// The Router of a pool. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Router {
    choices: Hop,
    /// Apart, so that the Router being slow with choices does not keep bookings from their end.
    lives: Hop,
}

/// What an endpoint picker says of bookings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LifeMessage {
    /// The first byte of the response came. The body is passed on as it is.
    PrefillComplete(ReservationId, Bytes),
    /// The request ended.
    End(ReservationId),
    /// These requests still run. The body is passed on as it is.
    Keepalive(Bytes),
}

// === impl Router ===

impl Router {
    /// The one at this URL.
    pub fn new(url: BaseUrl, tls: Option<Trust>) -> Self {
        let settings = Settings {
            max_in_flight: MAX_IN_FLIGHT,
            max_reply: MAX_REPLY,
            tls,
            isthmus: true,
        };
        Self {
            choices: Hop::new(url.clone(), settings.clone()),
            lives: Hop::new(url, settings),
        }
    }

    /// Passes a message on, and returns the status of the answer.
    pub(crate) async fn pass_on(
        &self,
        message: LifeMessage,
        within: Duration,
    ) -> Result<StatusCode, CallError> {
        let call = message.into_call()?;
        let reply = self.lives.call(call, within).await?;
        Ok(reply.status)
    }
}

impl Routes for Router {
    async fn route(&self, call: RouteCall, within: Duration) -> Result<RouteReply, RouteFailure> {
        let RouteCall { frame, mut headers } = call;
        let kind = HeaderValue::from_static(TOKENS_TYPE);
        headers.insert(header::CONTENT_TYPE, kind);
        let call = Call {
            method: Method::POST,
            path: PathAndQuery::from_static(ROUTE_PATH),
            headers,
            body: vec![frame],
        };
        let result = self.choices.call_judged(call, within, judge).await;
        let chosen = choice(result);
        chosen.inspect_err(|failure| debug!(?failure, "the Router chooses no worker"))
    }
}

/// A pool that is saturated is a choice: a breaker that opened at it would end the shedding of what may be shed.
fn judge(reply: &Reply) -> Outcome {
    match reply.status {
        StatusCode::TOO_MANY_REQUESTS => Outcome::Success,
        _ => reply.outcome(),
    }
}

fn choice(result: Result<Reply, CallError>) -> Result<RouteReply, RouteFailure> {
    let reply = match result {
        Ok(reply) => reply,
        Err(CallError::Late) => return Err(RouteFailure::Late),
        Err(_) => return Err(RouteFailure::Failed),
    };
    match reply.status {
        StatusCode::OK => {
            let reply: Option<RouteReply> = serde_json::from_slice(&reply.body).ok();
            let reply = reply.filter(|reply| !reply.worker_address.is_empty());
            reply.ok_or(RouteFailure::Failed)
        }
        StatusCode::TOO_MANY_REQUESTS => Err(RouteFailure::Saturated),
        _ => Err(RouteFailure::Failed),
    }
}

// === impl LifeMessage ===

impl LifeMessage {
    fn into_call(self) -> Result<Call, CallError> {
        let (method, path, body) = match self {
            Self::PrefillComplete(id, body) => {
                let path = format!("{ROUTE_PATH}/{id}/prefill_complete");
                (Method::POST, path, Some(body))
            }
            Self::End(id) => (Method::DELETE, format!("{ROUTE_PATH}/{id}"), None),
            Self::Keepalive(body) => (Method::POST, format!("{ROUTE_PATH}/keepalive"), Some(body)),
        };
        let mut headers = HeaderMap::new();
        if body.is_some() {
            let json = HeaderValue::from_static("application/json");
            headers.insert(header::CONTENT_TYPE, json);
        }
        Ok(Call {
            method,
            // ids have letters and digits alone
            path: path.parse().map_err(|_| CallError::Broken(String::new()))?,
            headers,
            body: body.into_iter().collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn mk_reply(status: u16, body: &'static str) -> Reply {
        Reply {
            status: StatusCode::from_u16(status).unwrap(),
            headers: HeaderMap::new(),
            body: Bytes::from_static(body.as_bytes()),
        }
    }

    #[rstest]
    #[case::chosen(
        Ok(mk_reply(200, r#"{"worker_address":"w-3:8080","new":1}"#)),
        Ok("w-3:8080")
    )]
    #[case::nobody(
        Ok(mk_reply(200, r#"{"worker_address":""}"#)),
        Err(RouteFailure::Failed)
    )]
    #[case::no_reply(Ok(mk_reply(200, "hello")), Err(RouteFailure::Failed))]
    #[case::no_workers(Ok(mk_reply(503, "{}")), Err(RouteFailure::Failed))]
    #[case::bad_request(Ok(mk_reply(400, "{}")), Err(RouteFailure::Failed))]
    #[case::saturated(Ok(mk_reply(429, "{}")), Err(RouteFailure::Saturated))]
    #[case::late(Err(CallError::Late), Err(RouteFailure::Late))]
    #[case::breaker(Err(CallError::Open), Err(RouteFailure::Failed))]
    fn an_answer_is_a_worker_or_a_reason(
        #[case] result: Result<Reply, CallError>,
        #[case] want: Result<&str, RouteFailure>,
    ) {
        let chosen = choice(result).map(|reply| reply.worker_address);
        assert_eq!(chosen, want.map(str::to_owned));
    }
}
