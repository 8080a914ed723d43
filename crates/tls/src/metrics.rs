//! What the ports count of their TLS.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use super::{
    accept::HandshakeError,
    files::{Item, Outcome},
};

/// Handles for all ports. Cheap to clone.
#[derive(Clone, Debug)]
pub struct TlsMetrics {
    not_after: Family<PortLabel, Gauge>,
    reloads: Family<ReloadLabels, Counter>,
    failures: Family<FailureLabels, Counter>,
}

/// Handles for one port.
#[derive(Clone, Debug)]
pub struct PortTls {
    port: &'static str,
    metrics: TlsMetrics,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PortLabel {
    port: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReloadLabels {
    port: &'static str,
    item: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FailureLabels {
    port: &'static str,
    reason: &'static str,
}

// === impl TlsMetrics ===

impl TlsMetrics {
    /// Registers `certificate_not_after_seconds`, `certificate_reloads_total` and `tls_handshake_failures_total`, each after
    /// the prefix, which is the program's.
    pub fn register(registry: &mut Registry, prefix: &str) -> Self {
        let metrics = Self {
            not_after: Family::default(),
            reloads: Family::default(),
            failures: Family::default(),
        };
        let program = registry.sub_registry_with_prefix(prefix);
        program.register(
            "certificate_not_after_seconds",
            "When the certificate that a port serves expires, in seconds since 1970",
            metrics.not_after.clone(),
        );
        program.register(
            "certificate_reloads",
            "Changes of a port's certificate or client CA: success is in force, failure could not be used",
            metrics.reloads.clone(),
        );
        program.register(
            "tls_handshake_failures",
            "Connections that ended before their TLS handshake was done, by reason",
            metrics.failures.clone(),
        );
        metrics
    }

    /// Those of one port.
    pub fn port(&self, port: &'static str) -> PortTls {
        PortTls {
            port,
            metrics: self.clone(),
        }
    }
}

// === impl PortTls ===

impl PortTls {
    pub(super) fn port(&self) -> &'static str {
        self.port
    }

    pub(super) fn serves_until(&self, not_after: i64) {
        let label = PortLabel { port: self.port };
        self.metrics.not_after.get_or_create(&label).set(not_after);
    }

    /// Shows an item that is read again, so that a rate over its changes is there from the start.
    pub(super) fn reloads(&self, item: Item) {
        for outcome in [Outcome::Replaced, Outcome::Kept] {
            let labels = self.reload(item, outcome);
            self.metrics.reloads.get_or_create_owned(&labels);
        }
    }

    pub(super) fn reloaded(&self, item: Item, outcome: Outcome) {
        let labels = self.reload(item, outcome);
        self.metrics.reloads.get_or_create(&labels).inc();
    }

    pub(super) fn failed(&self, error: &HandshakeError) {
        let labels = FailureLabels {
            port: self.port,
            reason: error.reason(),
        };
        self.metrics.failures.get_or_create(&labels).inc();
    }

    fn reload(&self, item: Item, outcome: Outcome) -> ReloadLabels {
        ReloadLabels {
            port: self.port,
            item: item.name(),
            result: outcome.name(),
        }
    }
}
