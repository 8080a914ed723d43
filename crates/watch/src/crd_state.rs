//! Whether a CRD still serves its kind, asked after an object of that kind vanished.
//!
//! Deleting a CRD first sends DELETED for each of its objects, then answers 404, then ends the watches (K8 of the facts in
//! `e2e/tests/crd_facts`). So neither a DELETED event nor a list without the object proves that somebody deleted it.

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client};
use tokio::time::{sleep, timeout};
use tracing::warn;

use crate::backoff;

/// What the API server says of a CRD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CrdState {
    /// It stands.
    Standing {
        /// `metadata.uid`: tells it from one of the same name that was deleted.
        uid: String,
        /// `metadata.generation`: grows with each change of the spec, and so of the schema.
        generation: i64,
    },
    /// It is not there, or it is being deleted.
    Gone,
    /// We have no right to get it (403).
    Forbidden,
}

/// Under which CRD the objects of a kind were last listed.
#[derive(Clone, Debug, Default)]
pub struct LastListed(Option<String>);

/// One request; it is repeated until it is answered.
const TIMEOUT: Duration = Duration::from_secs(5);
const RETRY_MIN: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// Gets the CRD's metadata, again and again until the server answers.
pub async fn crd_state(client: &Client, name: &str) -> CrdState {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut failures = 0;
    loop {
        match timeout(TIMEOUT, crds.get_metadata(name)).await {
            Ok(Ok(crd)) => {
                let standing = crd.metadata.deletion_timestamp.is_none();
                let generation = crd.metadata.generation.unwrap_or_default();
                return match crd.metadata.uid {
                    Some(uid) if standing => CrdState::Standing { uid, generation },
                    _ => CrdState::Gone,
                };
            }
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => return CrdState::Gone,
            Ok(Err(kube::Error::Api(status))) if status.code == 403 => {
                warn!(
                    crd = name,
                    "no right to get the CRD: the end of its objects cannot be confirmed"
                );
                return CrdState::Forbidden;
            }
            Ok(Err(_)) | Err(_) => {
                failures += 1;
                let wait = backoff(failures, RETRY_MIN, RETRY_MAX, &mut rand::rng());
                sleep(wait).await;
            }
        }
    }
}

// === impl LastListed ===

impl LastListed {
    /// Whether objects that vanished were deleted, by what the CRD says after that: it stands, and they were listed under
    /// it. With `listed` a complete list is what they vanished by; the next is compared with it. Who has no right to ask
    /// must believe it.
    pub fn confirms(&mut self, state: &CrdState, listed: bool) -> bool {
        match state {
            CrdState::Standing { uid, .. } => {
                let same = self.0.as_ref().is_none_or(|before| before == uid);
                if listed {
                    self.0 = Some(uid.clone());
                }
                same
            }
            CrdState::Gone => false,
            CrdState::Forbidden => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response, StatusCode};
    use kube::client::Body;
    use serde_json::{Value, json};
    use tower_test::mock;

    use super::*;

    fn mk_crd(metadata: Value) -> (u16, Value) {
        (200, json!({"metadata": metadata}))
    }

    fn mk_status(code: u16) -> (u16, Value) {
        let status = json!({"kind": "Status", "status": "Failure", "code": code, "message": "", "reason": ""});
        (code, status)
    }

    /// What is made of these answers, which must all be asked for.
    async fn after(answers: Vec<(u16, Value)>) -> CrdState {
        let (service, mut server) = mock::pair::<Request<Body>, Response<Body>>();
        let client = Client::new(service, "default");
        let serve = async {
            for (code, body) in answers {
                let (request, send) = server.next_request().await.expect("a request");
                let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/pools.example";
                assert_eq!(request.uri().path(), path);
                let body = Body::from(body.to_string().into_bytes());
                let response = Response::builder()
                    .status(StatusCode::from_u16(code).expect("a status"))
                    .body(body)
                    .expect("a response");
                send.send_response(response);
            }
        };
        tokio::join!(crd_state(&client, "pools.example"), serve).0
    }

    #[test]
    fn only_the_crd_of_the_last_list_confirms_an_end() {
        let standing = |uid: &str| CrdState::Standing {
            uid: uid.into(),
            generation: 1,
        };
        let mut last = LastListed::default();
        assert!(last.confirms(&standing("one"), true), "nothing before it");
        assert!(last.confirms(&standing("one"), false));
        assert!(!last.confirms(&CrdState::Gone, true));
        assert!(last.confirms(&CrdState::Forbidden, false));
        assert!(!last.confirms(&standing("two"), false));
        assert!(!last.confirms(&standing("two"), true));
        assert!(last.confirms(&standing("two"), false));
    }

    #[tokio::test(start_paused = true)]
    async fn a_crd_stands_only_with_a_uid_and_without_a_deletion() {
        let standing = CrdState::Standing {
            uid: "u".into(),
            generation: 3,
        };
        let deleted =
            json!({"uid": "u", "generation": 3, "deletionTimestamp": "2026-01-01T00:00:00Z"});
        assert_eq!(
            after(vec![mk_crd(json!({"uid": "u", "generation": 3}))]).await,
            standing
        );
        assert_eq!(after(vec![mk_crd(deleted)]).await, CrdState::Gone);
        assert_eq!(after(vec![mk_crd(json!({}))]).await, CrdState::Gone);
        assert_eq!(after(vec![mk_status(404)]).await, CrdState::Gone);
        assert_eq!(after(vec![mk_status(403)]).await, CrdState::Forbidden);
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_asked_again_until_it_is_answered() {
        let answers = vec![mk_status(500), mk_status(401), mk_crd(json!({"uid": "u"}))];
        let standing = CrdState::Standing {
            uid: "u".into(),
            generation: 0,
        };
        assert_eq!(after(answers).await, standing);
    }
}
