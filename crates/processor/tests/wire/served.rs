//! A Processor on ports of its own, and a client of it.

use std::{fs, net::SocketAddr, num::NonZeroUsize, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use http_call::{BaseUrl, Call, Hop, Reply};
use http_service::{Acceptor, Handler, Server};
use processor::{
    Encoders, Metrics, Models, Router, Service, Settings, Shared, Steps, TokenPort, TokenTransfer,
    Transfer,
};
use prometheus_client::metrics::counter::Counter;
use serde_json::Value;
use tempfile::TempDir;
use token_cache::{Endpoint, Store};
use tokenization::{Catalogue, EncodeOptions, SegmentCache, sample};
use tokio::{net::TcpListener, task::JoinSet};
use tokio_util::sync::CancellationToken;

/// Longer than any answer takes.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

const MODELS: &str = "
models:
- name: tiny
  path: tiny
- name: short
  path: tiny
  maxModelLen: 4
- name: chatless
  path: chatless
- name: strict
  path: tiny
  chatTemplate: strict.jinja
";

/// What differs between tests.
pub(crate) struct Options {
    pub(crate) router: Option<SocketAddr>,
    pub(crate) route_timeout: Duration,
    pub(crate) mode: TokenTransfer,
    pub(crate) token: Option<&'static str>,
    pub(crate) max_prompt_bytes: usize,
}

/// A Processor.
pub(crate) struct Served {
    pub(crate) calls: Hop,
    pub(crate) address: SocketAddr,
    pub(crate) tokens: Hop,
    pub(crate) stop: CancellationToken,
    pub(crate) tasks: JoinSet<()>,
    _base: TempDir,
}

// === impl Options ===

impl Default for Options {
    fn default() -> Self {
        Self {
            router: None,
            // so that a busy machine makes no Router late
            route_timeout: Duration::from_secs(4),
            mode: TokenTransfer::Auto,
            token: None,
            max_prompt_bytes: 16 << 20,
        }
    }
}

// === impl Served ===

impl Served {
    pub(crate) async fn start(options: Options) -> Self {
        let base = TempDir::new().unwrap();
        for name in ["tiny", "chatless"] {
            sample::write(&base.path().join(name)).unwrap();
        }
        fs::remove_file(base.path().join("chatless/chat_template.jinja")).unwrap();
        let strict = "{{ raise_exception('roles must alternate') }}";
        fs::write(base.path().join("strict.jinja"), strict).unwrap();
        let mut number = 0;
        let next_number = || {
            number += 1;
            number
        };
        let former = Catalogue::default();
        let catalogue = Catalogue::load(MODELS, base.path(), &former, next_number).unwrap();
        let cache = token_cache::Settings::default();
        let (store, _) = Store::open(Endpoint::Memory, cache).unwrap();
        let shared = Shared {
            models: Models::fixed(catalogue),
            options: EncodeOptions {
                cache: SegmentCache::new(64 << 20, 1),
                verify_sample: 0.001,
            },
            max_prompt_bytes: options.max_prompt_bytes,
            metrics: Metrics::default(),
        };
        let steps = Steps {
            encoders: Arc::new(Encoders::start(NonZeroUsize::new(2).unwrap(), 256).unwrap()),
            shared: Arc::new(shared),
            router: options
                .router
                .map(|address| Router::new(url(address), None)),
            tokens: Some(store.clone()),
            transfer: Transfer {
                mode: options.mode,
                threshold: 64 << 10,
            },
            route_timeout: options.route_timeout,
            store_timeout: Duration::from_millis(200),
            spans: None,
        };
        let tokens = |token: &str| http_service::Tokens::new(vec![token.to_owned()]);
        let tokens = options.token.map(tokens);
        let settings = Settings {
            steps,
            tokens: tokens.clone(),
        };
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let address = serve(Service::new(settings), &stop, &mut tasks).await;
        let token_port = serve(TokenPort::new(store, tokens), &stop, &mut tasks).await;
        Self {
            calls: hop(address),
            address,
            tokens: hop(token_port),
            stop,
            tasks,
            _base: base,
        }
    }

    /// Posts to the port of calls.
    pub(crate) async fn post(&self, path: &str, body: impl Into<Bytes>) -> Reply {
        ask(&self.calls, "POST", path, &[], body).await
    }

    /// The reply to a call of `/process` that succeeds.
    pub(crate) async fn process(&self, call: &str) -> Value {
        let reply = self.post("/process", call.to_owned()).await;
        assert_eq!(reply.status, 200, "{call}: {}", text(&reply));
        serde_json::from_slice(&reply.body).unwrap()
    }
}

async fn serve<H: Handler>(
    handler: H,
    stop: &CancellationToken,
    tasks: &mut JoinSet<()>,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server {
        handler,
        acceptor: Acceptor::plaintext(),
        threads: NonZeroUsize::MIN,
        refused: Counter::default(),
    };
    let serving = server.serve(listener, CancellationToken::new(), stop.clone());
    tasks.spawn(async { serving.await.unwrap() });
    address
}

pub(crate) fn url(address: SocketAddr) -> BaseUrl {
    format!("http://{address}").parse().unwrap()
}

fn hop(address: SocketAddr) -> Hop {
    let settings = http_call::Settings {
        max_reply: 64 << 20,
        isthmus: false,
        ..http_call::Settings::default()
    };
    Hop::new(url(address), settings)
}

pub(crate) async fn ask(
    hop: &Hop,
    method: &str,
    path: &str,
    headers: &[(&'static str, &str)],
    body: impl Into<Bytes>,
) -> Reply {
    let header = |(name, value): &(&'static str, &str)| {
        let value = HeaderValue::from_str(value).unwrap();
        (HeaderName::from_static(name), value)
    };
    let call = Call {
        method: method.parse::<Method>().unwrap(),
        path: path.parse().unwrap(),
        headers: headers.iter().map(header).collect::<HeaderMap>(),
        body: vec![body.into()],
    };
    hop.call(call, LIMIT).await.unwrap()
}

pub(crate) fn text(reply: &Reply) -> &str {
    str::from_utf8(&reply.body).unwrap()
}

/// A call of `/process` for a chat of one user.
pub(crate) fn chat(model: &str, route: bool, content: &str) -> String {
    let body = serde_json::json!({
        "model": model, "route": route, "messages": [{"role": "user", "content": content}],
    });
    serde_json::json!({ "request_body": body }).to_string()
}
