use clap::Parser;
use lease::ByHand;
use prometheus_client::encoding::text::encode;
use rstest::rstest;
use tokio::time::sleep;

use super::*;
use crate::{args::Args, discovery::named_source};

/// An EPP whose lease is moved by hand, ready but for it.
struct Epp {
    lease: ByHand,
    readiness: Readiness,
    registry: Registry,
    election: Election,
    _claims: watch::Sender<Claim>,
}

impl Epp {
    fn begin() -> Self {
        let (lease, claim) = ByHand::new(Clock::start());
        let readiness = Readiness::new();
        let mut registry = Registry::default();
        let (claims, following) = watch::channel(claim);
        let election = Election::following(following, &readiness, &mut registry);
        for part in [Part::Discovery, Part::Metrics] {
            readiness.set(part, true);
        }
        Self {
            lease,
            readiness,
            registry,
            election,
            _claims: claims,
        }
    }

    async fn told(&self) -> (bool, bool) {
        told(&self.readiness, &self.registry).await
    }
}

/// What is told to probes, and the gauge.
async fn told(readiness: &Readiness, registry: &Registry) -> (bool, bool) {
    // paused time moves on once all tasks wait
    sleep(Duration::from_millis(1)).await;
    let mut page = String::new();
    encode(&mut page, registry).unwrap();
    let leads = page.lines().any(|line| line == "epp_leader 1");
    (readiness.is_ready(), leads)
}

/// Each contest is won at once, and the lease held until it is given up.
#[tokio::test(start_paused = true)]
async fn one_that_could_not_answer_does_not_contend_and_gives_the_lease_up() {
    let (readiness, clock) = (Readiness::new(), Clock::start());
    let mut registry = Registry::default();
    let begin = move |stop: CancellationToken| {
        let (lease, claim) = ByHand::new(clock);
        lease.hold(Duration::from_hours(1));
        let keeping = async move {
            stop.cancelled().await;
            lease.give_up();
        };
        (keeping, claim)
    };
    let mut election = Election::contending(begin, clock, &readiness, &mut registry);
    assert_eq!(told(&readiness, &registry).await, (false, false), "cold");
    readiness.set(Part::Discovery, true);
    readiness.set(Part::Metrics, true);
    assert_eq!(told(&readiness, &registry).await, (true, true), "warm");
    for _ in 0..2 {
        readiness.set(Part::Discovery, false);
        sleep(PATIENCE.saturating_sub(Duration::from_secs(1))).await;
        assert_eq!(told(&readiness, &registry).await, (false, true), "a blip");
        readiness.set(Part::Discovery, true);
        assert_eq!(told(&readiness, &registry).await, (true, true));
    }
    readiness.set(Part::Discovery, false);
    sleep(PATIENCE).await;
    for _ in 0..3 {
        assert_eq!(
            told(&readiness, &registry).await,
            (false, false),
            "given up"
        );
        sleep(PATIENCE).await;
    }
    readiness.set(Part::Discovery, true);
    assert_eq!(told(&readiness, &registry).await, (true, true), "again");
    election.release().await;
    let released = timeout(Duration::from_secs(1), election.released());
    released.await.expect("it is told to stop");
}

#[tokio::test(start_paused = true)]
async fn only_the_leader_is_ready() {
    let epp = Epp::begin();
    assert_eq!(epp.told().await, (false, false));
    epp.lease.hold(Duration::from_secs(10));
    assert_eq!(epp.told().await, (true, true));
    epp.lease.give_up();
    assert_eq!(epp.told().await, (false, false));
    epp.lease.hold(Duration::from_secs(10));
    assert_eq!(epp.told().await, (true, true), "it can lead again");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_not_renewed_runs_out() {
    let epp = Epp::begin();
    epp.lease.hold(Duration::from_secs(10));
    sleep(Duration::from_secs(9)).await;
    assert_eq!(epp.told().await, (true, true));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(epp.told().await, (false, false));
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_gives_the_lease_back_answers_until_another_does() {
    let mut epp = Epp::begin();
    epp.lease.hold(Duration::from_secs(10));
    assert_eq!(epp.told().await, (true, true));
    epp.election.release().await;
    epp.lease.give_up();
    assert_eq!(epp.told().await, (true, false));
    epp.readiness.drain();
    assert_eq!(epp.told().await, (false, false));
}

#[tokio::test(start_paused = true)]
async fn a_follower_that_ends_is_not_ready_while_it_does() {
    let mut epp = Epp::begin();
    epp.election.release().await;
    assert_eq!(epp.told().await, (false, false));
    timeout(Duration::from_secs(1), epp.election.released())
        .await
        .expect("nothing is to be given back");
}

#[tokio::test(start_paused = true)]
async fn a_task_of_the_election_that_ends_is_seen() {
    let mut epp = Epp::begin();
    let quiet = timeout(Duration::from_mins(1), epp.election.failed()).await;
    assert!(quiet.is_err());
    epp.election.keeping.spawn(async {});
    let failed = timeout(Duration::from_secs(1), epp.election.failed()).await;
    let failed = failed.expect("at once").to_string();
    assert_eq!(failed, "the leader election ended");
}

fn source_of(flags: &[&str]) -> Source {
    let words = ["epp", "--pool-namespace", "ml"].iter().chain(flags);
    let args = Args::try_parse_from(words).unwrap();
    named_source(&args.pool, None).unwrap()
}

fn selected(selector: &str) -> String {
    let flags = [
        "--endpoint-selector",
        selector,
        "--endpoint-target-ports=80",
    ];
    LeaseName::of(&source_of(&flags)).unwrap().name
}

#[test]
fn epps_of_one_pool_share_a_lease_and_others_do_not() {
    let expected = LeaseName {
        namespace: "ml".to_owned(),
        name: "epp-ml-llm.isthmus.dev".to_owned(),
    };
    let lease = LeaseName::of(&source_of(&["--pool-name", "llm"]));
    assert_eq!(lease.unwrap(), expected);
    assert_eq!(selected("app=a"), selected("app=a"));
    assert_ne!(selected("app=a"), selected("app=b"));
}

#[rstest]
#[case(&["--endpoints-file", "e.yaml"])]
#[case(&["--endpoints-file", "e.yaml", "--pool-name", "llm"])]
fn a_file_of_endpoints_has_no_lease(#[case] flags: &[&str]) {
    let error = LeaseName::of(&source_of(flags)).unwrap_err().to_string();
    let start =
        "--ha-enable-leader-election with a file of endpoints: expected a pool or a selector";
    assert!(error.starts_with(start), "{error}");
}
