//! The Processor over HTTP.

use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header::CONTENT_TYPE, uri::PathAndQuery};
use http_call::{BaseUrl, Call, CallError, Hop, Outcome, Reply, Sender, Sending, Settings, Trust};
use processor_api::{
    Keepalive, PROCESS_PATH, PrefillComplete, ProcessReply, ROUTE_PATH, StageFailure,
};
use prometheus_client::metrics::counter::Counter;
use serde::Serialize;
use tokio::task::spawn_blocking;
use tracing::debug;

use super::{CallProcessor, LifeCycle, NoReply, Outgoing, Skip};

/// Reports of bookings at once; the sender's own bound is below it.
const REPORTS: usize = 64;

/// Bytes of an answer to a report: it says nothing.
const MAX_REPORT_REPLY: usize = 64 << 10;

/// 1 MiB: reading it takes some milliseconds; larger replies are read beside the threads of streams.
const MAX_READ_HERE: usize = 1 << 20;

/// Bytes of an id in JSON, with its comma: no reply has more ids than it has of these.
const BYTES_PER_ID: usize = 2;

/// Asks by HTTP.
#[derive(Debug)]
pub(crate) struct Client {
    hop: Hop,
    reports: Sender,
    timeout: Duration,
    max_ids: usize,
}

/// How the Processor is reached.
#[derive(Clone, Debug)]
pub(crate) struct ClientSettings {
    pub(crate) base: BaseUrl,
    /// Of a question.
    pub(crate) timeout: Duration,
    /// Questions at once.
    pub(crate) max_in_flight: usize,
    /// Bytes of a reply.
    pub(crate) max_reply: usize,
    /// For https. Absent: as the system has it.
    pub(crate) tls: Option<Trust>,
}

// === impl Client ===

impl Client {
    /// Reports are sent by who runs the second part; `dropped` counts those that are not.
    pub(crate) fn new(settings: ClientSettings, dropped: Counter) -> (Self, Sending) {
        let ClientSettings {
            base,
            timeout,
            max_in_flight,
            max_reply,
            tls,
        } = settings;
        let base = base.without_suffix(PROCESS_PATH);
        let hop = |max_in_flight, max_reply| {
            let settings = Settings {
                max_in_flight,
                max_reply,
                tls: tls.clone(),
                isthmus: true,
            };
            Hop::new(base.clone(), settings)
        };
        // Apart, so that reports neither take the places of questions nor hide that those fail.
        let (reports, sending) = Sender::new(hop(REPORTS, MAX_REPORT_REPLY), dropped);
        let client = Self {
            hop: hop(max_in_flight, max_reply),
            reports,
            timeout,
            max_ids: max_reply / BYTES_PER_ID,
        };
        (client, sending)
    }
}

impl CallProcessor for Client {
    fn process(&self, question: Outgoing) -> BoxFuture<'static, Result<ProcessReply, NoReply>> {
        let (hop, within, max_ids) = (self.hop.clone(), self.timeout, self.max_ids);
        let Outgoing { headers, body } = question;
        let call = Call {
            method: Method::POST,
            path: PathAndQuery::from_static(PROCESS_PATH),
            headers,
            body,
        };
        Box::pin(async move {
            let mut read = None;
            let judge = |reply: &Reply| {
                if reply.body.len() > MAX_READ_HERE {
                    return reply.outcome();
                }
                let result = read.insert(reading(reply.status, &reply.body, max_ids));
                match result {
                    Err(NoReply::Failed(failure)) if failure.counts_for_breaker() => {
                        Outcome::Failure
                    }
                    _ => Outcome::Success,
                }
            };
            let reply = hop
                .call_judged(call, within, judge)
                .await
                .map_err(|error| {
                    debug!(reason = error.reason(), %error, "no reply of the Processor");
                    no_reply(&error)
                })?;
            if let Some(result) = read {
                return result;
            }
            let read = move || reading(reply.status, &reply.body, max_ids);
            let result = spawn_blocking(read).await;
            result.unwrap_or(Err(NoReply::Failed(StageFailure::Invalid)))
        })
    }

    fn report(&self, report: LifeCycle) {
        if let Some(call) = call_of(report) {
            self.reports.send(call);
        }
    }

    fn is_open(&self) -> bool {
        self.hop.is_open()
    }
}

/// What a response says.
fn reading(status: StatusCode, body: &Bytes, max_ids: usize) -> Result<ProcessReply, NoReply> {
    if status != StatusCode::OK {
        let failure = StageFailure::of_response(status.as_u16(), body);
        return Err(NoReply::Failed(failure));
    }
    ProcessReply::parse(body, max_ids).map_err(|error| {
        debug!(%error, "the reply of the Processor cannot be used");
        NoReply::Failed(StageFailure::Invalid)
    })
}

fn no_reply(error: &CallError) -> NoReply {
    match error {
        CallError::Open => NoReply::Skipped(Skip::BreakerOpen),
        CallError::Busy => NoReply::Skipped(Skip::Busy),
        CallError::Connect(_) => NoReply::Unreachable,
        CallError::Late => NoReply::Failed(StageFailure::Timeout),
        CallError::Broken(_) | CallError::TooLarge => NoReply::Failed(StageFailure::Invalid),
    }
}

/// Strings alone: it cannot fail.
fn json(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value).unwrap_or_default().into()
}

/// The call that a report is; none where its path were none, which no id makes it.
fn call_of(report: LifeCycle) -> Option<Call> {
    let (method, path, body) = match report {
        LifeCycle::PrefillComplete(id, worker) => {
            let worker_address = worker.to_string();
            let body = json(&PrefillComplete { worker_address });
            (
                Method::POST,
                format!("{ROUTE_PATH}/{id}/prefill_complete"),
                Some(body),
            )
        }
        LifeCycle::End(id) => (Method::DELETE, format!("{ROUTE_PATH}/{id}"), None),
        LifeCycle::Keepalive(reservation_ids) => {
            let body = json(&Keepalive { reservation_ids });
            (Method::POST, format!("{ROUTE_PATH}/keepalive"), Some(body))
        }
    };
    let mut headers = HeaderMap::new();
    if body.is_some() {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    Some(Call {
        method,
        path: path.parse().ok()?,
        headers,
        body: body.into_iter().collect(),
    })
}

#[cfg(test)]
mod tests;
