use std::{num::NonZeroUsize, path::Path};

use parking_lot::Mutex;
use processor_api::{RouteRequest, RouteSource};
use rstest::rstest;
use tempfile::TempDir;
use tokenization::{Catalogue, SegmentCache, sample};
use tokio::time::{sleep, timeout};

use super::*;
use crate::transfer::TokenTransfer;

const MODELS: &str = "
models:
- name: tiny
  aliases: [small]
  path: tiny
  maxModelLen: 70000
  loraAdapters: [sql]
- name: broken
  path: nowhere
";

/// To a caller with time.
const LEFT: Duration = Duration::from_secs(5);

/// Of the sample template around a message of one user.
const AROUND: usize = "<user\n>\n<assistant\n".len();

/// A Router that does as it is told, and remembers what it was asked.
struct Router {
    answer: Result<RouteReply, RouteFailure>,
    takes: Duration,
    asked: Arc<Mutex<Vec<(RouteCall, Duration)>>>,
}

/// A token cache that does as it is told, and remembers what it was given.
struct Cache {
    answer: Result<(), NotKept>,
    takes: Duration,
    kept: Arc<Mutex<Vec<(TokenKey, Entry)>>>,
}

struct Case {
    steps: Steps<Router, Cache>,
    asked: Arc<Mutex<Vec<(RouteCall, Duration)>>>,
    kept: Arc<Mutex<Vec<(TokenKey, Entry)>>>,
    _base: TempDir,
}

// === impl Router ===

impl Routes for Router {
    async fn route(&self, call: RouteCall, within: Duration) -> Result<RouteReply, RouteFailure> {
        self.asked.lock().push((call, within));
        let taking = timeout(within, sleep(self.takes)).await;
        taking.map_err(|_| RouteFailure::Late)?;
        self.answer.clone()
    }
}

// === impl Cache ===

impl Tokens for Cache {
    async fn put(&self, key: TokenKey, entry: Entry, within: Duration) -> Result<(), NotKept> {
        let taking = timeout(within, sleep(self.takes)).await;
        taking.map_err(|_| NotKept)?;
        self.answer?;
        self.kept.lock().push((key, entry));
        Ok(())
    }
}

// === impl Case ===

impl Case {
    fn new(mode: TokenTransfer) -> Self {
        let base = TempDir::new().unwrap();
        sample::write(&base.path().join("tiny")).unwrap();
        let catalogue = load(base.path());
        let (asked, kept) = (Arc::default(), Arc::default());
        let shared = Shared {
            models: Models::fixed(catalogue),
            options: EncodeOptions {
                cache: SegmentCache::new(1 << 20, 1),
                verify_sample: 1.0,
            },
            max_prompt_bytes: 16 << 20,
            metrics: Metrics::default(),
        };
        let steps = Steps {
            encoders: Arc::new(Encoders::start(NonZeroUsize::MIN, 8).unwrap()),
            shared: Arc::new(shared),
            router: Some(Router {
                answer: Ok(mk_route()),
                takes: Duration::ZERO,
                asked: Arc::clone(&asked),
            }),
            tokens: Some(Cache {
                answer: Ok(()),
                takes: Duration::ZERO,
                kept: Arc::clone(&kept),
            }),
            transfer: Transfer {
                mode,
                threshold: 64 << 10,
            },
            route_timeout: Duration::from_millis(100),
            store_timeout: Duration::from_millis(200),
            spans: None,
        };
        Self {
            steps,
            asked,
            kept,
            _base: base,
        }
    }

    async fn process(&self, call: &str) -> Result<ProcessReply, Failure> {
        let deadline = Instant::now() + Duration::from_secs(5);
        self.steps.process(call.to_owned().into(), deadline).await
    }

    async fn reply(&self, call: &str) -> ProcessReply {
        self.process(call).await.unwrap()
    }

    /// The reply to a call, with the clock paused, whose ids were made in no time; and how long it took.
    async fn timed(&self, call: String, left: Duration) -> (ProcessReply, Duration) {
        let prepared = prepare_process(&self.steps.shared, &call.into(), true).unwrap();
        let begun = Instant::now();
        let reply = self.steps.complete(&prepared, begun + left, None).await;
        (reply, begun.elapsed())
    }
}

fn load(base: &Path) -> Catalogue {
    Catalogue::load(MODELS, base, &Catalogue::default(), || 1).unwrap()
}

fn mk_route() -> RouteReply {
    RouteReply {
        worker_address: "10.1.2.3:8000".to_owned(),
        worker_id: Some("default/vllm-0-rank-0".to_owned()),
        dp_rank: Some(1),
        overlap_blocks: 1,
        prompt_blocks: 2,
        block_size: 16,
        fallbacks: vec!["10.1.2.4:8000".to_owned()],
        reservation_id: None,
        source: RouteSource::Exact,
    }
}

/// A chat of `length` ids.
fn chat(route: bool, length: usize) -> String {
    let content = "x".repeat(length - AROUND);
    format!(
        r#"{{"request_body":{{"model":"tiny","route":{route},"messages":[{{"role":"user","content":"{content}"}}]}}}}"#
    )
}

#[tokio::test]
async fn a_call_with_route_has_the_routers_worker_and_the_ids() {
    let case = Case::new(TokenTransfer::Auto);
    let call = r#"{"request_body":{"model":"sql","route":true,"cache_salt":"s","prompt":"ab"},
        "headers":{"x-request-id":"req-1","traceparent":"00-1-2-01","authorization":"Bearer t"},
        "path":"/v1/completions","candidates":["10.1.2.3:8000"],"priority":-1,"max_endpoints":2,
        "reservation_id":"r_aaaaaaaaaaaaaaaaaaaaaaaaaa"}"#;
    let reply = case.reply(call).await;
    let want = ProcessReply {
        worker_address: Some("10.1.2.3:8000".to_owned()),
        token_value: Some(Bytes::from_static(b"[97,98]")),
        token_count: Some(2),
        // a block of 16, but the prompt has two
        overlap_tokens: Some(2),
        fallbacks: vec!["10.1.2.4:8000".to_owned()],
        worker_id: Some("default/vllm-0-rank-0".to_owned()),
        dp_rank: Some(1),
        ..ProcessReply::default()
    };
    assert_eq!(reply, want);
    let (asked, within) = case.asked.lock().pop().unwrap();
    let request = RouteRequest::parse_binary(&asked.frame, 2).unwrap();
    assert_eq!(request.token_ids, [97, 98]);
    assert_eq!(request.request_id.as_deref(), Some("req-1"));
    assert_eq!(request.model.as_deref(), Some("tiny"));
    assert_eq!(request.lora_name.as_deref(), Some("sql"));
    assert_eq!(request.cache_salt.as_deref(), Some("s"));
    assert_eq!(
        request.candidates.as_deref(),
        Some(&["10.1.2.3:8000".into()][..])
    );
    assert_eq!(
        (request.priority, request.max_endpoints),
        (Some(-1), Some(2))
    );
    let booking = request.reservation_id.map(|id| id.to_string());
    assert_eq!(booking.as_deref(), Some("r_aaaaaaaaaaaaaaaaaaaaaaaaaa"));
    let headers: Vec<_> = asked.headers.keys().map(http::HeaderName::as_str).collect();
    assert_eq!(headers, ["x-request-id", "traceparent"]);
    assert_eq!(within, Duration::from_millis(100));
}

#[tokio::test]
async fn without_route_the_router_is_not_asked() {
    let case = Case::new(TokenTransfer::None);
    let reply = case.reply(&chat(false, 100)).await;
    let want = ProcessReply {
        token_count: Some(100),
        ..ProcessReply::default()
    };
    assert_eq!(reply, want);
    assert!(case.asked.lock().is_empty());
}

#[rstest]
#[case::few(TokenTransfer::Auto, 16_384, false, true)]
#[case::many(TokenTransfer::Auto, 16_385, true, false)]
#[case::by_key(TokenTransfer::Cache, 100, true, false)]
#[case::direct(TokenTransfer::Direct, 16_385, false, true)]
#[case::not_at_all(TokenTransfer::None, 16_385, false, false)]
#[tokio::test]
async fn ids_go_by_key_or_in_the_reply(
    #[case] mode: TokenTransfer,
    #[case] length: usize,
    #[case] by_key: bool,
    #[case] direct: bool,
) {
    let case = Case::new(mode);
    let reply = case.reply(&chat(false, length)).await;
    assert_eq!(reply.token_count, Some(length));
    assert_eq!(reply.degraded, []);
    assert_eq!(reply.token_value.is_some(), direct);
    assert_eq!(reply.token_key.is_some(), by_key);
    let kept = case.kept.lock().pop();
    assert_eq!(kept.as_ref().map(|(key, _)| *key), reply.token_key);
    if let Some((_, entry)) = kept {
        let found = case.steps.shared.models.find("tiny").unwrap();
        assert_eq!(
            (&*entry.model, &*entry.tokenizer),
            ("tiny", found.model.tag())
        );
        assert_eq!(entry.ids.len(), length);
    }
}

#[rstest]
#[case::few_in_the_reply(TokenTransfer::Auto, 100, false, true, false)]
#[case::many_in_the_reply_after_all(TokenTransfer::Auto, 16_385, true, true, true)]
#[case::not_at_all(TokenTransfer::Cache, 100, true, false, true)]
#[tokio::test(start_paused = true)]
async fn a_token_cache_that_fails_or_hangs_costs_the_key_alone(
    #[case] mode: TokenTransfer,
    #[case] length: usize,
    #[case] asks: bool,
    #[case] direct: bool,
    #[case] degraded: bool,
) {
    let failures = [
        (Err(NotKept), Duration::ZERO),
        (Ok(()), Duration::from_mins(1)),
    ];
    for (answer, takes) in failures {
        let mut case = Case::new(mode);
        if let Some(cache) = &mut case.steps.tokens {
            (cache.answer, cache.takes) = (answer, takes);
        }
        let (reply, took) = case.timed(chat(false, length), LEFT).await;
        let hangs = asks && takes > Duration::ZERO;
        let waited = if hangs { 200 } else { 0 };
        assert_eq!(took, Duration::from_millis(waited));
        assert_eq!(reply.token_key, None);
        assert_eq!(reply.token_value.is_some(), direct);
        let why: &[_] = if degraded {
            &[Degraded::CacheWrite]
        } else {
            &[]
        };
        assert_eq!(reply.degraded, why);
    }
}

#[rstest]
#[case::fails(Err(RouteFailure::Failed), 0, Degraded::RouteError)]
#[case::is_full(Err(RouteFailure::Saturated), 0, Degraded::RouteSaturated)]
#[case::gives_up(Err(RouteFailure::Late), 0, Degraded::RouteTimeout)]
#[case::hangs(Ok(mk_route()), 60_000, Degraded::RouteTimeout)]
#[tokio::test(start_paused = true)]
async fn a_router_that_fails_or_hangs_costs_the_worker_alone(
    #[case] answer: Result<RouteReply, RouteFailure>,
    #[case] takes_ms: u64,
    #[case] why: Degraded,
) {
    let mut case = Case::new(TokenTransfer::Auto);
    if let Some(router) = &mut case.steps.router {
        (router.answer, router.takes) = (answer, Duration::from_millis(takes_ms));
    }
    let (reply, took) = case.timed(chat(true, 100), LEFT).await;
    assert!(took <= Duration::from_millis(100));
    assert_eq!((reply.worker_address, reply.degraded), (None, vec![why]));
    assert!(reply.token_value.is_some());
}

#[tokio::test]
async fn without_a_router_a_call_with_route_says_so() {
    let mut case = Case::new(TokenTransfer::Auto);
    case.steps.router = None;
    let reply = case.reply(&chat(true, 100)).await;
    assert_eq!(reply.degraded, [Degraded::NoRouter]);
    assert!(reply.token_value.is_some());
    assert_eq!(case.reply(&chat(false, 100)).await.degraded, []);
}

#[tokio::test(start_paused = true)]
async fn router_and_token_cache_are_asked_side_by_side() {
    let mut case = Case::new(TokenTransfer::Cache);
    let takes = Duration::from_millis(80);
    if let (Some(router), Some(cache)) = (&mut case.steps.router, &mut case.steps.tokens) {
        (router.takes, cache.takes) = (takes, takes);
    }
    let (reply, took) = case.timed(chat(true, 100), LEFT).await;
    assert_eq!(took, takes);
    assert!(reply.worker_address.is_some() && reply.token_key.is_some());
}

#[tokio::test(start_paused = true)]
async fn no_stage_waits_longer_than_the_caller() {
    let mut case = Case::new(TokenTransfer::Cache);
    let hangs = Duration::from_mins(1);
    if let (Some(router), Some(cache)) = (&mut case.steps.router, &mut case.steps.tokens) {
        (router.takes, cache.takes) = (hangs, hangs);
    }
    let left = Duration::from_millis(30);
    let (reply, took) = case.timed(chat(true, 100), left).await;
    assert_eq!(took, left);
    assert_eq!(
        reply.degraded,
        [Degraded::RouteTimeout, Degraded::CacheWrite]
    );
    assert_eq!(case.asked.lock()[0].1, left);
}

#[tokio::test]
async fn a_clients_own_ids_are_routed_and_not_transferred() {
    let case = Case::new(TokenTransfer::Cache);
    let call = r#"{"request_body":{"model":"tiny","route":true,"prompt":[1,2,3]}}"#;
    let reply = case.reply(call).await;
    assert_eq!((reply.token_key, reply.token_value), (None, None));
    assert_eq!(reply.token_count, Some(3));
    assert!(reply.worker_address.is_some());
    let (asked, _) = case.asked.lock().pop().unwrap();
    let request = RouteRequest::parse_binary(&asked.frame, 3).unwrap();
    assert_eq!(request.token_ids, [1, 2, 3]);
}

#[rstest]
#[case::no_json("{", 400, "bad-request")]
#[case::body_is_no_object(r#"{"request_body":[]}"#, 400, "bad-request")]
#[case::wrong_type(
    r#"{"request_body":{"model":"tiny","messages":7}}"#,
    400,
    "bad-request"
)]
#[case::unknown_model(
    r#"{"request_body":{"model":"other","prompt":""}}"#,
    404,
    "unknown-model"
)]
#[case::no_model(r#"{"request_body":{"prompt":""}}"#, 404, "unknown-model")]
#[case::failed_model(
    r#"{"request_body":{"model":"broken","prompt":""}}"#,
    404,
    "unknown-model"
)]
#[case::no_prompt(r#"{"request_body":{"model":"tiny"}}"#, 422, "unsupported")]
#[case::other_path(
    r#"{"request_body":{"model":"tiny","prompt":""},"path":"/v1/embeddings"}"#,
    422,
    "unsupported"
)]
#[case::several_prompts(
    r#"{"request_body":{"model":"tiny","prompt":["a","b"]}}"#,
    422,
    "unsupported"
)]
#[case::image(
    r#"{"request_body":{"model":"tiny","messages":[{"role":"user","content":[{"type":"image_url"}]}]}}"#,
    422,
    "unsupported"
)]
#[tokio::test]
async fn a_call_that_has_no_ids_is_refused_with_its_reason(
    #[case] call: &str,
    #[case] status: u16,
    #[case] reason: &str,
) {
    let case = Case::new(TokenTransfer::Auto);
    let Err(Failure::Refused(refusal)) = case.process(call).await else {
        panic!("it is not refused: {call}");
    };
    assert_eq!((refusal.status(), refusal.reason()), (status, reason));
}

#[tokio::test]
async fn a_prompt_beyond_the_models_length_is_left_to_the_engine_and_one_beyond_the_cap_refused() {
    let mut case = Case::new(TokenTransfer::Auto);
    let refused = case.process(&chat(false, 70_001)).await.unwrap_err();
    assert!(
        matches!(refused, Failure::Refused(Refusal::Unsupported(_))),
        "{refused:?}"
    );
    let call = chat(false, 100);
    let body = call.len() - r#"{"request_body":}"#.len();
    for (limit, is_refused) in [(body, false), (body - 1, true)] {
        Arc::get_mut(&mut case.steps.shared)
            .unwrap()
            .max_prompt_bytes = limit;
        let refused = case.process(&call).await;
        let flag = "--max-prompt-bytes";
        let too_large = Failure::Refused(Refusal::TooLarge { limit, flag });
        assert_eq!(refused.err() == Some(too_large), is_refused);
    }
}

#[tokio::test]
async fn without_a_place_in_the_queue_a_call_is_refused_as_overloaded() {
    let mut case = Case::new(TokenTransfer::Auto);
    case.steps.encoders = Arc::new(Encoders::start(NonZeroUsize::MIN, 0).unwrap());
    let (release, released) = std::sync::mpsc::channel::<()>();
    let deadline = Instant::now() + Duration::from_secs(20);
    let busy = case.steps.encoders.run(deadline, move || {
        let _ = released.recv();
    });
    let mut busy = Box::pin(busy);
    assert_eq!(futures::poll!(busy.as_mut()), std::task::Poll::Pending);
    let refused = case.process(&chat(false, 100)).await;
    assert_eq!(refused, Err(Failure::Refused(Refusal::Overloaded)));
    drop(release);
    busy.await.unwrap();
}

#[tokio::test]
async fn a_body_is_rendered_to_its_ids_alone() {
    let case = Case::new(TokenTransfer::Cache);
    let body = Bytes::from_static(br#"{"model":"small","prompt":"ab"}"#);
    let deadline = Instant::now() + Duration::from_secs(5);
    let rendering = case.steps.render(Api::Completions, body, deadline);
    assert_eq!(rendering.await, Ok("[97,98]".to_owned()));
    assert!(case.kept.lock().is_empty());
}

#[tokio::test]
async fn while_the_models_load_calls_are_refused_as_not_ready() {
    let mut case = Case::new(TokenTransfer::Auto);
    Arc::get_mut(&mut case.steps.shared).unwrap().models = Models::loading();
    let refused = case.process(&chat(false, 100)).await;
    assert_eq!(refused, Err(Failure::Refused(Refusal::NotReady)));
}
