//! One consistent world: the members of the pool.

use std::{collections::HashMap, net::SocketAddr, sync::Arc};

use crate::{
    endpoint::{Endpoint, EndpointId},
    load::{Freshness, LoadView, Reading},
};
use moment::Moment;

/// What discovery says about one endpoint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    /// Its name.
    pub id: EndpointId,
    /// Where it serves requests and metrics.
    pub address: SocketAddr,
    /// What it runs, as its pod says; may be empty.
    pub engine: Arc<str>,
}

/// The members of the pool at one time, ordered by id. Immutable: a change makes the next one.
#[derive(Debug, Default)]
pub struct Snapshot {
    endpoints: Vec<Arc<Endpoint>>,
    by_address: HashMap<SocketAddr, usize>,
}

/// Means over all members; zeros for an empty pool.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Averages {
    /// Waiting requests.
    pub waiting: f64,
    /// Running requests.
    pub running: f64,
    /// Used share of the KV cache, 0 to 1.
    pub kv: f64,
}

// === impl Snapshot ===

impl Snapshot {
    /// The snapshot that follows `self` when the members are `members`. A member with the same id and
    /// address and engine keeps its endpoint, and so its load. Of two members with one id the first is kept.
    #[must_use]
    pub fn next(&self, mut members: Vec<Member>) -> Self {
        members.sort();
        members.dedup_by(|b, a| a.id == b.id);
        let endpoints: Vec<_> = members
            .into_iter()
            .map(|member| self.keep_or_make(member))
            .collect();
        let by_address = endpoints
            .iter()
            .enumerate()
            .map(|(index, endpoint)| (endpoint.address(), index))
            .collect();
        Self {
            endpoints,
            by_address,
        }
    }

    /// All members, ordered by id.
    pub fn endpoints(&self) -> &[Arc<Endpoint>] {
        &self.endpoints
    }

    /// The member that listens at `address`.
    pub fn at(&self, address: SocketAddr) -> Option<&Arc<Endpoint>> {
        self.endpoints.get(*self.by_address.get(&address)?)
    }

    /// The load of every member, in the order of [`Self::endpoints`].
    pub fn views(&self, now: Moment, freshness: Freshness) -> Vec<LoadView> {
        let readings: Vec<_> = self
            .endpoints
            .iter()
            .map(|endpoint| endpoint.load().read(now, freshness))
            .collect();
        let mean = mean(readings.iter());
        readings
            .into_iter()
            .map(|reading| LoadView::new(reading, mean))
            .collect()
    }

    fn keep_or_make(&self, member: Member) -> Arc<Endpoint> {
        let kept = self
            .endpoints
            .binary_search_by(|endpoint| endpoint.id().cmp(&member.id))
            .ok();
        match kept.and_then(|index| self.endpoints.get(index)) {
            Some(endpoint)
                if endpoint.address() == member.address && endpoint.engine() == &*member.engine =>
            {
                Arc::clone(endpoint)
            }
            _ => Arc::new(Endpoint::new(member)),
        }
    }
}

// === impl Averages ===

impl Averages {
    /// The means of `views`.
    pub fn of(views: &[LoadView]) -> Self {
        if views.is_empty() {
            return Self::default();
        }
        let count = views.len() as f64;
        let sum = |value: fn(&LoadView) -> f64| views.iter().map(value).sum::<f64>() / count;
        Self {
            waiting: sum(|view| view.waiting),
            running: sum(|view| view.running),
            kv: sum(|view| view.kv),
        }
    }
}

/// The mean scraped `(waiting, running, kv)` of the readings that have values; zeros where none has.
pub(crate) fn mean<'a>(readings: impl Iterator<Item = &'a Reading>) -> (f64, f64, f64) {
    let (count, sums) = readings.filter_map(|reading| reading.scraped).fold(
        (0.0, (0.0, 0.0, 0.0)),
        |(count, sums), values| {
            (
                count + 1.0,
                (sums.0 + values.0, sums.1 + values.1, sums.2 + values.2),
            )
        },
    );
    if count > 0.0 {
        (sums.0 / count, sums.1 / count, sums.2 / count)
    } else {
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::InFlight;

    fn mk_member(pod: &str, uid: &str, address: &str) -> Member {
        Member {
            id: EndpointId {
                namespace: "ns".into(),
                pod: pod.into(),
                rank: 0,
                uid: uid.into(),
            },
            address: address.parse().unwrap(),
            engine: "".into(),
        }
    }

    #[test]
    fn a_member_that_stays_keeps_its_load() {
        let first = Snapshot::default().next(vec![mk_member("a", "1", "10.0.0.1:80")]);
        let _guard = InFlight::at(Arc::clone(&first.endpoints()[0]));
        let second = first.next(vec![
            mk_member("b", "2", "10.0.0.2:80"),
            mk_member("a", "1", "10.0.0.1:80"),
        ]);
        assert_eq!(
            second
                .at("10.0.0.1:80".parse().unwrap())
                .unwrap()
                .load()
                .in_flight(),
            1
        );
        assert_eq!(second.endpoints()[1].id().to_string(), "ns/b-rank-0");
    }

    #[test]
    fn a_pod_made_anew_under_its_old_name_starts_empty() {
        let first = Snapshot::default().next(vec![mk_member("a", "1", "10.0.0.1:80")]);
        let _guard = InFlight::at(Arc::clone(&first.endpoints()[0]));
        let second = first.next(vec![mk_member("a", "2", "10.0.0.1:80")]);
        assert_eq!(second.endpoints()[0].load().in_flight(), 0);
    }

    #[test]
    fn a_member_that_moved_is_found_at_its_new_address_only() {
        let first = Snapshot::default().next(vec![mk_member("a", "1", "10.0.0.1:80")]);
        let second = first.next(vec![mk_member("a", "1", "10.0.0.9:80")]);
        assert!(second.at("10.0.0.1:80".parse().unwrap()).is_none());
        assert!(second.at("10.0.0.9:80".parse().unwrap()).is_some());
    }

    #[test]
    fn a_member_given_twice_is_one_endpoint() {
        let member = mk_member("a", "1", "10.0.0.1:80");
        assert_eq!(
            Snapshot::default()
                .next(vec![member.clone(), member])
                .endpoints()
                .len(),
            1
        );
    }
}
