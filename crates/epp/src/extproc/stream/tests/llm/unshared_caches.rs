//! Picks with the open version of the former Metadata-Center, which shares load and has no calls for prompt caches.

use axum::{
    Router,
    http::{StatusCode, Uri},
    routing::{delete, get},
};
use metadata_client::TaskDied;
use tokio::{net::TcpListener, task::JoinSet};

use super::*;
use crate::{
    args::{CenterApi, CenterEndpointId, CenterFallback, CenterSettings},
    center::Center,
    director::PickElsewhere,
};

/// A Metadata-Center without calls for caches, on a port of its own.
struct OpenService {
    port: u16,
    /// The data of its next answers to load queries, in JSON.
    loads: Arc<Mutex<String>>,
    /// The paths of the calls that it does not support.
    unknown: Arc<Mutex<Vec<String>>>,
    _tasks: JoinSet<()>,
}

/// An endpoint picker that uses the service.
struct Picker {
    shared: Arc<Shared>,
    registry: Registry,
    _tasks: JoinSet<Result<(), TaskDied>>,
}

// === impl OpenService ===

impl OpenService {
    async fn start() -> Self {
        let loads = Arc::new(Mutex::new("null".to_owned()));
        let unknown = Arc::new(Mutex::new(Vec::new()));
        let data = Arc::clone(&loads);
        let load = async move || mk_envelope(&data.lock());
        let taken = async || mk_envelope("null");
        let paths = Arc::clone(&unknown);
        let refuse = async move |uri: Uri| {
            paths.lock().push(uri.path().to_owned());
            (StatusCode::NOT_FOUND, "404 page not found")
        };
        let router = Router::new()
            .route("/v1/load/stats", get(load).post(taken).delete(taken))
            .route("/v1/load/prompt", delete(taken))
            .fallback(refuse);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self {
            port,
            loads,
            unknown,
            _tasks: tasks,
        }
    }

    /// The number of requests for caches that it received.
    fn queries(&self) -> usize {
        let unknown = self.unknown.lock();
        let queries = unknown.iter().filter(|path| *path == "/v1/cache/query");
        queries.count()
    }
}

fn mk_envelope(data: &str) -> String {
    format!(r#"{{"status":"OK","error":null,"data":{data},"trace_id":"t"}}"#)
}

// === impl Picker ===

impl Picker {
    /// Picks between two endpoints. No machine is so slow that an answer of the service is late.
    fn start(service: &OpenService) -> Self {
        let settings = CenterSettings {
            host: "127.0.0.1".to_owned(),
            port: service.port,
            enabled: true,
            cache_enabled: true,
            timeout: Duration::from_mins(1),
            async_timeout: Duration::from_mins(1),
            queue_size: 1000,
            workers: 2,
            api: CenterApi::Compat,
            fallback: CenterFallback::Own,
            endpoint_id: CenterEndpointId::Ip,
            instance: "epp-0".parse().unwrap(),
            lease: Duration::from_secs(15),
            tls: None,
            token_file: None,
        };
        let clock = Clock::start();
        let (center, running) = Center::new(&settings, 1, clock).unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(running.client.run(CancellationToken::new()));
        let mut registry = Registry::default();
        registry.register_collector(Box::new(center.collector()));
        registry.register_collector(Box::new(center.degraded()));
        let mut config = small_config();
        config.llm_filter = Some(mk_filter(PLAIN));
        let pool = Pool::default();
        let members = [A, B].map(|address| mk_member(address, address.parse().unwrap()));
        pool.replace(members.to_vec(), clock.now());
        let config = CurrentConfig::new(config);
        let director = Director::new(pool, config, Options::default(), clock);
        let by: Arc<dyn PickElsewhere> = Arc::new(center);
        let director = director.asking(Some(by));
        Self {
            shared: mk_shared_around(director, 1 << 20, &mut Registry::default()),
            registry,
            _tasks: tasks,
        }
    }

    /// Serves one request with the prompt, and returns its endpoint.
    async fn serve(&self, prompt: &str) -> String {
        let asked = ask(&self.shared, &[], &mk_chat("m", prompt)).await;
        let first = asked.first().to_owned();
        answered(asked).await;
        assert_eq!(loads(&self.shared), [(0, 0), (0, 0)]);
        first
    }

    fn metric(&self, name: &str) -> Option<f64> {
        let page = page(&self.registry);
        let mut values = page.lines().filter_map(|line| line.strip_prefix(name));
        values.next()?.trim().parse().ok()
    }
}

#[tokio::test]
async fn a_repeated_prompt_goes_where_it_is_cached_though_the_service_has_no_cache_calls() {
    let service = OpenService::start().await;
    let picker = Picker::start(&service);
    // The service is queried at the start, before any request, once its address is resolved.
    let missing = || picker.metric("epp_metadata_cache_calls_missing");
    let found = async {
        while missing() != Some(1.0) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let found = tokio::time::timeout(Duration::from_secs(20), found).await;
    assert!(
        found.is_ok(),
        "{:?}, {} queries",
        missing(),
        service.queries()
    );
    let prompt = mk_prompt("a");
    let first = picker.serve(&prompt).await;
    for _ in 0..16 {
        assert_eq!(picker.serve(&prompt).await, first);
    }
    assert_eq!(service.queries(), 1);
    assert_eq!(picker.metric("llm_degraded{kind=\"cache\"}"), Some(0.0));
    assert_eq!(picker.metric("epp_metadata_cache_calls_missing"), Some(1.0));
    // Requests that other gateways sent there count for more.
    let ip = first.split_once(':').unwrap().0;
    *service.loads.lock() =
        format!(r#"[{{"ip":"{ip}","queued_req_num":50,"prompt_length":100000,"updated_time":1}}]"#);
    assert_ne!(picker.serve(&prompt).await, first);
}
