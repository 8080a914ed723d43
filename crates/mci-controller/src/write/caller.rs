//! Calls to one API server, each within its deadline and while we lead.

use std::{future::pending, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt, Collected, Limited};
use lease::Tenure;
use moment::Clock;
use tokio::time::timeout;

use super::{
    action::{Failure, Outcome},
    request::{Answer, Call},
};
use crate::client::Direct;

/// Sends requests. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) client: Direct,
    /// Deadline of each call.
    pub(crate) timeout: Duration,
    /// The term in which requests may be sent. The caller drops a call when it ends.
    pub(crate) tenure: Tenure,
    pub(crate) clock: Clock,
}

/// Longest answer that is read: a pool is at most 2 MiB, and of the others only failures matter.
const MAX_ANSWER_BYTES: usize = 2 * 1024 * 1024;

// === impl Caller ===

impl Caller {
    /// Makes one call. All writes, and the reads for them, are sent here only; it waits for ever once the tenure is over.
    /// # Errors
    /// The outcome of a write that had no answer.
    pub(crate) async fn call(&self, call: Call) -> Result<Answer, Outcome> {
        let request = call.request().map_err(|_| Outcome::Rejected)?;
        if !self.tenure.is_valid(self.clock.now()) {
            // the caller sees the same and drops this
            pending::<()>().await;
        }
        let exchange = async {
            let response = self.client.send(request).await.map_err(|error| {
                tracing::debug!(%error, "write failed");
                Outcome::Retry(Failure::Unconnected)
            })?;
            let (parts, body) = response.into_parts();
            let body = Limited::new(body, MAX_ANSWER_BYTES);
            let body = if parts.status.is_success() && !call.reads() {
                drain(body).await
            } else {
                body.collect().await.map(Collected::to_bytes)
            };
            let body = body.map_err(|error| {
                tracing::debug!(%error, "answer broken off");
                Outcome::Retry(Failure::Unconnected)
            })?;
            Ok(Answer::new(parts.status, &parts.headers, body))
        };
        timeout(self.timeout, exchange)
            .await
            .unwrap_or(Err(Outcome::Retry(Failure::Timeout)))
    }
}

/// Reads a body to its end, so that the connection can be used again, and keeps none of it.
async fn drain<B>(mut body: B) -> Result<Bytes, B::Error>
where
    B: BodyExt + Unpin,
{
    while let Some(frame) = body.frame().await {
        frame?;
    }
    Ok(Bytes::new())
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::{Client, client::Body};
    use lease::ByHand;
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_call_begins_only_in_its_own_term() {
        let clock = Clock::start();
        let (hand, claim) = ByHand::new(clock);
        let (service, mut server) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        hand.hold(Duration::from_secs(3));
        let caller = Caller {
            client: Client::new(service, "default").into(),
            timeout: Duration::from_secs(5),
            tenure: claim.gained().await,
            clock,
        };
        let call = || caller.call(Call::get_lease_metadata("isthmus-system", "x"));
        let answer = async {
            let (_, send) = server.next_request().await.expect("a request");
            send.send_response(Response::new(Body::empty()));
        };
        let (answered, ()) = tokio::join!(call(), answer);
        assert!(answered.is_ok(), "{answered:?}");
        // it ran out, and then another began
        sleep(Duration::from_secs(3)).await;
        for _ in ["none", "another"] {
            let minute = Duration::from_mins(1);
            let (ended, called) = tokio::join!(
                timeout(minute, call()),
                timeout(minute, server.next_request())
            );
            assert!(ended.is_err() && called.is_err(), "{called:?}");
            hand.hold(minute * 10);
        }
    }
}
