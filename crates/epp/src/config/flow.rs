//! Admission: `flowControl` and the saturation detector.

use std::{collections::BTreeMap, time::Duration};

use scheduling::Detector;

use super::{
    plugins::{Plugin, Plugins, utilization_detector},
    section::Section,
};

/// Queues for requests that cannot be served at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowControl {
    /// The gate `flowControl`: without it nothing is queued, and what follows has no effect.
    pub enabled: bool,
    /// Requests in all queues; absent: no limit but those of the bands.
    pub max_requests: Option<u64>,
    /// Their bytes; absent likewise.
    pub max_bytes: Option<u64>,
    /// Longest wait while the pool has endpoints; absent: without end.
    pub default_request_ttl: Option<Duration>,
    /// Longest wait while it has none; absent: without end.
    pub no_endpoint_request_ttl: Option<Duration>,
    /// Bands of their own, by priority.
    pub bands: BTreeMap<i32, Band>,
    /// Of all other priorities.
    pub default_band: Band,
    /// Of the other priorities below 0.
    pub default_negative_band: Band,
}

/// The queue of one priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Band {
    /// Most requests.
    pub max_requests: u64,
    /// Most bytes of their bodies.
    pub max_bytes: u64,
    /// Which flow is next.
    pub fairness: FairnessPolicy,
    /// Which request of a flow is next.
    pub ordering: OrderingPolicy,
}

/// Which flow of a band is next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FairnessPolicy {
    /// `global-strict-fairness-policy`: the flow with the request that is first of all.
    #[default]
    GlobalStrict,
    /// `round-robin-fairness-policy`: one flow after the other.
    RoundRobin,
}

/// Which request of a flow is next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OrderingPolicy {
    /// `fcfs-ordering-policy`: the one that came first.
    #[default]
    Fcfs,
    /// `edf-ordering-policy`: the one whose time ends first.
    Edf,
}

/// The reference's; a waiting request is worth about a minute to a client.
const REQUEST_TTL: Duration = Duration::from_mins(1);

/// Reads `flowControl`, and the detector that decides when requests wait or are shed.
pub(super) fn read<'a>(
    root: &mut Section<'a>,
    plugins: &Plugins<'a>,
    enabled: bool,
) -> (FlowControl, Detector) {
    let mut section = root.section("flowControl");
    let mut detector = section.section("saturationDetector");
    let detector_ref = detector.value("pluginRef");
    detector.finish();
    let former = former_detector(root, plugins, detector_ref.is_some());
    let detector = match detector_ref {
        Some(reference) => plugins.resolve(reference, "a saturation detector", as_detector),
        None => former,
    };
    if !enabled {
        for name in [
            "maxRequests",
            "maxBytes",
            "defaultRequestTTL",
            "noEndpointRequestTTL",
            "priorityBands",
            "defaultPriorityBand",
            "defaultNegativePriorityBand",
        ] {
            if section.has(name) {
                let why = "the feature gate flowControl is off";
                section.findings().ignore(section.place(name), why);
            }
        }
    }
    if section.flag("enableEviction", false) {
        let what = "ending requests that are being served";
        let (findings, place) = (section.findings(), section.place("enableEviction"));
        findings.unknown(place, what, "true", &["false"]);
    }
    let flow = FlowControl::read(section, plugins, enabled);
    (flow, detector.unwrap_or_default())
}

/// The top-level `saturationDetector`: a reference, or in the oldest files the parameters themselves.
fn former_detector<'a>(
    root: &mut Section<'a>,
    plugins: &Plugins<'a>,
    superseded: bool,
) -> Option<Detector> {
    let mut section = root.value("saturationDetector")?.section()?;
    let reference = section.value("pluginRef");
    let detector = if superseded {
        let why = "flowControl.saturationDetector takes its place";
        section.findings().ignore(section.item(), why);
        // read for what is wrong in it
        reference
            .is_none()
            .then(|| utilization_detector(&mut section));
        None
    } else {
        match reference {
            Some(reference) => plugins.resolve(reference, "a saturation detector", as_detector),
            None => Some(utilization_detector(&mut section)),
        }
    };
    section.finish();
    detector
}

fn as_detector(plugin: &Plugin) -> Option<Detector> {
    match plugin {
        Plugin::Detector(detector) => Some(*detector),
        _ => None,
    }
}

// === impl FlowControl ===

impl FlowControl {
    fn read<'a>(mut section: Section<'a>, plugins: &Plugins<'a>, enabled: bool) -> Self {
        let limit = |section: &mut Section<'_>, name, example| {
            let limit = section.value(name)?.quantity(example);
            limit.filter(|limit| *limit > 0)
        };
        let max_requests = limit(&mut section, "maxRequests", "10k");
        let max_bytes = limit(&mut section, "maxBytes", "4Gi");
        let ttl = section.value("defaultRequestTTL");
        let default_request_ttl = match ttl.map(|ttl| ttl.duration("60s")) {
            Some(Some(ttl)) => (!ttl.is_zero()).then_some(ttl),
            _ => Some(REQUEST_TTL),
        };
        let ttl = section.value("noEndpointRequestTTL");
        let no_endpoint_request_ttl = match ttl.map(|ttl| ttl.duration("60s")) {
            Some(Some(ttl)) => (!ttl.is_zero()).then_some(ttl),
            _ => default_request_ttl,
        };
        let template = |section: &mut Section<'a>, name| {
            let mut band = section.value(name)?.section()?;
            band.no_effect("priority", "this band is of many priorities");
            Some(Band::read(band, plugins))
        };
        let default_band = template(&mut section, "defaultPriorityBand").unwrap_or_default();
        let negative = template(&mut section, "defaultNegativePriorityBand");
        let mut bands = BTreeMap::new();
        for value in section.list("priorityBands") {
            let Some(mut band) = value.section() else {
                continue;
            };
            let range = i64::from(i32::MIN)..=i64::from(i32::MAX);
            let priority = band.integer("priority", range, 0);
            let place = band.place("priority");
            let priority = i32::try_from(priority).unwrap_or_default();
            let findings = band.findings();
            if bands.insert(priority, Band::read(band, plugins)).is_some() {
                findings.refuse(
                    place,
                    format!("a band before it has priority {priority} too"),
                    "a priority of its own",
                    format!("priority: {}", priority.wrapping_add(1)),
                );
            }
        }
        section.finish();
        Self {
            enabled,
            max_requests,
            max_bytes,
            default_request_ttl,
            no_endpoint_request_ttl,
            bands,
            default_band,
            default_negative_band: negative.unwrap_or(default_band),
        }
    }

    /// The band of a priority.
    pub fn band(&self, priority: i32) -> &Band {
        let default = if priority < 0 {
            &self.default_negative_band
        } else {
            &self.default_band
        };
        self.bands.get(&priority).unwrap_or(default)
    }
}

impl Default for FlowControl {
    /// Off.
    fn default() -> Self {
        Self {
            enabled: false,
            max_requests: None,
            max_bytes: None,
            default_request_ttl: Some(REQUEST_TTL),
            no_endpoint_request_ttl: Some(REQUEST_TTL),
            bands: BTreeMap::new(),
            default_band: Band::default(),
            default_negative_band: Band::default(),
        }
    }
}

// === impl Band ===

impl Band {
    fn read<'a>(mut section: Section<'a>, plugins: &Plugins<'a>) -> Self {
        let default = Self::default();
        let mut limit = |name, example, default| {
            let value = section.value(name);
            let limit = value.and_then(|value| value.quantity(example));
            limit.filter(|limit| *limit > 0).unwrap_or(default)
        };
        let max_requests = limit("maxRequests", "5000", default.max_requests);
        let max_bytes = limit("maxBytes", "1G", default.max_bytes);
        let fairness = section.value("fairnessPolicyRef").and_then(|reference| {
            plugins.resolve(reference, "a fairness policy", |plugin| match plugin {
                Plugin::Fairness(policy) => Some(*policy),
                _ => None,
            })
        });
        let ordering = section.value("orderingPolicyRef").and_then(|reference| {
            plugins.resolve(reference, "an ordering policy", |plugin| match plugin {
                Plugin::Ordering(policy) => Some(*policy),
                _ => None,
            })
        });
        section.finish();
        Self {
            max_requests,
            max_bytes,
            fairness: fairness.unwrap_or_default(),
            ordering: ordering.unwrap_or_default(),
        }
    }
}

impl Default for Band {
    /// The reference's: 5000 requests, 1 GB.
    fn default() -> Self {
        Self {
            max_requests: 5000,
            max_bytes: 1_000_000_000,
            fairness: FairnessPolicy::default(),
            ordering: OrderingPolicy::default(),
        }
    }
}
