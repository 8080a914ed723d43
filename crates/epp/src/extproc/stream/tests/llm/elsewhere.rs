//! Picks that are made elsewhere.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::BoxFuture;
use metadata::{
    Cluster, RequestId,
    wire::pick::{Pick, Picked, Picks},
};

use super::*;
use crate::{
    director::PickElsewhere,
    external::{External, NoReply, fixtures::Scripted},
    llm::TraceId,
};

/// Answers with these endpoints after a while; none: it does not.
#[derive(Debug)]
struct Elsewhere {
    endpoints: &'static [&'static str],
    asked: Mutex<Vec<Pick>>,
    discarded: AtomicUsize,
    reports: Mutex<Vec<String>>,
}

const WAIT: Duration = Duration::from_millis(20);

impl PickElsewhere for Elsewhere {
    fn pick(&self, pick: Pick, _: Option<&TraceId>) -> BoxFuture<'static, Option<Picks>> {
        let candidates = u32::try_from(pick.candidates.len()).unwrap();
        self.asked.lock().push(pick);
        let picked = |address: &&str| Picked {
            ip: address.parse().unwrap(),
            score: 0.5,
            matched: 1,
            queued_req_num: 0,
            prompt_length: 0,
        };
        let picks: Vec<_> = self.endpoints.iter().map(picked).collect();
        let answer = (!picks.is_empty()).then_some(Picks {
            picks,
            charge: 77,
            candidates,
        });
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

fn mk_asking(endpoints: &'static [&'static str]) -> (Arc<Elsewhere>, Arc<Shared>) {
    mk_asking_after(endpoints, None)
}

/// With a Processor before it.
fn mk_asking_after(
    endpoints: &'static [&'static str],
    external: Option<Arc<External>>,
) -> (Arc<Elsewhere>, Arc<Shared>) {
    let elsewhere = Arc::new(Elsewhere {
        endpoints,
        asked: Mutex::default(),
        discarded: AtomicUsize::new(0),
        reports: Mutex::default(),
    });
    let mut config = small_config();
    config.llm_filter = Some(mk_filter(PLAIN));
    let pool = Pool::default();
    let members = [A, B].map(|address| mk_member(address, address.parse().unwrap()));
    pool.replace(members.to_vec(), Moment::START);
    let config = CurrentConfig::new(config);
    let director = Director::new(pool, config, Options::default(), Clock::start());
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

/// First the Processor, then who picks: each has its own time.
#[tokio::test(start_paused = true)]
async fn a_processor_is_asked_before_the_pick_is() {
    let no_reply = NoReply::Failed(processor_api::StageFailure::Timeout);
    let scripted = Scripted::answering(Duration::from_secs(5), Err(no_reply));
    let (elsewhere, shared) = mk_asking_after(&[B], Some(scripted.external()));
    let start = Instant::now();
    let asked = ask(&shared, &[], &mk_chat("m", "hi")).await;
    assert_eq!(start.elapsed(), Duration::from_secs(5) + WAIT);
    assert_eq!(asked.picked, [B]);
    assert_eq!(elsewhere.asked.lock().len(), 1);
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
