//! From what the optional kinds say to the configuration in force and the metrics.

use ::discovery::{ObjectUpdate, Objects};
use futures::{StreamExt, stream::BoxStream};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{config::CurrentConfig, metrics::Metrics};

/// Puts the cluster's objects in force as they are reported.
pub(crate) struct ObjectsInForce {
    /// What is reported.
    pub updates: BoxStream<'static, ObjectUpdate>,
    /// Gets the objects.
    pub config: CurrentConfig,
    /// Counts failures.
    pub metrics: Metrics,
    /// Cancelled once every kind was looked for.
    pub settled: CancellationToken,
}

// === impl ObjectsInForce ===

impl ObjectsInForce {
    /// Follows the reports for ever.
    pub(crate) async fn run(mut self) {
        while let Some(update) = self.updates.next().await {
            self.on(update);
        }
    }

    fn on(&self, update: ObjectUpdate) {
        match update {
            ObjectUpdate::Objects(objects) => {
                let Objects {
                    objectives,
                    rewrites,
                    models,
                } = &objects;
                info!(
                    objectives = objectives.len(),
                    rewrite_rules = rewrites.len(),
                    models = models.len(),
                    "objects of the pool"
                );
                self.config.set_objects(objects);
                self.config.load().warn_of_objectives();
            }
            ObjectUpdate::Settled => self.settled.cancel(),
            ObjectUpdate::Synced { kind, synced } => {
                self.metrics.discovery_synced(kind.as_str(), synced);
            }
            ObjectUpdate::Gone { kind, resource } => {
                let kind = kind.as_str();
                warn!(
                    kind,
                    resource, "the kind is not served any more: its last objects stay in force"
                );
            }
            ObjectUpdate::Denied { kind, resource } => {
                let kind = kind.as_str();
                warn!(
                    kind,
                    resource,
                    "no right to get, list and watch it: those that were read before stay in force, and no others are read until it is granted"
                );
                self.metrics.discovery_error(kind);
            }
            ObjectUpdate::Failed {
                kind,
                reason,
                error,
            } => {
                let kind = kind.as_str();
                warn!(kind, reason, error, "discovery failed: objects stay");
                self.metrics.discovery_error(kind);
            }
            ObjectUpdate::Odd { kind, name, error } => {
                let kind = kind.as_str();
                warn!(kind, name, error, "cannot be used: its last state stays");
                self.metrics.discovery_error(kind);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ::discovery::{Kind, Objective};
    use futures::stream;
    use prometheus_client::{encoding::text::encode, registry::Registry};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn objects_are_put_in_force_and_trouble_is_counted() {
        let mut registry = Registry::default();
        let (config, settled) = (CurrentConfig::default(), CancellationToken::new());
        let objective = Objective {
            name: "batch".to_owned(),
            priority: -1,
        };
        let (kind, text) = (Kind::Rewrite, String::new);
        let updates = [
            ObjectUpdate::Objects(Objects {
                objectives: vec![objective],
                ..Objects::default()
            }),
            ObjectUpdate::Synced {
                kind: Kind::Objective,
                synced: true,
            },
            ObjectUpdate::Settled,
            ObjectUpdate::Odd {
                kind,
                name: text(),
                error: text(),
            },
            ObjectUpdate::Failed {
                kind,
                reason: "",
                error: text(),
            },
            ObjectUpdate::Denied {
                kind,
                resource: text(),
            },
        ];
        let objects = ObjectsInForce {
            updates: stream::iter(updates).boxed(),
            config: config.clone(),
            metrics: Metrics::register(&mut registry),
            settled: settled.clone(),
        };
        objects.run().await;
        assert_eq!(config.load().models().objective("batch"), Some(-1));
        assert!(settled.is_cancelled());
        let mut page = String::new();
        encode(&mut page, &registry).unwrap();
        for line in [
            "epp_discovery_synced{kind=\"InferenceObjective\"} 1\n",
            "epp_discovery_errors_total{kind=\"InferenceModelRewrite\"} 3\n",
        ] {
            assert!(page.contains(line), "{page}");
        }
    }
}
