//! How requests are shared among the clusters of one import, as a `ClusterSelectionPolicy` says it.

use std::time::Duration;

/// The values that hold where no policy says otherwise are those of [`Policy::default`].
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Policy {
    pub(crate) strategy: Strategy,
    /// The `InferencePool` of the same namespace and name is one of the clusters, under this cluster's name.
    pub(crate) include_local: bool,
    pub(crate) health: HealthRule,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Strategy {
    /// Equal shares of all healthy clusters.
    #[default]
    HealthBased,
    /// Shares by free capacity, as the clusters' endpoint pickers report it.
    MetricsBased(MetricsRule),
    /// All requests to the first healthy cluster.
    ActivePassive(OrderRule),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OrderRule {
    /// Cluster names, first choice first. Clusters that it does not name follow: the local one, then by name.
    pub(crate) order: Vec<String>,
    /// How long a cluster is healthy again before requests return to it.
    pub(crate) failback: Duration,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MetricsRule {
    /// Waiting requests of an endpoint that halve the score of its cluster.
    pub(crate) queue_target: f64,
    /// Time in which a share covers half of the way to its target.
    pub(crate) half_life: Duration,
    /// Change of a share, in permille, from which on shares are published.
    pub(crate) hysteresis: u32,
    /// Least share of a healthy cluster, in permille.
    pub(crate) min_share: u32,
    /// Age from which on metrics are not used.
    pub(crate) stale_after: Duration,
}

/// When a cluster is healthy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HealthRule {
    pub(crate) interval: Duration,
    pub(crate) timeout: Duration,
    /// Failed probes in a row that make it unhealthy.
    pub(crate) unhealthy_after: u32,
    /// Successful probes in a row that make it healthy again.
    pub(crate) healthy_after: u32,
}

// === impl Policy ===

impl Policy {
    pub(crate) fn metrics(&self) -> Option<&MetricsRule> {
        match &self.strategy {
            Strategy::MetricsBased(rule) => Some(rule),
            Strategy::HealthBased | Strategy::ActivePassive(_) => None,
        }
    }

    pub(crate) fn order(&self) -> Option<&OrderRule> {
        match &self.strategy {
            Strategy::ActivePassive(rule) => Some(rule),
            Strategy::HealthBased | Strategy::MetricsBased(_) => None,
        }
    }
}

// === impl Strategy ===

impl Strategy {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::HealthBased => "HealthBased",
            Self::MetricsBased(_) => "MetricsBased",
            Self::ActivePassive(_) => "ActivePassive",
        }
    }
}

impl Default for OrderRule {
    fn default() -> Self {
        Self {
            order: Vec::new(),
            failback: Duration::from_secs(30),
        }
    }
}

impl Default for MetricsRule {
    fn default() -> Self {
        Self {
            queue_target: 5.0,
            half_life: Duration::from_secs(5),
            hysteresis: 50,
            min_share: 20,
            stale_after: Duration::from_secs(5),
        }
    }
}

impl Default for HealthRule {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(1),
            timeout: Duration::from_secs(1),
            unhealthy_after: 2,
            healthy_after: 2,
        }
    }
}
