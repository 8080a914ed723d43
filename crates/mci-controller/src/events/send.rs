//! The event queue of one cluster, and the task that sends its events.

use std::{sync::Arc, time::Duration};

use crd::annotations::MCI_CONTROLLER;
use jiff::Timestamp;
use k8s_openapi::{api::core::v1::ObjectReference, apimachinery::pkg::apis::meta::v1::Time};
use lease::Claim;
use moment::{Clock, Moment};
use serde_json::{Value, json};
use tokio::{
    sync::{Mutex, mpsc},
    time::{sleep, sleep_until},
};
use xxhash_rust::xxh3::xxh3_64;

use super::{EventReason, reason::NORMAL, reported::INTERVAL};
use crate::{
    client::Direct,
    text,
    write::{
        Call, Caller, Queue,
        action::{Failure, Outcome},
        throttle,
    },
};

/// Both ends of a bounded channel, which outlasts connections.
#[derive(Debug)]
pub(crate) struct EventQueue {
    sender: mpsc::Sender<QueuedEvent>,
    /// Locked by the sender task.
    waiting: Mutex<mpsc::Receiver<QueuedEvent>>,
}

/// An event to apply.
#[derive(Debug)]
pub(super) struct QueuedEvent {
    event: Value,
    since: Moment,
}

/// 256: the 50 pools of a member of design section 7 with 5 reasons each.
const MAX_WAITING: usize = 256;
/// Timeout of each call of an event: one call, or two for our Lease.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// How often an event is sent if the server throttles it each time.
const MAX_TRIES: u32 = 3;
/// Longest note in bytes that the API server accepts.
const MAX_NOTE: usize = 1024;

/// Sends the waiting events while we lead, one at a time. Events wait while `writes` must, and a throttled event delays
/// both. The event in flight when the claim ends is dropped. Ends only when dropped.
pub(crate) async fn run_sender(
    events: Arc<EventQueue>,
    writes: Arc<Queue>,
    client: Direct,
    cluster: String,
    claim: Claim,
    clock: Clock,
) {
    let mut waiting = events.waiting.lock().await;
    loop {
        let tenure = claim.gained().await;
        let caller = Caller {
            client: client.clone(),
            timeout: CALL_TIMEOUT,
            tenure: tenure.clone(),
            clock,
        };
        let sending = async {
            while let Some(report) = waiting.recv().await {
                // an older event may have been reported by another leader since
                if tenure.since().since(report.since) <= INTERVAL {
                    deliver(report, &writes, &caller, &cluster).await;
                }
            }
        };
        tokio::select! {
            biased;
            () = tenure.ended() => {}
            () = sending => {}
        }
    }
}

async fn deliver(mut report: QueuedEvent, writes: &Queue, caller: &Caller, member: &str) {
    let clock = caller.clock;
    for _ in 0..MAX_TRIES {
        while clock.now() < writes.not_before() {
            sleep_until(clock.instant(writes.not_before())).await;
        }
        let outcome = send(&mut report.event, caller, member).await;
        match outcome.unwrap_or_else(|outcome| outcome) {
            Outcome::Throttled(asked) => {
                if let Some(asked) = asked {
                    writes.pause(asked, clock.now());
                }
                // if only events are throttled, half of the time is left to writes
                sleep(throttle(asked) * 2).await;
            }
            Outcome::Retry(Failure::Timeout | Failure::Unconnected) => {
                return sleep(throttle(None)).await;
            }
            _ => return,
        }
    }
}

async fn send(event: &mut Value, caller: &Caller, member: &str) -> Result<Outcome, Outcome> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let about = &mut event["involvedObject"];
    let namespace = text(&about["namespace"]);
    if about["uid"].is_null() {
        // it is our Lease
        let call = Call::get_lease_metadata(&namespace, &text(&about["name"]));
        let lease = caller.call(call).await?.body;
        let lease: Value = serde_json::from_slice(&lease).unwrap_or_default();
        about["uid"] = lease["metadata"]["uid"].clone();
    }
    let (name, body) = (text(&event["metadata"]["name"]), event.to_string());
    let call = Call::apply_event(&namespace, &name, body.into());
    let answer = caller.call(call).await?;
    let outcome = answer.outcome();
    if outcome != Outcome::Done {
        let error = text::clipped(answer.message(), text::MAX_MESSAGE);
        tracing::warn!(member, event = name, status = %answer.status, error, "event not written");
    }
    Ok(outcome)
}

// === impl Report ===

impl QueuedEvent {
    /// The same text about the same object has the same name, so that a controller that takes over updates the event of
    /// its predecessor.
    pub(super) fn new(
        regarding: &ObjectReference,
        reason: EventReason,
        note: &str,
        (since, at): (Moment, Timestamp),
    ) -> Self {
        let uid = regarding.uid.as_deref().unwrap_or_default();
        let hash = xxh3_64(format!("{uid}\0{reason}\0{note}").as_bytes());
        // 253 characters at most
        let characters = regarding.name.iter().flat_map(|name| name.chars());
        let object: String = characters.take(230).collect();
        let event = json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "namespace": regarding.namespace,
                "name": format!("{}.{hash:016x}", object.trim_end_matches(['.', '-'])),
            },
            "involvedObject": regarding,
            "reason": reason,
            "type": if NORMAL.contains(&reason) { "Normal" } else { "Warning" },
            "message": note.get(..note.floor_char_boundary(MAX_NOTE)),
            "count": 1,
            "firstTimestamp": Time(at),
            "lastTimestamp": Time(at),
            "source": {"component": MCI_CONTROLLER},
            "reportingComponent": MCI_CONTROLLER,
        });
        Self { event, since }
    }
}

// === impl EventQueue ===

impl Default for EventQueue {
    fn default() -> Self {
        let (sender, waiting) = mpsc::channel(MAX_WAITING);
        let waiting = Mutex::new(waiting);
        Self { sender, waiting }
    }
}

impl EventQueue {
    /// Whether the event is queued: it is not if too many wait.
    pub(super) fn offer(&self, report: QueuedEvent) -> bool {
        self.sender.try_send(report).is_ok()
    }
}

#[cfg(test)]
pub(crate) mod tests;
