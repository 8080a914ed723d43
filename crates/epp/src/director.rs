//! From a query to an answer: the members of the moment, the pick, the words for the proxy.

use std::{cell::RefCell, net::SocketAddr, sync::Arc};

use arc_swap::ArcSwap;
use moment::Clock;
use parking_lot::Mutex;
use rand::RngExt;
use scheduling::{
    Booking, Choice, Endpoint, Member, Moment, NoPick, Profile, Registry, Request, Slot, Snapshot,
    Table, choose,
};
use tracing::debug;

mod prefix;

pub(crate) use prefix::Learned;
pub use prefix::PrefixSettings;

use prefix::PrefixCache;

use crate::{
    edit::Edit,
    extproc::{Answer, Query, REQUEST_ID, Route},
    reject::Reject,
    tap::ResponseTap,
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
    pub profile: Profile,
    /// Time.
    pub clock: Clock,
    /// False: the proxy's subset is ignored.
    pub honour_subset: bool,
    prefix: PrefixCache,
}

/// What is computed for one pick.
#[derive(Default)]
struct Scratch {
    table: Table,
    matched: Vec<u32>,
}

thread_local! {
    /// Of the last pick of this thread: the next one uses its memory.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
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
    /// A director of the pool that scores by `profile`.
    pub fn new(pool: Pool, profile: Profile, prefix: PrefixSettings, clock: Clock) -> Self {
        Self {
            pool,
            profile,
            clock,
            honour_subset: true,
            prefix: PrefixCache::new(prefix),
        }
    }

    /// The same, but the proxy's subset counts only if `honour`.
    #[must_use]
    pub fn honouring_subset(self, honour: bool) -> Self {
        Self {
            honour_subset: honour,
            ..self
        }
    }

    /// Forgets endpoints that left long ago, and follows the sizes of caches. To be called now and then.
    pub(crate) fn tend(&self) {
        let gone = self.pool.sweep(self.clock.now());
        self.prefix.tend(&self.pool.snapshot(), &gone);
    }

    /// The answer is written: the endpoint will have cached the request's prompt.
    pub(crate) fn learn(&self, learned: &Learned, endpoint: &Endpoint) {
        self.prefix.learn(learned, endpoint);
    }

    /// What the prefix index holds.
    pub(crate) fn prefix_stats(&self) -> scheduling::prefix::Stats {
        self.prefix.stats()
    }

    /// Picks for one request. From its return on the request counts at its endpoint.
    ///
    /// # Errors
    /// A [`Reject`] when no member may serve it.
    pub(crate) fn decide(&self, query: Query) -> Result<Answer, Reject> {
        let now = self.clock.now();
        let mut rng = rand::rng();
        let snapshot = self.pool.0.snapshot.load();
        let Query {
            head,
            subset,
            list,
            parsed,
            body,
        } = query;
        let chain = match &parsed {
            Some(parsed) if self.profile.uses_prefix() => {
                self.prefix.chain(&parsed.model, parsed, &body)
            }
            _ => Vec::new(),
        };
        let request = Request {
            subset: subset.filter(|_| self.honour_subset),
            list,
            model: parsed.as_ref().map(|parsed| parsed.model.as_str().into()),
            prompt_tokens: parsed.as_ref().map_or(0, |parsed| {
                u32::try_from(parsed.prompt_tokens).unwrap_or(u32::MAX)
            }),
            prefix: chain,
            block_tokens: self.prefix.block_tokens(),
            ..Request::default()
        };
        let picked = SCRATCH.with_borrow_mut(|Scratch { table, matched }| {
            let Profile { freshness, .. } = self.profile;
            snapshot.read_into(table, now, freshness, self.profile.uses_adapters());
            self.prefix
                .matches(&request.prefix, &table.cache_slots, matched);
            let choice = choose(table, &request, matched, &self.profile, &mut rng)?;
            let first = choice.first().and_then(|first| matched.get(first.member));
            Ok::<_, NoPick>((first.copied().unwrap_or(0), choice))
        });
        let (matched, choice) = picked.inspect_err(|no_pick| {
            debug!(
                reason = no_pick.reason(),
                members = snapshot.members().len(),
                "not picked"
            );
        })?;
        let endpoints = endpoints(&snapshot, &choice);
        let first: &Arc<Endpoint> = endpoints.first().ok_or(NoPick::EmptyPool)?;
        let Request {
            model,
            prompt_tokens,
            transit,
            prefix,
            block_tokens,
            ..
        } = request;
        let uncached = prompt_tokens.saturating_sub(matched.saturating_mul(block_tokens));
        let booking = Booking::new(Arc::clone(first), uncached, model, now, transit);
        let destination = destination(&endpoints);
        debug!(%destination, score = choice.first().map(|best| best.score), prompt_tokens, matched, "picked");
        let mut edit = Edit::default();
        if !head.has_request_id {
            edit.set_header(REQUEST_ID, make_request_id(rng.random()));
        }
        Ok(Answer {
            route: Route {
                destination: Some(destination.into()),
                edit,
            },
            endpoints,
            booking,
            tap: parsed.map(|_| ResponseTap::default()),
            response: Edit::default(),
            learned: Learned::new(prefix),
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
    use bytes::Bytes;
    use scheduling::{EndpointId, Subset};

    use super::*;
    use crate::extproc::RequestHead;

    fn mk_director_of(pool: Pool) -> Director {
        let prefix = PrefixSettings {
            max_bytes: 1 << 20,
            ..PrefixSettings::default()
        };
        Director::new(pool, Profile::default(), prefix, Clock::start())
    }

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
        mk_director_of(pool)
    }

    fn mk_query(list: u8, subset: Option<&str>) -> Query {
        let subset = subset.map(|list| {
            let mut subset = Subset::default();
            subset.extend_from_list(list);
            subset
        });
        let head = RequestHead {
            has_request_id: true,
            ..RequestHead::default()
        };
        Query {
            head,
            subset,
            list,
            parsed: None,
            body: Bytes::new(),
        }
    }

    fn destination(answer: &Answer) -> &str {
        std::str::from_utf8(answer.route.destination.as_ref().unwrap()).unwrap()
    }

    #[test]
    fn the_destination_lists_the_endpoints_in_the_protocols_words() {
        let director = mk_director(&["10.0.0.1:8000", "[fd00::1]:8000"]);
        let answer = director.decide(mk_query(2, None)).unwrap();
        let mut listed: Vec<_> = destination(&answer).split(',').collect();
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
            destination(&director.decide(query()).unwrap()),
            "10.0.0.1:8000"
        );
    }

    #[test]
    fn a_request_id_is_made_only_where_there_is_none() {
        let director = mk_director(&["10.0.0.1:8000"]);
        let answer = director.decide(mk_query(1, None)).unwrap();
        assert_eq!(answer.route.edit.headers_to_set(), []);
        let mut query = mk_query(1, None);
        query.head.has_request_id = false;
        let answer = director.decide(query).unwrap();
        let [(name, id)] = answer.route.edit.headers_to_set() else {
            panic!("one header")
        };
        assert_eq!((&**name, id.len()), (REQUEST_ID, 36));
        assert_eq!(
            make_request_id(u128::MAX),
            "ffffffff-ffff-4fff-bfff-ffffffffffff"
        );
        assert_eq!(make_request_id(0), "00000000-0000-4000-8000-000000000000");
    }
}
