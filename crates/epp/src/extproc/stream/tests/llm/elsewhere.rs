//! Picks that are made elsewhere.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::BoxFuture;
use metadata::{
    Address, Cluster, RequestId,
    wire::pick::{Pick, Picked, Picks},
};

use super::*;
use crate::{
    director::{PickElsewhere, ReplyElsewhere},
    external::{External, NoReply, fixtures::Scripted},
    llm::{AskedElsewhere, TraceId},
    spans::Tracing,
};

/// Answers with these endpoints after a while; none: it does not.
#[derive(Debug)]
struct Elsewhere {
    endpoints: &'static [&'static str],
    by_ip: bool,
    within: Duration,
    asked: Mutex<Vec<Pick>>,
    traces: Mutex<Vec<(Option<String>, Option<String>)>>,
    discarded: AtomicUsize,
    reports: Mutex<Vec<String>>,
}

const WAIT: Duration = Duration::from_millis(20);

impl PickElsewhere for Elsewhere {
    fn name(&self, endpoint: SocketAddr) -> Address {
        if self.by_ip {
            endpoint.ip().into()
        } else {
            endpoint.into()
        }
    }

    fn within(&self) -> Duration {
        self.within
    }

    fn uses_own_caches(&self) -> bool {
        false
    }

    fn pick(
        &self,
        pick: Pick,
        _: Vec<u32>,
        trace_id: Option<&TraceId>,
        trace_parent: Option<&str>,
    ) -> BoxFuture<'static, ReplyElsewhere> {
        let trace_id = trace_id.map(|id| id.as_str().to_owned());
        let trace = (trace_id, trace_parent.map(str::to_owned));
        self.traces.lock().push(trace);
        let candidates = u32::try_from(pick.candidates.len()).unwrap();
        self.asked.lock().push(pick);
        let picked = |address: &&str| Picked {
            ip: address.parse().unwrap(),
            score: 0.5,
            raw: -1.5,
            matched: 1,
            queued_req_num: 0,
            prompt_length: 0,
        };
        let picks: Vec<_> = self.endpoints.iter().map(picked).collect();
        let picks = (!picks.is_empty()).then_some(Picks {
            picks,
            charge: 77,
            candidates,
        });
        let missing = picks.is_none().then_some("both");
        let asked = AskedElsewhere {
            load: Some(WAIT),
            cache: None,
            missing,
        };
        let answer = ReplyElsewhere { picks, asked };
        Box::pin(async move {
            tokio::time::sleep(WAIT).await;
            answer
        })
    }

    fn discard(&self, _: &Cluster, _: &RequestId) {
        self.discarded.fetch_add(1, Ordering::Relaxed);
    }

    fn charge(&self, _: &Cluster, request: &RequestId, endpoint: SocketAddr, prefill: u64) {
        self.report(request, format!("charge {endpoint} {prefill}"));
    }

    fn prefilled(&self, _: &Cluster, request: &RequestId) {
        self.report(request, "prefilled".to_owned());
    }

    fn end(&self, _: &Cluster, request: &RequestId) {
        self.report(request, "end".to_owned());
    }

    fn save(&self, cluster: &Cluster, endpoint: SocketAddr, hashes: &[u64], _: Option<u32>) {
        let text = format!("save {cluster} {endpoint} {}", hashes.len());
        self.reports.lock().push(text);
    }

    fn forget(&self, _: SocketAddr) {}
}

impl Elsewhere {
    /// Of the request that was asked for.
    fn report(&self, request: &RequestId, what: String) {
        let asked = self.asked.lock();
        let known = asked.iter().any(|pick| pick.request_id == *request);
        drop(asked);
        self.reports.lock().push(if known {
            what
        } else {
            format!("unknown: {what}")
        });
    }
}

// === impl Elsewhere ===

impl Elsewhere {
    fn new(endpoints: &'static [&'static str]) -> Self {
        Self {
            endpoints,
            by_ip: false,
            within: Duration::from_millis(100),
            asked: Mutex::default(),
            traces: Mutex::default(),
            discarded: AtomicUsize::new(0),
            reports: Mutex::default(),
        }
    }
}

fn mk_asking(endpoints: &'static [&'static str]) -> (Arc<Elsewhere>, Arc<Shared>) {
    mk_shared_asking(Elsewhere::new(endpoints), &[A, B], Options::default())
}

fn mk_shared_asking(
    elsewhere: Elsewhere,
    members: &[&str],
    options: Options,
) -> (Arc<Elsewhere>, Arc<Shared>) {
    mk_asking_after(PLAIN, elsewhere, members, options, None)
}

/// With a Processor before it.
fn mk_asking_after(
    filter: &str,
    elsewhere: Elsewhere,
    members: &[&str],
    options: Options,
    external: Option<Arc<External>>,
) -> (Arc<Elsewhere>, Arc<Shared>) {
    let elsewhere = Arc::new(elsewhere);
    let mut config = small_config();
    config.llm_filter = Some(mk_filter(filter));
    let pool = Pool::default();
    let members = members.iter();
    let members = members.map(|address| mk_member(address, address.parse().unwrap()));
    pool.replace(members.collect(), Moment::START);
    let config = CurrentConfig::new(config);
    let director = Director::new(pool, config, options, Clock::start());
    let by: Arc<dyn PickElsewhere> = Arc::<Elsewhere>::clone(&elsewhere);
    let director = director.asking(Some(by)).staging(external);
    let shared = mk_shared_around(director, 1 << 20, &mut Registry::default());
    (elsewhere, shared)
}

#[rstest]
#[case::a_candidate(&[B, A], 77, 0)]
#[case::nobody_answers(&[], 2560, 0)]
#[case::no_member(&["10.9.9.9:8000", B], 2560, 1)]
#[tokio::test(start_paused = true)]
async fn the_pick_of_another_counts_if_it_names_a_candidate(
    #[case] endpoints: &'static [&'static str],
    #[case] charge: u64,
    #[case] discarded: usize,
) {
    let (elsewhere, shared) = mk_asking(endpoints);
    let start = Instant::now();
    let asked = ask_for(&shared, 2, &[], &mk_chat("m", &mk_prompt("a"))).await;
    assert_eq!(start.elapsed(), WAIT);
    if charge == 77 {
        assert_eq!(asked.picked, [B, A]);
    }
    let loads: u64 = loads(&shared).iter().map(|(_, prefill)| prefill).sum();
    assert_eq!(loads, charge);
    assert_eq!(elsewhere.discarded.load(Ordering::Relaxed), discarded);
    let pick = elsewhere.asked.lock().pop().unwrap();
    assert_eq!((pick.count, pick.candidates.len()), (2, 2));
    assert_eq!(i64::from(pick.prompt_length), 2560);
    assert_eq!(
        pick.prompt_hash.hashes().len(),
        6,
        "its role is hashed, too"
    );
    pick.validate().unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_becomes_of_a_request_is_reported_where_it_was_picked() {
    let (elsewhere, shared) = mk_asking(&[B]);
    let mut asked = ask(&shared, &[], &mk_chat("m", "hi")).await;
    assert_eq!(*elsewhere.reports.lock(), [format!("charge {B} 77")]);
    asked.response_headers("200", A, false).await;
    asked.response_body("{}", true).await;
    drop(asked);
    let want = [
        format!("charge {B} 77"),
        format!("charge {A} 77"),
        format!("save c {A} 1"),
        "prefilled".to_owned(),
        "end".to_owned(),
    ];
    assert_eq!(*elsewhere.reports.lock(), want);
}

/// The request is counted as in flight at no endpoint, neither locally nor at the service.
#[tokio::test(start_paused = true)]
async fn a_request_that_a_stranger_serves_is_charged_nowhere() {
    let (elsewhere, shared) = mk_asking(&[B]);
    let mut asked = ask(&shared, &[], &mk_chat("m", "hi")).await;
    asked.response_headers("200", "10.9.9.9:8000", false).await;
    let want = [format!("charge {B} 77"), "end".to_owned()];
    assert_eq!(*elsewhere.reports.lock(), want);
}

/// As a pick of this process charges it.
#[rstest]
#[case("bytes", 2560, 512)]
#[case("tokens", 640, 128)]
#[tokio::test(start_paused = true)]
async fn the_service_charges_in_the_unit_of_lengths(
    #[case] unit: &str,
    #[case] length: i64,
    #[case] least: u32,
) {
    let filter = format!("length_unit: {unit}\n{PLAIN}");
    let (elsewhere, options) = (Elsewhere::new(&[A]), Options::default());
    let (elsewhere, shared) = mk_asking_after(&filter, elsewhere, &[A, B], options, None);
    drop(ask(&shared, &[], &mk_chat("m", &mk_prompt("a"))).await);
    let pick = elsewhere.asked.lock().pop().unwrap();
    assert_eq!(i64::from(pick.prompt_length), length);
    assert_eq!(pick.params.least_charge, least);
}

/// First the Processor, then who picks: each has its own time.
#[tokio::test(start_paused = true)]
async fn a_processor_is_asked_before_the_pick_is() {
    let no_reply = NoReply::Failed(processor_api::StageFailure::Timeout);
    let scripted = Scripted::answering(Duration::from_secs(5), Err(no_reply));
    let (elsewhere, options) = (Elsewhere::new(&[B]), Options::default());
    let external = Some(scripted.external());
    let (elsewhere, shared) = mk_asking_after(PLAIN, elsewhere, &[A, B], options, external);
    let start = Instant::now();
    let asked = ask(&shared, &[], &mk_chat("m", "hi")).await;
    assert_eq!(start.elapsed(), Duration::from_secs(5) + WAIT);
    assert_eq!(asked.picked, [B]);
    assert_eq!(elsewhere.asked.lock().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_pick_has_the_trace_of_its_request() {
    let (elsewhere, shared) = mk_asking(&[A]);
    let fields = [("x-request-id", "t-1"), ("traceparent", "00-ab-cd-01")];
    drop(ask(&shared, &fields, &mk_chat("m", "hi")).await);
    let want = ("t-1".to_owned(), "00-ab-cd-01".to_owned());
    assert_eq!(*elsewhere.traces.lock(), [(Some(want.0), Some(want.1))]);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_meanwhile_discards_its_pick() {
    let (elsewhere, shared) = mk_asking(&[A]);
    let (messages, mut replies) = open(&shared, 1);
    send(&messages, mk_head(&[], false)).await;
    let body = HttpBody {
        body: mk_chat("m", "hi").into(),
        end_of_stream: true,
    };
    send(&messages, Request::RequestBody(body)).await;
    assert!(replies.next().now_or_never().is_none());
    assert!(shared.director.saturation() > 0.0, "it is in flight");
    drop(replies);
    assert_eq!(elsewhere.discarded.load(Ordering::Relaxed), 1);
    assert!(shared.director.saturation() < f64::EPSILON);
    assert_eq!(loads(&shared), [(0, 0), (0, 0)]);
}

/// Requests of pods with several ports count together there.
#[tokio::test(start_paused = true)]
async fn endpoints_of_one_name_take_turns_by_their_own_requests() {
    const PORTS: [&str; 3] = ["10.0.0.1:8000", "10.0.0.1:8001", "10.0.0.2:8000"];
    let elsewhere = Elsewhere {
        by_ip: true,
        ..Elsewhere::new(&["10.0.0.1", "10.0.0.2"])
    };
    let (elsewhere, shared) = mk_shared_asking(elsewhere, &PORTS, Options::default());
    let mut picked = Vec::new();
    let mut open = Vec::new();
    for _ in 0..4 {
        let asked = ask_for(&shared, 2, &[], &mk_chat("m", "hi")).await;
        picked.push(asked.first().to_owned());
        assert_eq!(asked.picked.len(), 2, "{:?}", asked.picked);
        open.push(asked);
    }
    picked.sort_unstable();
    assert_eq!(picked, [PORTS[0], PORTS[0], PORTS[1], PORTS[1]]);
    let pick = elsewhere.asked.lock().pop().unwrap();
    let names = pick.candidates.iter().map(|it| it.ip.to_string());
    assert_eq!(names.collect::<Vec<_>>(), ["10.0.0.1", "10.0.0.2"]);
    pick.validate().unwrap();
}

#[tokio::test(start_paused = true)]
async fn scores_that_are_to_be_told_are_asked_for_and_name_no_further_endpoint() {
    let options = Options {
        emit_scores: true,
        ..Options::default()
    };
    let (elsewhere, shared) = mk_shared_asking(Elsewhere::new(&[B, A]), &[A, B], options);
    let asked = ask(&shared, &[], &mk_chat("m", "hi")).await;
    assert_eq!(asked.picked, [B]);
    assert_eq!(elsewhere.asked.lock()[0].count, 8);
}

/// A proxy that waits for an answer to the headers gives up after 200 ms.
#[rstest]
#[case(100, false)]
#[case(101, true)]
#[tokio::test(start_paused = true)]
async fn a_proxy_is_asked_to_wait_for_a_pick_that_may_take_long(
    #[case] within_ms: u64,
    #[case] is_asked: bool,
) {
    let elsewhere = Elsewhere {
        within: Duration::from_millis(within_ms),
        ..Elsewhere::new(&[A])
    };
    let (_, shared) = mk_shared_asking(elsewhere, &[A, B], Options::default());
    let (messages, mut replies) = open(&shared, 1);
    let head = ProcessingRequest {
        request: Some(mk_head(&[], false)),
        protocol_config: Some(ProtocolConfiguration {
            request_body_mode: BodySendMode::Buffered.into(),
            ..ProtocolConfiguration::default()
        }),
        ..ProcessingRequest::default()
    };
    messages.send(Ok(head)).await.unwrap();
    let body = HttpBody {
        body: mk_chat("m", "hi").into(),
        end_of_stream: true,
    };
    let to_headers = replies.next().await.unwrap().unwrap();
    assert!(matches!(
        to_headers.response,
        Some(Response::RequestHeaders(_))
    ));
    send(&messages, Request::RequestBody(body)).await;
    let first = replies.next().await.unwrap().unwrap();
    assert_eq!(first.override_message_timeout.is_some(), is_asked);
    assert_eq!(first.response.is_none(), is_asked);
}

#[rstest]
#[case::picked(&[A], -1.5, None)]
#[case::not_picked(&[], 0.0, Some("both"))]
#[tokio::test(start_paused = true)]
async fn the_access_log_says_what_was_waited_for_and_what_was_missing(
    #[case] endpoints: &'static [&'static str],
    #[case] score: f64,
    #[case] missing: Option<&str>,
) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("access.json");
    let current = CurrentConfig::new(small_config());
    let text = format!("protocol: openai\nlog: {{enabled: true, path: {path:?}}}\n{PLAIN}");
    current.set_llm_filter(LlmFilter::parse(&text, Compat::Strict).unwrap());
    let pool = Pool::default();
    pool.replace(vec![mk_member("a", A.parse().unwrap())], Moment::START);
    let registry = &mut Registry::default();
    let (logger, writer) = crate::llm::AccessLogger::begin(current.clone(), registry);
    let director = Director::new(pool, current, Options::default(), Clock::start());
    let by: Arc<dyn PickElsewhere> = Arc::new(Elsewhere::new(endpoints));
    let director = director.logging_to(logger).asking(Some(by));
    let shared = mk_shared_around(director, 1 << 20, registry);
    drop(ask(&shared, &[], &mk_chat("m", "hi")).await);
    let stop = CancellationToken::new();
    stop.cancel();
    writer.run(futures::stream::pending(), stop).await;
    let text = std::fs::read_to_string(path).unwrap();
    let line: serde_json::Value = serde_json::from_str(&text).unwrap();
    let fields = ["score", "load_duration", "cache_duration", "degraded"];
    let seen = fields.map(|field| line[field].clone());
    let want = serde_json::json!([score, 20.0, null, missing]);
    assert_eq!(serde_json::json!(seen), want);
}

/// Gives on the spans that end.
#[derive(Debug)]
struct Ended(mpsc::Sender<opentelemetry_sdk::trace::SpanData>);

impl opentelemetry_sdk::trace::SpanProcessor for Ended {
    fn on_start(&self, _: &mut opentelemetry_sdk::trace::Span, _: &opentelemetry::Context) {}

    fn on_end(&self, span: opentelemetry_sdk::trace::SpanData) {
        self.0.try_send(span).unwrap();
    }

    fn force_flush(&self) -> opentelemetry_sdk::error::OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> opentelemetry_sdk::error::OTelSdkResult {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn the_rule_the_hash_and_the_wait_for_a_pick_have_spans() {
    let (_, mut shared) = mk_asking(&[A]);
    let (sender, mut spans) = mpsc::channel(16);
    let provider = opentelemetry_sdk::trace::SdkTracerProvider::builder();
    let provider = provider.with_span_processor(Ended(sender)).build();
    Arc::get_mut(&mut shared).unwrap().tracing = Some(Tracing::new(provider, "llm"));
    let asked = ask(&shared, &[], &mk_chat("m", &mk_prompt("a"))).await;
    let mut times = Vec::new();
    while let Ok(span) = spans.try_recv() {
        let took = span.end_time.duration_since(span.start_time).unwrap();
        times.push((span.name.into_owned(), took >= WAIT));
    }
    let want = [
        ("llm.rule", false),
        ("llm.hash", false),
        ("metadata.pick", true),
        ("epp.pick", false),
    ];
    assert_eq!(
        times,
        want.map(|(name, is_long)| (name.to_owned(), is_long))
    );
    drop(asked);
}
