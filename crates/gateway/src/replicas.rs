//! What the replicas of the gateway tell each other of their Envoys.
//!
//! Each Envoy is connected to one replica, and that one alone hears what the Envoy refuses and serves. Status, and how long a new
//! Envoy waits to be ready, follow from what all hear. So each replica writes what it hears into an entry of its own of one
//! `ConfigMap`, and reads the others'. It is written where something changes; a replica that is read by another one also shows that it
//! lives. There is nothing secret in it: numbers, names of resources, and Envoys' reasons.
//!
//! ```text
//!  Proxies ─ known ─► Board ─ draft ─► ConfigMap ◄─ other replicas
//!     ▲                │  ▲               │
//!     └─ elsewhere ────┘  └──── read ─────┘
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, Error as KubeError};
use moment::Clock;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::xds::ads::proxies::{KnownByGateway, Proxies};

mod board;
mod entry;
#[cfg(test)]
mod tests;

use board::Board;

/// Between two looks at what has changed here.
const LOOK: Duration = Duration::from_millis(500);

/// A read, or a write.
const LIMIT: Duration = Duration::from_secs(5);

/// Reads and writes what replicas know.
pub(crate) struct Replicas {
    maps: Api<ConfigMap>,
    name: String,
    board: Board,
    proxies: Proxies,
    clock: Clock,
    /// The last round failed: the next failure is no news.
    is_failing: bool,
    /// Gateways that had no place in the last entry.
    without: usize,
}

/// Why a round led to nothing.
#[derive(Debug, thiserror::Error)]
enum RoundError {
    #[error("no answer within {LIMIT:?}")]
    Timeout,
    /// Another replica was faster.
    #[error("it has changed since it was read")]
    Conflict,
    #[error("{0} (expected: get, create and update)")]
    Call(KubeError),
}

// === impl Replicas ===

impl Replicas {
    /// `me` is a name that no other process ever had.
    pub(crate) fn new(
        client: Client,
        namespace: &str,
        name: String,
        me: &str,
        proxies: Proxies,
        clock: Clock,
    ) -> Self {
        Self {
            maps: Api::namespaced(client, namespace),
            name,
            board: Board::new(me),
            proxies,
            clock,
            is_failing: false,
            without: 0,
        }
    }

    /// Until `stop`. The entry stays and ages: its Envoys come back to the others within that time, and until then they serve what
    /// it says.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = self.look() => {}
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = sleep(LOOK) => {}
            }
        }
    }

    async fn look(&mut self) {
        let mine = self.proxies.known();
        if !self.board.is_due(&mine, self.clock.now()) {
            return;
        }
        let Err(error) = self.round(mine).await else {
            self.is_failing = false;
            return;
        };
        let (now, name) = (self.clock.now(), &self.name);
        if matches!(error, RoundError::Conflict) {
            self.board.raced(now, &mut rand::rng());
            return;
        }
        self.board.failed(now, &mut rand::rng());
        if std::mem::replace(&mut self.is_failing, true) {
            debug!(configmap = name, %error, "what replicas know cannot be shared");
        } else {
            warn!(configmap = name, %error, "what replicas know cannot be shared");
        }
    }

    async fn round(&mut self, mine: KnownByGateway) -> Result<(), RoundError> {
        let map = within(self.maps.get_opt(&self.name)).await;
        let map = map.inspect_err(|_| self.board.unread())?;
        let entries = map.as_ref().and_then(|map| map.data.clone());
        let entries = entries.unwrap_or_default();
        let now = self.clock.now();
        self.board.read(&entries, now);
        self.proxies.set_elsewhere(self.board.elsewhere());
        let Some((wanted, without)) = self.board.draft(&entries, &mine, now) else {
            self.board.agreed();
            return Ok(());
        };
        if without > 0 && self.without == 0 {
            warn!(
                gateways = without,
                "other replicas do not learn of the Envoys of some Gateways: there is no room"
            );
        }
        self.without = without;
        let params = PostParams::default();
        let written = match map {
            Some(map) => {
                let map = ConfigMap {
                    metadata: ObjectMeta {
                        managed_fields: None,
                        ..map.metadata
                    },
                    data: Some(wanted),
                    ..map
                };
                within(self.maps.replace(&self.name, &params, &map)).await
            }
            None => within(self.maps.create(&params, &self.made(wanted))).await,
        };
        written?;
        self.board.wrote(mine, self.clock.now());
        Ok(())
    }

    fn made(&self, data: BTreeMap<String, String>) -> ConfigMap {
        let labels = [
            ("app.kubernetes.io/name", "isthmus-gateway"),
            ("app.kubernetes.io/part-of", "isthmus"),
        ];
        let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned()));
        ConfigMap {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                labels: Some(BTreeMap::from(labels)),
                ..ObjectMeta::default()
            },
            data: Some(data),
            ..ConfigMap::default()
        }
    }
}

async fn within<T>(call: impl Future<Output = Result<T, KubeError>>) -> Result<T, RoundError> {
    let answer = timeout(LIMIT, call).await;
    let answer = answer.map_err(|_| RoundError::Timeout)?;
    answer.map_err(RoundError::of)
}

// === impl RoundError ===

impl RoundError {
    fn of(error: KubeError) -> Self {
        match error {
            // another created it first, replaced it first, or deleted it
            KubeError::Api(status) if [404, 409].contains(&status.code) => Self::Conflict,
            error => Self::Call(error),
        }
    }
}
