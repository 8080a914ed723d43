//! From a query to an answer: the members of the moment, the pick, the words for the proxy.

use std::{fmt::Write, net::SocketAddr, sync::Arc};

use arc_swap::ArcSwap;
use rand::RngExt;
use scheduling::{Endpoint, Member, Pick, Profile, Ranked, Snapshot};
use tracing::debug;

use crate::{
    extproc::{Answer, Query, Route},
    reject::Reject,
};
use moment::Clock;

/// The members of one pool, swapped as a whole. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Pool(Arc<ArcSwap<Snapshot>>);

/// Decides where requests of one pool go.
#[derive(Debug)]
pub struct Director {
    /// The members.
    pub pool: Pool,
    /// How they are scored.
    pub profile: Profile,
    /// Time.
    pub clock: Clock,
    /// False: the proxy's subset is ignored.
    pub honour_subset: bool,
}

// === impl Pool ===

impl Pool {
    /// The members of this moment, for more than one look.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.0.load_full()
    }

    /// Replaces the members; the ones that stay keep their load. One writer only: discovery.
    pub fn replace(&self, members: Vec<Member>) -> Arc<Snapshot> {
        let next = Arc::new(self.0.load().next(members));
        self.0.store(Arc::clone(&next));
        next
    }

    /// The member that listens at `address`.
    pub fn at(&self, address: SocketAddr) -> Option<Arc<Endpoint>> {
        self.0.load().at(address).cloned()
    }
}

// === impl Director ===

impl Director {
    /// Picks for one request. From its return on the request counts at its endpoint.
    ///
    /// # Errors
    /// A [`Reject`] when no member may serve it.
    pub(crate) fn decide(&self, mut query: Query) -> Result<Answer, Reject> {
        if !self.honour_subset {
            query.facts.subset = None;
        }
        let mut rng = rand::rng();
        let snapshot = self.pool.0.load();
        let picked = scheduling::pick(
            &snapshot,
            &query.facts,
            &self.profile,
            self.clock.now(),
            &mut rng,
        );
        let Pick { ranked, guard } = picked.inspect_err(|no_pick| {
            debug!(
                reason = no_pick.reason(),
                members = snapshot.endpoints().len(),
                "not picked"
            );
        })?;
        let mut destination = String::with_capacity(ranked.len() * 24);
        for (index, Ranked { endpoint, .. }) in ranked.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            // Writing to a string cannot fail.
            let _ = write!(destination, "{comma}{}", endpoint.address());
        }
        debug!(%destination, score = ranked.first().map(|best| best.score), prompt_tokens = query.prompt_tokens, "picked");
        let request_id = query
            .wants_request_id
            .then(|| make_request_id(rng.random()));
        let endpoints = ranked.into_iter().map(|ranked| ranked.endpoint).collect();
        Ok(Answer {
            route: Route {
                destination,
                request_id,
            },
            endpoints,
            guard,
        })
    }
}

/// A version 4 UUID of the given random bits.
fn make_request_id(bits: u128) -> String {
    let bits = bits & !(0xf << 76) & !(0x3 << 62) | (0x4 << 76) | (0x2 << 62);
    let hex = format!("{bits:032x}");
    let mut id = String::with_capacity(36);
    for (index, digit) in hex.chars().enumerate() {
        if let 8 | 12 | 16 | 20 = index {
            id.push('-');
        }
        id.push(digit);
    }
    id
}

#[cfg(test)]
mod tests {
    use scheduling::{EndpointId, Facts, NoPick, Subset};

    use super::*;

    fn mk_director(addresses: &[&str]) -> Director {
        let pool = Pool::default();
        pool.replace(
            addresses
                .iter()
                .map(|address| Member {
                    id: EndpointId {
                        namespace: "ns".into(),
                        pod: (*address).into(),
                        rank: 0,
                        uid: (*address).into(),
                    },
                    address: address.parse().unwrap(),
                    engine: "".into(),
                })
                .collect(),
        );
        Director {
            pool,
            profile: Profile::default(),
            clock: Clock::start(),
            honour_subset: true,
        }
    }

    fn mk_query(list: u8, subset: Option<&str>) -> Query {
        let subset = subset.map(|list| {
            let mut subset = Subset::default();
            subset.extend_from_list(list);
            subset
        });
        Query {
            facts: Facts { subset, list },
            model: None,
            prompt_tokens: 0,
            body_bytes: 0,
            fairness_id: None,
            wants_request_id: false,
        }
    }

    #[test]
    fn the_destination_lists_the_endpoints_in_the_protocols_words() {
        let director = mk_director(&["10.0.0.1:8000", "[fd00::1]:8000"]);
        let answer = director.decide(mk_query(2, None)).unwrap();
        let mut listed: Vec<_> = answer.route.destination.split(',').collect();
        listed.sort_unstable();
        assert_eq!(listed, ["10.0.0.1:8000", "[fd00::1]:8000"]);
        assert_eq!(
            answer.endpoints[0].load().in_flight(),
            1,
            "counted at the first"
        );
        assert_eq!(answer.endpoints[1].load().in_flight(), 0);
    }

    #[test]
    fn a_subset_without_members_is_refused_unless_it_is_to_be_ignored() {
        let mut director = mk_director(&["10.0.0.1:8000"]);
        let query = || mk_query(1, Some("10.9.9.9"));
        assert_eq!(
            director.decide(query()).unwrap_err(),
            NoPick::EmptySubset.into()
        );
        director.honour_subset = false;
        assert_eq!(
            director.decide(query()).unwrap().route.destination,
            "10.0.0.1:8000"
        );
    }

    #[test]
    fn a_request_id_is_made_only_where_there_is_none() {
        let director = mk_director(&["10.0.0.1:8000"]);
        assert_eq!(
            director.decide(mk_query(1, None)).unwrap().route.request_id,
            None
        );
        let query = Query {
            wants_request_id: true,
            ..mk_query(1, None)
        };
        let id = director.decide(query).unwrap().route.request_id.unwrap();
        assert_eq!(id.len(), 36);
        assert_eq!(
            make_request_id(u128::MAX),
            "ffffffff-ffff-4fff-bfff-ffffffffffff"
        );
        assert_eq!(make_request_id(0), "00000000-0000-4000-8000-000000000000");
    }
}
