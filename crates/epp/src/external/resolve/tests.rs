use processor_api::{Degraded, TokenField};
use rand::{SeedableRng, rngs::StdRng};
use rstest::rstest;
use scheduling::{
    Freshness, Moment, Picker, Profile, Registry, Request, ScrapeFailure, Snapshot, Subset, narrow,
};

use super::*;
use crate::fixtures::mk_member;

const A: &str = "10.0.0.1:8000";
const B: &str = "10.0.0.2:8000";
const C: &str = "[fd00::3]:8001";

/// Pods a, b and c.
fn mk_snapshot() -> Snapshot {
    let members = [("a", A), ("b", B), ("c", C)];
    let members = members.map(|(pod, address)| mk_member(pod, address.parse().unwrap()));
    Registry::default().update(members.to_vec(), Moment::START)
}

fn mk_reply(worker: &str, fallbacks: &[&str]) -> ProcessReply {
    ProcessReply {
        worker_address: Some(worker.to_owned()),
        fallbacks: fallbacks.iter().map(|&one| one.to_owned()).collect(),
        ..ProcessReply::default()
    }
}

fn resolved(snapshot: &Snapshot, subset: Option<&str>, reply: ProcessReply) -> Resolution {
    let table = snapshot.read(Moment::START, Freshness::default());
    let subset = subset.map(|list| {
        let mut subset = Subset::default();
        subset.extend_from_list(list);
        subset
    });
    let request = Request {
        subset,
        ..Request::default()
    };
    let guard = Profile {
        filters: Vec::new(),
        scorers: Vec::new(),
        picker: Picker::default(),
        freshness: Freshness::default(),
    };
    let narrowed = narrow(&table, &request, &[], &guard, None).unwrap();
    let members = Members::new(&table, &narrowed);
    let ask = Ask {
        route: true,
        transfer: true,
    };
    resolve(reply, ask, &Switches::default(), &members)
}

const REFUSED: fn(RefusedWorker) -> Result<usize, Internal> = |why| Err(Internal::Refused(why));

#[rstest]
#[case::address(None, A, Ok(0))]
#[case::of_version_6(None, C, Ok(2))]
#[case::pod_and_port(None, "b:8000", Ok(1))]
#[case::pod_of_another_port(None, "b:8001", REFUSED(RefusedWorker::NoMember))]
#[case::stranger(None, "10.0.0.9:8000", REFUSED(RefusedWorker::NoMember))]
#[case::other_port(None, "10.0.0.1:8001", REFUSED(RefusedWorker::NoMember))]
#[case::no_address(None, "http://10.0.0.1:8000/", REFUSED(RefusedWorker::NoMember))]
#[case::empty(None, "", REFUSED(RefusedWorker::NoMember))]
#[case::in_the_subset(Some("10.0.0.1"), A, Ok(0))]
#[case::outside_of_the_subset(Some("10.0.0.1"), B, REFUSED(RefusedWorker::NotAllowed))]
#[case::pod_outside_of_the_subset(Some("10.0.0.1"), "b:8000", REFUSED(RefusedWorker::NotAllowed))]
fn a_worker_is_one_that_the_proxy_allows_of_the_pool(
    #[case] subset: Option<&str>,
    #[case] worker: &str,
    #[case] want: Result<usize, Internal>,
) {
    let resolution = resolved(&mk_snapshot(), subset, mk_reply(worker, &[]));
    assert_eq!(
        resolution.workers,
        want.map(|worker| SmallVec::from_elem(worker, 1))
    );
}

#[test]
fn a_suspect_is_refused_unless_all_are() {
    let snapshot = mk_snapshot();
    let fail = |member: usize| {
        for _ in 0..3 {
            let load = snapshot.members()[member].endpoint.load();
            load.scrape_failed(ScrapeFailure::Unreachable);
        }
    };
    fail(0);
    let worker = |reply| resolved(&snapshot, None, reply).workers;
    assert_eq!(
        worker(mk_reply(A, &[])),
        Err(Internal::Refused(RefusedWorker::Suspect))
    );
    fail(1);
    fail(2);
    assert_eq!(worker(mk_reply(A, &[])), Ok(SmallVec::from_elem(0, 1)));
}

#[test]
fn of_the_fallbacks_those_that_are_allowed_follow_once() {
    let reply = mk_reply(B, &[A, "10.0.0.9:1", B, C, A]);
    let resolution = resolved(&mk_snapshot(), Some("10.0.0.1,10.0.0.2"), reply);
    assert_eq!(resolution.workers.unwrap().to_vec(), [1, 0]);
}

#[rstest]
#[case::silent(&[], None)]
#[case::no_router(&[Degraded::NoRouter], Some(Degraded::NoRouter))]
#[case::cache_beside(&[Degraded::CacheWrite, Degraded::RouteTimeout], Some(Degraded::RouteTimeout))]
#[case::cache_alone(&[Degraded::CacheWrite], None)]
fn without_a_worker_the_reply_says_why(
    #[case] degraded: &[Degraded],
    #[case] why: Option<Degraded>,
) {
    let reply = ProcessReply {
        degraded: degraded.to_vec(),
        ..ProcessReply::default()
    };
    let resolution = resolved(&mk_snapshot(), None, reply);
    assert_eq!(resolution.workers, Err(Internal::NoWorker(why)));
    assert_eq!(
        resolution.is_uncached,
        degraded.contains(&Degraded::CacheWrite)
    );
}

/// Both: the key; neither: none.
#[rstest]
#[case(true, true, Some(TokenField::TokenIds), true, "key")]
#[case(true, false, None, true, "key")]
#[case(false, true, Some(TokenField::NvextTokenData), true, "ids")]
#[case(false, true, None, true, "none")]
#[case(false, false, Some(TokenField::TokenIds), true, "none")]
#[case(true, true, Some(TokenField::TokenIds), false, "none")]
fn tokens_go_by_key_or_where_the_flag_says(
    #[case] key: bool,
    #[case] value: bool,
    #[case] token_field: Option<TokenField>,
    #[case] transfer: bool,
    #[case] want: &str,
) {
    let reply = ProcessReply {
        token_key: key.then(|| TokenKey::random(&mut StdRng::seed_from_u64(1))),
        token_value: value.then(|| Bytes::from_static(b"[1]")),
        token_count: Some(1),
        overlap_tokens: Some(0),
        worker_address: Some(A.to_owned()),
        ..ProcessReply::default()
    };
    let switches = Switches {
        token_field,
        ..Switches::default()
    };
    let table = mk_snapshot().read(Moment::START, Freshness::default());
    let members = Members::new(&table, &Narrowed::default());
    let ask = Ask {
        route: false,
        transfer,
    };
    let resolution = resolve(reply, ask, &switches, &members);
    let got = match resolution.tokens {
        Tokens::Key(_) => "key",
        Tokens::Ids(_) => "ids",
        Tokens::None => "none",
    };
    assert_eq!(got, want);
    assert_eq!(
        resolution.workers,
        Err(Internal::NotAsked),
        "although it names one"
    );
    assert_eq!((resolution.count, resolution.overlap), (Some(1), Some(0)));
}
