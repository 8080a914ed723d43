//! Sends events into one cluster.

use std::{sync::Arc, time::Duration};

use crd::annotations::MCI_CONTROLLER;
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        coordination::v1::Lease,
        core::v1::{Event, EventSource, ObjectReference},
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use lease::Claim;
use moment::Clock;
use serde_json::json;
use tokio::time::timeout;

use super::{MAX_NOTE, Outbox, ledger::Letter};

/// What a sender needs of its surroundings.
#[derive(Clone)]
pub(crate) struct SenderSettings {
    /// For log lines: the member's name, or `home`.
    pub(crate) cluster: String,
    /// Without it, what waits is dropped: the leader tells.
    pub(crate) claim: Claim,
    pub(crate) clock: Clock,
}

/// Each of the two calls that an event may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Sends what the outbox has, one after the other: events never crowd out writes. Ends only when dropped.
pub(crate) async fn run_sender(
    outbox: Arc<impl AsRef<Outbox>>,
    client: Client,
    settings: SenderSettings,
) {
    let outbox: &Outbox = (*outbox).as_ref();
    let mut complained = false;
    let mut lease = None;
    loop {
        let Some(letter) = outbox.take() else {
            outbox.rung().await;
            continue;
        };
        if !settings.claim.is_valid(settings.clock.now()) {
            continue;
        }
        let sent = match identified(&client, letter.clone(), &mut lease).await {
            Ok(letter) => send(&client, &letter).await,
            Err(error) => Err(error),
        };
        if let Err(error) = sent {
            let reason = letter.notice.reason.name();
            let denied =
                matches!(&error, SendError::Call(kube::Error::Api(status)) if status.code == 403);
            if denied && !complained {
                complained = true;
                tracing::warn!(member = settings.cluster, reason, %error, "may not write events: grant create and patch");
            } else {
                tracing::debug!(member = settings.cluster, reason, %error, "event lost");
            }
        }
    }
}

/// Fills in the uid of our Lease, without which `kubectl describe` does not find the event.
async fn identified(
    client: &Client,
    mut letter: Letter,
    known: &mut Option<String>,
) -> Result<Letter, SendError> {
    let regarding = &mut letter.notice.regarding;
    if regarding.kind != "Lease" || !regarding.uid.is_empty() {
        return Ok(letter);
    }
    if known.is_none() {
        let api: Api<Lease> = Api::namespaced(client.clone(), &regarding.namespace);
        let lease = call(api.get_metadata(&regarding.name)).await?;
        *known = lease.metadata.uid;
    }
    regarding.uid = known.clone().unwrap_or_default();
    Ok(letter)
}

/// Why an event was not sent.
#[derive(Debug, thiserror::Error)]
enum SendError {
    #[error("no answer within {CALL_TIMEOUT:?}")]
    Timeout,
    #[error("{0}")]
    Call(kube::Error),
}

async fn send(client: &Client, letter: &Letter) -> Result<(), SendError> {
    let api: Api<Event> = Api::namespaced(client.clone(), &letter.notice.regarding.namespace);
    if letter.count > 1 {
        let again = json!({"count": letter.count, "lastTimestamp": Time(letter.notice.at)});
        let patch = Patch::Merge(&again);
        let params = PatchParams::default();
        match call(api.patch(&letter.name, &params, &patch)).await {
            // it aged out: told anew, with its count
            Err(SendError::Call(kube::Error::Api(status))) if status.code == 404 => {}
            outcome => return outcome.map(drop),
        }
    }
    match call(api.create(&PostParams::default(), &event(letter))).await {
        // a controller before this one said the same of the same object
        Err(SendError::Call(kube::Error::Api(status))) if status.code == 409 => Ok(()),
        outcome => outcome.map(drop),
    }
}

async fn call<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, SendError> {
    match timeout(CALL_TIMEOUT, call).await {
        Ok(outcome) => outcome.map_err(SendError::Call),
        Err(_) => Err(SendError::Timeout),
    }
}

fn event(letter: &Letter) -> Event {
    let Letter {
        notice,
        name,
        count,
        first,
    } = letter;
    let regarding = &notice.regarding;
    let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let time = |at: &Timestamp| Some(Time(*at));
    Event {
        metadata: ObjectMeta {
            namespace: text(&regarding.namespace),
            name: text(name),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: text(regarding.api_version),
            kind: text(regarding.kind),
            namespace: text(&regarding.namespace),
            name: text(&regarding.name),
            uid: text(&regarding.uid),
            ..ObjectReference::default()
        },
        reason: text(notice.reason.name()),
        type_: text(notice.reason.type_()),
        message: Some(clipped(&notice.note)),
        count: i32::try_from(*count).ok(),
        first_timestamp: time(first),
        last_timestamp: time(&notice.at),
        source: Some(EventSource {
            component: text(MCI_CONTROLLER),
            host: None,
        }),
        reporting_component: text(MCI_CONTROLLER),
        ..Event::default()
    }
}

/// At most [`MAX_NOTE`] bytes, cut between characters.
fn clipped(note: &str) -> String {
    let mut text = String::new();
    for character in note.chars() {
        if text.len() + character.len_utf8() > MAX_NOTE {
            break;
        }
        text.push(character);
    }
    text
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use http_body_util::BodyExt;
    use kube::client::Body;
    use moment::Moment;
    use serde_json::Value;
    use tower_test::mock::Handle;

    use super::*;
    use crate::{
        events::{Notice, Reason, Regarding},
        fixtures::mk_key,
    };

    type Peer = Handle<Request<Body>, Response<Body>>;

    fn mk_notice(reason: Reason) -> Notice {
        Notice {
            regarding: Regarding::pool(&mk_key("llm"), "u1"),
            subject: String::new(),
            reason,
            note: "exported to 1/2".to_owned(),
            at: Timestamp::from_second(1_000).expect("in range"),
        }
    }

    /// Takes the next request and answers it.
    async fn answer(peer: &mut Peer, status: u16) -> (String, String, Value) {
        let (request, send) = peer.next_request().await.expect("a request");
        let (parts, body) = request.into_parts();
        let bytes = body.collect().await.expect("a body").to_bytes();
        let body = match status {
            200 => serde_json::to_vec(&Event::default()).expect("JSON"),
            _ => json!({"kind": "Status", "status": "Failure", "code": status, "reason": "x", "message": "no"})
                .to_string()
                .into_bytes(),
        };
        let response = Response::builder().status(status).body(Body::from(body));
        send.send_response(response.expect("a response"));
        (
            parts.method.to_string(),
            parts.uri.path().to_owned(),
            serde_json::from_slice(&bytes).expect("JSON"),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_is_created_where_describe_finds_it_and_counted_when_repeated() {
        let (service, mut peer) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let client = Client::new(service, "default");
        let outbox = Arc::new(Outbox::default());
        outbox.offer(mk_notice(Reason::PartiallyExported), Moment::default());
        let later = Moment::from_millis(301_000);
        outbox.offer(mk_notice(Reason::PartiallyExported), later);
        let settings = SenderSettings {
            cluster: "a".to_owned(),
            claim: Claim::always(),
            clock: Clock::start(),
        };
        let script = async {
            let (method, path, body) = answer(&mut peer, 200).await;
            assert_eq!(
                (method.as_str(), path.as_str()),
                ("POST", "/api/v1/namespaces/ml/events")
            );
            assert_eq!(body["involvedObject"]["kind"], "InferencePool");
            assert_eq!(
                body["involvedObject"]["apiVersion"],
                "inference.networking.k8s.io/v1"
            );
            assert_eq!(body["involvedObject"]["uid"], "u1");
            assert_eq!(body["reason"], "PartiallyExported");
            assert_eq!(body["type"], "Warning");
            assert_eq!(body["message"], "exported to 1/2");
            assert_eq!(body["source"]["component"], MCI_CONTROLLER);
            let name = body["metadata"]["name"]
                .as_str()
                .expect("a name")
                .to_owned();
            let (method, path, body) = answer(&mut peer, 404).await;
            assert_eq!(method, "PATCH");
            assert_eq!(path, format!("/api/v1/namespaces/ml/events/{name}"));
            assert_eq!(body["count"], 2);
            // it had aged out: made anew
            let (method, _, body) = answer(&mut peer, 409).await;
            assert_eq!((method.as_str(), &body["count"]), ("POST", &json!(2)));
        };
        tokio::select! {
            () = run_sender(outbox.clone(), client, settings) => panic!("ended"),
            () = script => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_hangs_or_refuses_costs_only_its_own_event() {
        let (service, mut peer) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let client = Client::new(service, "default");
        let outbox = Arc::new(Outbox::default());
        for reason in [
            Reason::Exported,
            Reason::ImportConflict,
            Reason::NamespaceMissing,
        ] {
            outbox.offer(mk_notice(reason), Moment::default());
        }
        let settings = SenderSettings {
            cluster: "a".to_owned(),
            claim: Claim::always(),
            clock: Clock::start(),
        };
        let script = async {
            let (_hangs, _unanswered) = peer.next_request().await.expect("a request");
            let (_, _, body) = answer(&mut peer, 403).await;
            assert_eq!(body["reason"], "ImportConflict");
            let (_, _, body) = answer(&mut peer, 200).await;
            assert_eq!(body["reason"], "NamespaceMissing");
        };
        tokio::select! {
            () = run_sender(outbox.clone(), client, settings) => panic!("ended"),
            () = script => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_on_our_lease_bears_its_uid() {
        let (service, mut peer) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let client = Client::new(service, "default");
        let outbox = Arc::new(Outbox::default());
        for member in ["a", "b"] {
            let notice = Notice {
                regarding: Regarding::lease("isthmus-system", "prod"),
                subject: member.to_owned(),
                ..mk_notice(Reason::Member("AuthFailed"))
            };
            outbox.offer(notice, Moment::default());
        }
        let settings = SenderSettings {
            cluster: "home".to_owned(),
            claim: Claim::always(),
            clock: Clock::start(),
        };
        let script = async {
            let (request, send) = peer.next_request().await.expect("a request");
            let path =
                "/apis/coordination.k8s.io/v1/namespaces/isthmus-system/leases/isthmus-mci-prod";
            assert_eq!(request.uri().path(), path);
            let lease = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {"uid": "l1"}});
            let body = Body::from(lease.to_string().into_bytes());
            send.send_response(Response::new(body));
            for _ in ["a", "b"] {
                let (_, path, body) = answer(&mut peer, 200).await;
                assert_eq!(path, "/api/v1/namespaces/isthmus-system/events");
                assert_eq!(body["involvedObject"]["uid"], "l1");
                assert_eq!(body["reason"], "AuthFailed");
            }
        };
        tokio::select! {
            () = run_sender(outbox.clone(), client, settings) => panic!("ended"),
            () = script => {}
        }
    }

    #[test]
    fn a_long_note_is_cut_between_characters() {
        let text = clipped(&"ä".repeat(1000));
        assert_eq!(text.len(), MAX_NOTE);
    }
}
