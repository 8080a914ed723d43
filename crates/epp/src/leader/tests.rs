use clap::Parser;
use lease::ByHand;
use prometheus_client::encoding::text::encode;
use rstest::rstest;
use tokio::time::sleep;

use super::*;
use crate::args::Args;

/// An EPP whose lease is moved by hand, ready but for it.
struct Epp {
    lease: ByHand,
    readiness: Readiness,
    registry: Registry,
    election: Election,
}

impl Epp {
    fn begin() -> Self {
        let (lease, claim) = ByHand::new(Clock::start());
        let readiness = Readiness::new();
        let mut registry = Registry::default();
        let election = Election::following(claim, &readiness, &mut registry);
        for part in [Part::Discovery, Part::Metrics] {
            readiness.set(part, true);
        }
        Self {
            lease,
            readiness,
            registry,
            election,
        }
    }

    /// What is told to probes, and the gauge.
    async fn told(&self) -> (bool, bool) {
        // paused time moves on once all tasks wait
        sleep(Duration::from_millis(1)).await;
        let mut page = String::new();
        encode(&mut page, &self.registry).unwrap();
        let leads = page.lines().any(|line| line == "epp_leader 1");
        (self.readiness.is_ready(), leads)
    }
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
    Source::of(&args.pool, None).unwrap()
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
