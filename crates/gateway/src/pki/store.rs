//! The Secret that keeps the authority: made once, and read by every replica that comes later.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, Error as KubeError};
use rand::RngExt as _;
use tokio::time::{sleep, timeout};
use tracing::{error, info, warn};

use super::{Authority, DAY, PkiError};

/// In the namespace of the gateway.
pub(crate) const AUTHORITY_SECRET: &str = "isthmus-gateway-ca";

const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

/// One request to the API server.
const LIMIT: Duration = Duration::from_secs(5);

/// Between two tries.
const RETRY: Duration = Duration::from_secs(2);

/// Between two looks whether it is still the same, and at most as much more, so that replicas do not all restart at once.
const LOOK: Duration = Duration::from_mins(1);

/// An authority that ends within this time is reported at each start.
const ENDS_SOON: u64 = 365 * DAY;

/// Why there is no authority yet.
#[derive(Debug, thiserror::Error)]
enum StoreError {
    #[error("Secret {namespace}/{AUTHORITY_SECRET} cannot be {what}: {problem}")]
    Request {
        namespace: String,
        what: &'static str,
        problem: String,
    },
    #[error(
        "Secret {namespace}/{AUTHORITY_SECRET} has no authority: {problem}; delete it, and a new one is made"
    )]
    Content {
        namespace: String,
        problem: PkiError,
    },
    #[error("no authority: {0}")]
    Make(#[from] PkiError),
}

/// The authority of the Secret in this namespace, which is made where there is none. It tries until it has one: without it
/// no Envoy is served.
pub(crate) async fn load(client: &Client, namespace: &str, now: impl Fn() -> u64) -> Authority {
    loop {
        match load_once(client, namespace, now()).await {
            Ok(authority) => {
                let end = u64::try_from(authority.not_after()).unwrap_or(0);
                if end < now().saturating_add(ENDS_SOON) {
                    error!(
                        secret = AUTHORITY_SECRET,
                        end,
                        "the authority of the control channel ends within a year: delete its Secret and restart the gateway"
                    );
                }
                return authority;
            }
            Err(error) => warn!(%error, "the control channel has no authority, next try in 2 s"),
        }
        sleep(RETRY).await;
    }
}

/// Comes back once the Secret has another authority, which another replica has made or an administrator has put there: the replicas are to
/// agree. A Secret that is gone, or cannot be read or used, says nothing: whoever starts next makes another one, or waits.
pub(crate) async fn replaced(client: &Client, namespace: &str, authority: &Authority) {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    loop {
        let pause = LOOK.mul_f64(rand::rng().random_range(1.0..2.0));
        sleep(pause).await;
        let read = read(&secrets, namespace).await;
        let now = read.and_then(|secret| secret.map(|one| parse(&one, namespace)).transpose());
        match now {
            Ok(Some(now)) if now.pem() != authority.pem() => return,
            Ok(_) => {}
            Err(error) => warn!(%error, "whether the authority is still the same is not known"),
        }
    }
}

async fn load_once(client: &Client, namespace: &str, now: u64) -> Result<Authority, StoreError> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    if let Some(secret) = read(&secrets, namespace).await? {
        return parse(&secret, namespace);
    }
    let (authority, key) = Authority::make(now)?;
    let secret = secret_of(&authority, key, namespace);
    let params = PostParams::default();
    let created = within("created", namespace, secrets.create(&params, &secret)).await?;
    match created {
        Ok(_) => {
            info!(
                namespace,
                secret = AUTHORITY_SECRET,
                "made the authority of the control channel"
            );
            Ok(authority)
        }
        // another replica was first: what it has made is what all use
        Err(KubeError::Api(status)) if status.code == 409 => {
            let secret = read(&secrets, namespace).await?;
            let gone = || StoreError::Request {
                namespace: namespace.to_owned(),
                what: "read",
                problem: "it is gone again".to_owned(),
            };
            parse(&secret.ok_or_else(gone)?, namespace)
        }
        Err(error) => Err(failed("created", namespace, &error)),
    }
}

async fn read(secrets: &Api<Secret>, namespace: &str) -> Result<Option<Secret>, StoreError> {
    let read = within("read", namespace, secrets.get_opt(AUTHORITY_SECRET)).await?;
    read.map_err(|error| failed("read", namespace, &error))
}

async fn within<T>(
    what: &'static str,
    namespace: &str,
    request: impl Future<Output = Result<T, KubeError>>,
) -> Result<Result<T, KubeError>, StoreError> {
    timeout(LIMIT, request)
        .await
        .map_err(|_| StoreError::Request {
            namespace: namespace.to_owned(),
            what,
            problem: "no answer in 5 s".to_owned(),
        })
}

fn failed(what: &'static str, namespace: &str, error: &KubeError) -> StoreError {
    StoreError::Request {
        namespace: namespace.to_owned(),
        what,
        problem: error.to_string(),
    }
}

fn parse(secret: &Secret, namespace: &str) -> Result<Authority, StoreError> {
    let data = |name: &str| {
        let value = secret.data.as_ref().and_then(|data| data.get(name));
        value.map_or(&[][..], |ByteString(bytes)| bytes)
    };
    Authority::parse(data(CERTIFICATE), data(KEY)).map_err(|problem| StoreError::Content {
        namespace: namespace.to_owned(),
        problem,
    })
}

/// It is of no type that Gateways take certificates from.
fn secret_of(authority: &Authority, key: String, namespace: &str) -> Secret {
    let data = [(CERTIFICATE, authority.pem().to_owned()), (KEY, key)];
    let data = data.map(|(name, text)| (name.to_owned(), ByteString(text.into_bytes())));
    let labels = [
        ("app.kubernetes.io/name", "isthmus-gateway"),
        ("app.kubernetes.io/part-of", "isthmus"),
    ];
    let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned()));
    Secret {
        metadata: ObjectMeta {
            namespace: Some(namespace.to_owned()),
            name: Some(AUTHORITY_SECRET.to_owned()),
            labels: Some(BTreeMap::from(labels)),
            ..ObjectMeta::default()
        },
        type_: Some("Opaque".to_owned()),
        data: Some(BTreeMap::from(data)),
        ..Secret::default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::{Method, Request, Response, StatusCode};
    use kube::client::Body;
    use parking_lot::Mutex;
    use serde_json::{Value, json};

    use super::*;

    const NOW: u64 = 1_800_000_000;

    type Server = tower_test::mock::Handle<Request<Body>, Response<Body>>;

    /// An API server with one Secret or none; it answers each `GET` by what was there when `GET`s began, if `late`.
    async fn serve(mut server: Server, stored: Arc<Mutex<Option<Value>>>, mut hidden: usize) {
        while let Some((request, send)) = server.next_request().await {
            let failure = |code: u16, reason: &str| {
                let status = json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": reason});
                (code, status)
            };
            let is_get = request.method() == Method::GET;
            let body = request.into_body().collect_bytes().await.unwrap();
            let (code, answer) = {
                let mut stored = stored.lock();
                match (&*stored, is_get) {
                    (Some(_), true) if hidden > 0 => {
                        hidden -= 1;
                        failure(404, "NotFound")
                    }
                    (Some(secret), true) => (200, secret.clone()),
                    (None, true) => failure(404, "NotFound"),
                    (Some(_), false) => failure(409, "AlreadyExists"),
                    (None, false) => {
                        let secret: Value = serde_json::from_slice(&body).unwrap();
                        *stored = Some(secret.clone());
                        (201, secret)
                    }
                }
            };
            let mut response = Response::new(Body::from(answer.to_string().into_bytes()));
            *response.status_mut() = StatusCode::from_u16(code).unwrap();
            send.send_response(response);
        }
    }

    async fn load_from(stored: &Arc<Mutex<Option<Value>>>, hidden: usize) -> Authority {
        let (service, server): (_, Server) = tower_test::mock::pair();
        let client = Client::new(service, "default");
        let serving = serve(server, Arc::clone(stored), hidden);
        let loading = load(&client, "isthmus-system", || NOW);
        tokio::select! {
            authority = timeout(Duration::from_secs(20), loading) => authority.expect("in time"),
            () = serving => unreachable!("the client is there"),
        }
    }

    #[tokio::test]
    async fn the_first_replica_makes_the_authority_and_all_others_read_it() {
        let stored = Arc::default();
        let first = load_from(&stored, 0).await;
        let kept = stored.lock().clone().unwrap();
        assert_eq!(kept["type"], "Opaque");
        assert_eq!(kept["metadata"]["namespace"], "isthmus-system");
        assert_eq!(load_from(&stored, 0).await.pem(), first.pem());
        // it began when there was none yet, and came second
        assert_eq!(load_from(&stored, 1).await.pem(), first.pem());
        assert_eq!(stored.lock().clone().unwrap(), kept);
    }

    /// Its Secret was deleted, and a replica that started later made another one.
    #[tokio::test(start_paused = true)]
    async fn a_replica_notices_that_others_have_another_authority() {
        let stored = Arc::default();
        let authority = load_from(&stored, 0).await;
        let (service, server): (_, Server) = tower_test::mock::pair();
        let client = Client::new(service, "default");
        let serving = serve(server, Arc::clone(&stored), 0);
        let noticing = replaced(&client, "isthmus-system", &authority);
        let happening = async {
            let same = stored.lock().clone();
            sleep(LOOK * 10).await;
            *stored.lock() = None;
            sleep(LOOK * 10).await;
            let mut damaged = same.clone();
            damaged.as_mut().unwrap()["data"]["tls.key"] = json!("");
            *stored.lock() = damaged;
            sleep(LOOK * 10).await;
            *stored.lock() = same;
            sleep(LOOK * 10).await;
            *stored.lock() = None;
            load_from(&stored, 0).await;
            tokio::time::Instant::now()
        };
        let both = async { tokio::join!(noticing, happening).1 };
        let made = tokio::select! {
            made = timeout(LOOK * 50, both) => made.expect("noticed"),
            () = serving => unreachable!("the client is there"),
        };
        assert!(made.elapsed() <= LOOK * 2, "{:?}", made.elapsed());
        assert!(made.elapsed() > Duration::ZERO, "and not before");
    }

    /// A Secret that cannot be used is never written over: certificates of it may be in use.
    #[tokio::test(start_paused = true)]
    async fn a_damaged_authority_is_waited_for() {
        let stored = Arc::default();
        let first = load_from(&stored, 0).await;
        let good = stored.lock().clone();
        if let Some(secret) = &mut *stored.lock() {
            secret["data"]["tls.key"] = json!("");
        }
        let damaged = stored.lock().clone();
        let mending = async {
            sleep(RETRY * 3).await;
            assert_eq!(*stored.lock(), damaged);
            stored.lock().clone_from(&good);
        };
        let (authority, ()) = tokio::join!(load_from(&stored, 0), mending);
        assert_eq!(authority.pem(), first.pem());
    }
}
