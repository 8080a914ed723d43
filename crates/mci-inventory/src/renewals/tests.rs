use rand::{SeedableRng, rngs::StdRng};

use super::*;
use crate::provider::ProviderFile;
use mci_model::index::member::Refusal;

const NOW: Moment = Moment::from_millis(100_000);

fn mk_plan(arg: &str) -> Arc<ExecPlan> {
    let file = serde_json::json!({"providers": [{"name": "p", "execConfig": {
        "apiVersion": "client.authentication.k8s.io/v1", "command": "x", "args": [arg],
    }}]});
    let file = ProviderFile::parse(file.to_string().as_bytes()).expect("a file");
    let status =
        serde_json::json!({"accessProviders": [{"name": "p", "cluster": {"server": "https://x"}}]});
    let status = serde_json::from_value(status).expect("a status");
    Arc::new(file.plan(&status, false, false).expect("a plan"))
}

/// Renewals of one profile, `a`, with its plugin running.
fn mk(arg: &str) -> (Renewals, Start) {
    let mut renewals = Renewals::default();
    renewals.set(&BTreeMap::from([("a".to_owned(), mk_plan(arg))]), NOW);
    assert_eq!(renewals.access("a"), Access::Pending);
    let start = renewals.due(NOW).pop().expect("due");
    (renewals, start)
}

/// Another sequence at each moment.
fn mk_rng(now: Moment) -> StdRng {
    StdRng::seed_from_u64(u64::try_from(now.since_start().as_nanos()).expect("small"))
}

fn issue(renewals: &mut Renewals, start: &Start, life: Option<Duration>, now: Moment) {
    let outcome = Ok((Credentials::for_tests(), life));
    end(renewals, start, outcome, now);
}

fn end(
    renewals: &mut Renewals,
    start: &Start,
    outcome: Result<(Credentials, Option<Duration>), Refused>,
    now: Moment,
) {
    let mut rng = mk_rng(now);
    renewals.ended(&start.profile, start.at, outcome, now, &mut rng);
}

fn fail(renewals: &mut Renewals, start: &Start, now: Moment) {
    let refused = Refused {
        refusal: Refusal::BadCredentials,
        detail: "no".to_owned(),
    };
    end(renewals, start, Err(refused), now);
}

fn refuse(renewals: &mut Renewals, now: Moment) {
    renewals.refused("a", now, &mut mk_rng(now));
}

#[test]
fn credentials_are_renewed_at_four_fifths_of_their_life() {
    let (mut renewals, start) = mk("x");
    assert!(renewals.due(NOW).is_empty(), "it runs");
    issue(&mut renewals, &start, Some(Duration::from_secs(100)), NOW);
    assert!(matches!(renewals.access("a"), Access::Ready(_)));
    assert_eq!(renewals.next(), Some(NOW + Duration::from_secs(80)));
    assert!(renewals.due(NOW + Duration::from_secs(79)).is_empty());
    assert_eq!(renewals.due(NOW + Duration::from_secs(80)).len(), 1);
}

#[test]
fn credentials_without_an_end_are_renewed_when_they_are_refused() {
    let (mut renewals, start) = mk("x");
    issue(&mut renewals, &start, None, NOW);
    assert_eq!(renewals.next(), None);
    let later = NOW + TOO_SOON;
    refuse(&mut renewals, later);
    assert_eq!(renewals.due(later).len(), 1);
    // the next refusals are of the same credentials
    refuse(&mut renewals, later);
    assert!(renewals.due(later + TOO_SOON).is_empty());
}

#[test]
fn credentials_that_are_refused_at_once_come_later_and_later() {
    let (mut renewals, mut start) = mk("x");
    let mut now = NOW;
    let mut waits = Vec::new();
    for _ in 0..12 {
        issue(&mut renewals, &start, None, now);
        refuse(&mut renewals, now);
        let next = renewals.next().expect("a time");
        waits.push(next.since(now));
        now = next;
        start = renewals.due(now).pop().expect("due");
    }
    assert!(
        waits
            .iter()
            .all(|wait| *wait >= RETRY_MIN && *wait <= RETRY_MAX),
        "{waits:?}"
    );
    assert!(
        waits.iter().max() > Some(&Duration::from_secs(30)),
        "{waits:?}"
    );
}

#[test]
fn a_plugin_that_fails_is_run_later_and_later_and_shows() {
    let (mut renewals, mut start) = mk("x");
    let mut now = NOW;
    for _ in 0..20 {
        fail(&mut renewals, &start, now);
        let next = renewals.next().expect("a time");
        assert!(next.since(now) >= RETRY_MIN && next.since(now) <= RETRY_MAX);
        now = next;
        start = renewals.due(now).pop().expect("due");
    }
    assert!(matches!(renewals.access("a"), Access::Refused(_)));
    assert!(now.since(NOW) > Duration::from_mins(10));
}

#[test]
fn what_was_issued_stays_while_the_renewal_fails() {
    let (mut renewals, start) = mk("x");
    issue(&mut renewals, &start, Some(Duration::from_secs(100)), NOW);
    let start = renewals
        .due(NOW + Duration::from_secs(80))
        .pop()
        .expect("due");
    let mut now = NOW + Duration::from_secs(81);
    fail(&mut renewals, &start, now);
    for _ in 0..2 {
        assert!(matches!(renewals.access("a"), Access::Kept(_, why) if why.detail == "no"));
        now = renewals.next().expect("a time");
        let start = renewals.due(now).pop().expect("due");
        fail(&mut renewals, &start, now);
    }
    now = renewals.next().expect("a time");
    let start = renewals.due(now).pop().expect("due");
    issue(&mut renewals, &start, Some(Duration::from_secs(100)), now);
    assert!(matches!(renewals.access("a"), Access::Ready(_)));
}

#[test]
fn a_new_plan_ends_the_old_ones_run_whose_answer_does_not_count() {
    let (mut renewals, old) = mk("x");
    let soon = NOW + RETRY_MIN;
    renewals.set(&BTreeMap::from([("a".to_owned(), mk_plan("y"))]), soon);
    assert!(old.unwanted.is_cancelled());
    let new = renewals.due(soon).pop().expect("due");
    fail(&mut renewals, &old, soon);
    assert_eq!(renewals.access("a"), Access::Pending);
    assert!(!new.unwanted.is_cancelled());
    issue(&mut renewals, &new, None, NOW);
    assert!(matches!(renewals.access("a"), Access::Ready(_)));
    renewals.set(&BTreeMap::new(), NOW);
    assert_eq!(renewals.access("a"), Access::Pending, "forgotten");
}

#[test]
fn a_profile_that_keeps_changing_has_one_run_at_a_time_and_no_more_than_one_in_2_s() {
    let (mut renewals, first) = mk("x");
    let mut runs = vec![first];
    for number in 0_u64..100 {
        let now = NOW + Duration::from_millis(100 * (number + 1));
        let plan = mk_plan(&number.to_string());
        renewals.set(&BTreeMap::from([("a".to_owned(), plan)]), now);
        runs.extend(renewals.due(now));
        let wanted = runs.iter().filter(|run| !run.unwanted.is_cancelled());
        assert!(wanted.count() <= 1, "change {number}");
    }
    // 10 s of changes
    assert_eq!(runs.len(), 6, "{runs:?}");
    renewals.set(&BTreeMap::new(), NOW);
    assert!(runs.iter().all(|run| run.unwanted.is_cancelled()));
}

#[test]
fn a_success_ends_the_count_of_failures() {
    let (mut renewals, mut start) = mk("x");
    let mut now = NOW;
    for _ in 0..12 {
        fail(&mut renewals, &start, now);
        now = renewals.next().expect("a time");
        start = renewals.due(now).pop().expect("due");
    }
    issue(&mut renewals, &start, None, now);
    refuse(&mut renewals, now);
    let wait = renewals.next().expect("a time").since(now);
    assert!(wait <= RETRY_MIN * 2, "{wait:?}: as after the first");
}
