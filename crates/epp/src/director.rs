//! From a query to an answer: the members of the moment, the pick, the words for the proxy.

use std::{cell::RefCell, net::SocketAddr, sync::Arc};

use arc_swap::ArcSwap;
use moment::Clock;
use parking_lot::Mutex;
use rand::RngExt;
use scheduling::{
    Booking, Choice, Endpoint, Member, Moment, Registry, Slot, Snapshot, Table, choose,
};
use tracing::debug;

use crate::{
    config::CurrentConfig,
    extproc::{Answer, Query, Route},
    reject::Reject,
};

/// The members of one pool, swapped as a whole. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Pool(Arc<Members>);

#[derive(Debug, Default)]
struct Members {
    snapshot: ArcSwap<Snapshot>,
    registry: Mutex<Registry>,
}

/// Decides where requests of one pool go.
#[derive(Debug)]
pub struct Director {
    /// The members.
    pub pool: Pool,
    /// How they are scored.
    pub config: CurrentConfig,
    /// Time.
    pub clock: Clock,
    /// False: the proxy's subset is ignored.
    pub honour_subset: bool,
}

thread_local! {
    /// The table of the last pick of this thread, whose memory the next one uses.
    static TABLE: RefCell<Table> = RefCell::default();
}

// === impl Pool ===

impl Pool {
    /// The members of this moment, for more than one look.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.0.snapshot.load_full()
    }

    /// Replaces the members; the ones that stay, or left a moment ago, keep their load.
    pub fn replace(&self, members: Vec<Member>, now: Moment) -> Arc<Snapshot> {
        let mut registry = self.0.registry.lock();
        let next = Arc::new(registry.update(members, now));
        self.0.snapshot.store(Arc::clone(&next));
        next
    }

    /// Forgets endpoints that left long enough ago; their slots.
    pub fn sweep(&self, now: Moment) -> Vec<Slot> {
        self.0.registry.lock().sweep(now)
    }

    /// The member that listens at `address`.
    pub fn at(&self, address: SocketAddr) -> Option<Arc<Endpoint>> {
        self.0.snapshot.load().at(address).cloned()
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
            query.request.subset = None;
        }
        let now = self.clock.now();
        let mut rng = rand::rng();
        let snapshot = self.pool.0.snapshot.load();
        let config = self.config.load();
        let profile = &config.profile;
        let Query { request, .. } = &query;
        let choice = TABLE.with_borrow_mut(|table| {
            snapshot.read_into(table, now, profile.freshness, profile.uses_adapters());
            choose(table, request, &[], profile, &mut rng)
        });
        let choice = choice.inspect_err(|no_pick| {
            debug!(
                reason = no_pick.reason(),
                members = snapshot.members().len(),
                "not picked"
            );
        })?;
        let endpoints = endpoints(&snapshot, &choice);
        let first: &Arc<Endpoint> = endpoints.first().ok_or(scheduling::NoPick::EmptyPool)?;
        let adapter = request.model.clone();
        let booking = Booking::new(
            Arc::clone(first),
            request.prompt_tokens,
            adapter,
            now,
            request.transit,
        );
        let destination = destination(&endpoints);
        debug!(%destination, score = choice.first().map(|best| best.score), prompt_tokens = request.prompt_tokens, "picked");
        let request_id = query
            .wants_request_id
            .then(|| make_request_id(rng.random()));
        Ok(Answer {
            route: Route {
                destination,
                request_id,
            },
            endpoints,
            booking,
        })
    }
}

fn endpoints(snapshot: &Snapshot, choice: &Choice) -> smallvec::SmallVec<[Arc<Endpoint>; 1]> {
    let chosen = choice
        .iter()
        .filter_map(|chosen| snapshot.members().get(chosen.member));
    chosen.map(|member| Arc::clone(&member.endpoint)).collect()
}

/// The endpoints in the protocol's text, best first.
fn destination(endpoints: &[Arc<Endpoint>]) -> String {
    match endpoints {
        [only] => only.destination().to_owned(),
        all => {
            let texts: Vec<_> = all.iter().map(|endpoint| endpoint.destination()).collect();
            texts.join(",")
        }
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
    use scheduling::{EndpointId, NoPick, Request, Subset};

    use super::*;
    use crate::config::{Compat, Config};

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
                    labels: Arc::default(),
                })
                .collect(),
            Moment::START,
        );
        Director {
            pool,
            config: CurrentConfig::default(),
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
            request: Request {
                subset,
                list,
                ..Request::default()
            },
            model: None,
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
    fn a_pick_uses_the_configuration_of_its_moment() {
        let director = mk_director(&["10.0.0.1:8000", "10.0.0.2:8000"]);
        let picked = || {
            director
                .decide(mk_query(1, None))
                .map(|answer| answer.endpoints.len())
        };
        assert_eq!(picked(), Ok(1));
        let text = "{apiVersion: llm-d.ai/v1alpha1, kind: EndpointPickerConfig, \
                    plugins: [{type: max-score-picker, parameters: {maxNumOfEndpoints: 2}}]}";
        let config = Config::parse(text, Compat::Strict).unwrap();
        director.config.replace(config);
        assert_eq!(picked(), Ok(2));
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
