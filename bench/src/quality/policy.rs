//! Ways to choose an endpoint that are compared.

use scheduling::{Picker, PickerKind, Profile, Scorer, SessionStrategy, WeightedScorer};

/// A way to choose.
#[derive(Clone, Debug)]
pub struct Policy {
    /// What tables call it.
    pub name: &'static str,
    pub(super) chooser: Chooser,
    /// Own requests count at their endpoints from the pick on.
    pub(super) counts_own: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Chooser {
    /// One endpoint after the other.
    RoundRobin,
    /// As the endpoint picker does.
    Profile(Profile),
}

const PREFIX: f64 = 3.0;
const LOAD: f64 = 2.0;

// === impl Policy ===

impl Policy {
    /// Our default profile.
    pub fn default_profile() -> Self {
        Self::counting("default", Profile::default())
    }

    /// The same scorers with the same weights, but the load is as scraped alone, as the reference documents its default:
    /// own requests show when the model servers show them.
    pub fn reference() -> Self {
        let scorers = [
            (SCRAPED_QUEUE, LOAD),
            (Scorer::KvCacheUtilization, LOAD),
            (Scorer::PREFIX_CACHE, PREFIX),
        ];
        Self::blind("reference's scoring", profile(&scorers))
    }

    /// By chance.
    pub fn random() -> Self {
        let mut profile = profile(&[]);
        profile.picker.kind = PickerKind::Random;
        Self::blind("random", profile)
    }

    /// One endpoint after the other.
    pub fn round_robin() -> Self {
        Self {
            name: "round robin",
            chooser: Chooser::RoundRobin,
            counts_own: false,
        }
    }

    /// The shortest queue as scraped; ties by chance.
    pub fn least_queue() -> Self {
        Self::blind("least queue", profile(&[(SCRAPED_QUEUE, 1.0)]))
    }

    /// Fewest own requests in flight, as proxies do without an endpoint picker.
    pub fn least_requests() -> Self {
        Self::counting("least requests", profile(&[(ACTIVE, 1.0)]))
    }

    /// What the default is compared with.
    pub fn compared() -> Vec<Self> {
        vec![
            Self::random(),
            Self::round_robin(),
            Self::least_queue(),
            Self::least_requests(),
            Self::reference(),
        ]
    }

    /// Other profiles that a configuration file can name: each scorer alone, and changes of the default.
    pub fn alternatives() -> Vec<Self> {
        let default = |weight| {
            [
                (Scorer::QUEUE, LOAD),
                (Scorer::KvCacheUtilization, LOAD),
                (Scorer::PREFIX_CACHE, weight),
            ]
        };
        let session = Scorer::SessionAffinity(SessionStrategy::EncodedEndpointHeader);
        let with = |name, scorer, weight| {
            let mut scorers = default(PREFIX).to_vec();
            scorers.push((scorer, weight));
            Self::counting(name, profile(&scorers))
        };
        let alone = |name, scorer| Self::counting(name, profile(&[(scorer, 1.0)]));
        let prefix = |name, weight| Self::counting(name, profile(&default(weight)));
        vec![
            alone("queue alone", Scorer::QUEUE),
            alone("running requests alone", Scorer::RunningRequests),
            alone("KV cache alone", Scorer::KvCacheUtilization),
            alone("load aware alone", LOAD_AWARE),
            alone("token load alone", TOKEN_LOAD),
            alone("prefix alone", Scorer::PREFIX_CACHE),
            alone("session alone", session.clone()),
            prefix("default, prefix 0", 0.0),
            prefix("default, prefix 1", 1.0),
            prefix("default, prefix 6", 6.0),
            with("default and session 2", session, LOAD),
            with(
                "default and running requests 2",
                Scorer::RunningRequests,
                LOAD,
            ),
            with("default and active requests 2", ACTIVE, LOAD),
            Self::counting(
                "active requests 2, prefix 3",
                profile(&[(ACTIVE, LOAD), (Scorer::PREFIX_CACHE, PREFIX)]),
            ),
            Self::counting(
                "token load 2, prefix 3",
                profile(&[(TOKEN_LOAD, LOAD), (Scorer::PREFIX_CACHE, PREFIX)]),
            ),
            Self::counting(
                "token load 2 of 32768, prefix 3",
                profile(&[(FINE_TOKEN_LOAD, LOAD), (Scorer::PREFIX_CACHE, PREFIX)]),
            ),
            with("default and token load 2 of 32768", FINE_TOKEN_LOAD, LOAD),
        ]
    }

    fn counting(name: &'static str, profile: Profile) -> Self {
        Self {
            name,
            chooser: Chooser::Profile(profile),
            counts_own: true,
        }
    }

    fn blind(name: &'static str, profile: Profile) -> Self {
        Self {
            counts_own: false,
            ..Self::counting(name, profile)
        }
    }
}

const SCRAPED_QUEUE: Scorer = Scorer::Queue {
    count_unscraped: false,
};
const ACTIVE: Scorer = Scorer::ActiveRequest {
    idle_threshold: 0,
    max_busy_score: 1.0,
};
/// With the parameters that a configuration file leaves out.
const LOAD_AWARE: Scorer = Scorer::LoadAware { threshold: 128.0 };
const TOKEN_LOAD: Scorer = Scorer::TokenLoad {
    queue_threshold_tokens: 4_194_304.0,
};

/// With a threshold near what endpoints have in flight, so that the score differs between them.
const FINE_TOKEN_LOAD: Scorer = Scorer::TokenLoad {
    queue_threshold_tokens: 32_768.0,
};

fn profile(scorers: &[(Scorer, f64)]) -> Profile {
    let scorers = scorers.iter().cloned();
    Profile {
        scorers: scorers
            .map(|(scorer, weight)| WeightedScorer { scorer, weight })
            .collect(),
        picker: Picker::default(),
        ..Profile::default()
    }
}
