//! Pools for tests.

use std::sync::Arc;

use rand::{SeedableRng, rngs::StdRng};

use crate::{
    Booking, Endpoint, EndpointId, Member, Moment, Registry, Request, Scraped, Snapshot, Subset,
    Table,
};

pub(crate) const NOW: Moment = Moment::from_millis(1_000);

pub(crate) fn mk_member(pod: &str, uid: &str, address: &str) -> Member {
    Member {
        id: EndpointId {
            namespace: "ns".into(),
            pod: pod.into(),
            rank: 0,
            uid: uid.into(),
        },
        address: address.parse().unwrap(),
        engine: "".into(),
        labels: Arc::default(),
    }
}

/// `pod-000` at 10.0.0.0:8000 and so on.
pub(crate) fn mk_members(count: u8) -> Vec<Member> {
    let member = |index| {
        let pod = format!("pod-{index:03}");
        mk_member(&pod, &pod, &format!("10.0.0.{index}:8000"))
    };
    (0..count).map(member).collect()
}

pub(crate) fn mk_snapshot(count: u8) -> Snapshot {
    Registry::default().update(mk_members(count), NOW)
}

/// The same with labels.
pub(crate) fn mk_labelled(labels: &[&[(&str, &str)]]) -> Snapshot {
    let mut members = mk_members(u8::try_from(labels.len()).unwrap());
    for (member, labels) in members.iter_mut().zip(labels) {
        let labels = labels
            .iter()
            .map(|&(key, value)| (key.into(), value.into()));
        member.labels = Arc::new(labels.collect());
    }
    Registry::default().update(members, NOW)
}

pub(crate) fn at(snapshot: &Snapshot, index: usize) -> Arc<Endpoint> {
    Arc::clone(&snapshot.members()[index].endpoint)
}

pub(crate) fn mk_page(waiting: f64, running: f64, kv: f64) -> Scraped {
    Scraped {
        waiting: Some(waiting),
        running: Some(running),
        kv: Some(kv),
        ..Scraped::default()
    }
}

pub(crate) fn scrape(endpoint: &Endpoint, page: Scraped) {
    let load = endpoint.load();
    assert_eq!(load.scraped(load.scrape_starts(NOW), page), Ok(()));
}

pub(crate) fn book(endpoint: &Arc<Endpoint>, tokens: u32) -> Booking {
    let transit = std::time::Duration::ZERO;
    Booking::new(Arc::clone(endpoint), tokens, None, NOW, transit)
}

pub(crate) fn read(snapshot: &Snapshot) -> Table {
    snapshot.read(NOW, crate::Freshness::default())
}

pub(crate) fn mk_rng() -> StdRng {
    StdRng::seed_from_u64(7)
}

pub(crate) fn mk_subset(list: &str) -> Request {
    let mut subset = Subset::default();
    subset.extend_from_list(list);
    Request {
        subset: Some(subset),
        ..Request::default()
    }
}
