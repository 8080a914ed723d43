use std::{convert::Infallible, net::SocketAddr, time::Duration};

use bytes::Bytes;
use http::{Request, Response, StatusCode, header::AUTHORIZATION};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use processor_api::TokenKey;
use redis_server::Server;
use token_cache::{Endpoint, Entry, Operation, Settings, Store, TokenService};
use tokio::{net::TcpListener, task::JoinSet, time::Instant};

/// More than any operation here takes on a loaded machine.
pub(crate) const LONG: Duration = Duration::from_secs(20);

pub(crate) enum Kind {
    Memory,
    Http,
    Redis,
}

/// A cache that is kept up, and what is behind it.
pub(crate) struct Setup {
    pub(crate) store: Store,
    pub(crate) redis: Option<Server>,
    pub(crate) tasks: JoinSet<()>,
}

impl Setup {
    pub(crate) async fn new(kind: Kind) -> Self {
        match kind {
            Kind::Memory => Self::open("memory", None).await,
            Kind::Http => {
                let mut behind = Self::open("memory", None).await;
                let service = TokenService::new(behind.store.clone(), LONG);
                let address = serve(service, None, &mut behind.tasks).await;
                let mut setup = Self::open(&format!("http://{address}"), None).await;
                setup.tasks.spawn(async move {
                    let _behind = behind;
                    std::future::pending::<()>().await;
                });
                setup
            }
            Kind::Redis => {
                let redis = Server::start().unwrap();
                Self::open(&redis.url(), Some(redis)).await
            }
        }
    }

    async fn open(endpoint: &str, redis: Option<Server>) -> Self {
        let (store, upkeep) = Store::open(parse(endpoint), Settings::default()).unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(upkeep.run());
        let setup = Self {
            store,
            redis,
            tasks,
        };
        setup.works().await;
        setup
    }

    /// Waits until the cache can be used.
    pub(crate) async fn works(&self) {
        let until = Instant::now() + LONG;
        while let Err(error) = self.store.get(mk_key(), LONG).await {
            assert!(Instant::now() < until, "{error}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) fn redis(&mut self) -> &mut Server {
        self.redis.as_mut().unwrap()
    }
}

pub(crate) fn parse(endpoint: &str) -> Endpoint {
    endpoint.parse().unwrap()
}

pub(crate) fn mk_key() -> TokenKey {
    TokenKey::random(&mut rand::rng())
}

pub(crate) fn mk_entry(ids: impl Into<Vec<u32>>) -> Entry {
    Entry {
        model: "llama-größe".into(),
        tokenizer: "00ff".into(),
        ids: ids.into().into(),
    }
}

/// The interface on a port of its own, to callers with the token alone if there is one.
pub(crate) async fn serve(
    service: TokenService,
    token: Option<&'static str>,
    tasks: &mut JoinSet<()>,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            let service = service.clone();
            connections.spawn(async move {
                let answer = service_fn(move |request| {
                    let service = service.clone();
                    async move {
                        let response = answer(&service, token, request).await;
                        Ok::<_, Infallible>(response.map(Full::new))
                    }
                });
                let _ended = http1::Builder::new()
                    .serve_connection(TokioIo::new(tcp), answer)
                    .await;
            });
        }
    });
    address
}

async fn answer(
    service: &TokenService,
    token: Option<&str>,
    request: Request<Incoming>,
) -> Response<Bytes> {
    let (head, body) = request.into_parts();
    let sent = head.headers.get(AUTHORIZATION);
    if token.is_some_and(|token| sent.is_none_or(|sent| sent != token)) {
        let mut response = Response::new(Bytes::new());
        *response.status_mut() = StatusCode::UNAUTHORIZED;
        return response;
    }
    let operation = match service.begin(&head) {
        Ok(operation) => operation,
        Err(refused) => return refused.response(),
    };
    if !operation.reads_body() {
        return service.run(operation, &[]).await;
    }
    match Limited::new(body, Operation::max_body()).collect().await {
        Ok(body) => service.run(operation, &body.to_bytes()).await,
        Err(_) => service.too_large(),
    }
}
