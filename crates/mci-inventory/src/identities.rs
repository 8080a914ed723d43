//! Remembers beyond this process which cluster each member is: a ConfigMap at home, one line per member.

use std::{collections::BTreeMap, future::pending, time::Duration};

use crd::annotations::{MANAGED_BY, MANAGED_BY_CONTROLLER};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{ObjectMeta, PostParams},
};
use lease::{Claim, Tenure};
use moment::Clock;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use crate::home::Home;
use ::watch::backoff;
use mci_model::{index::record::Record, name::ClusterName};

/// The cluster behind each member's name.
pub type Records = BTreeMap<ClusterName, Record>;

/// Why the ConfigMap could not be read or written.
#[derive(Debug, thiserror::Error)]
enum IdentitiesError {
    #[error("no answer within {0:?}: expected the home cluster's API server")]
    Timeout(Duration),
    #[error("{0}")]
    Call(#[source] Box<kube::Error>),
}

/// Each call.
const TIMEOUT: Duration = Duration::from_secs(10);
const RETRY_MIN: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// Name of the ConfigMap of a ClusterSet's members, in home's namespace.
pub fn identities_name(clusterset: &str) -> String {
    format!("isthmus-mci-{clusterset}-members")
}

/// The ConfigMap of one ClusterSet. Cheap to clone.
#[derive(Clone)]
pub struct Identities {
    api: Api<ConfigMap>,
    name: String,
}

// === impl Identities ===

impl Identities {
    /// That of the ClusterSet of this name, in home's namespace. Nothing is read yet.
    pub fn new(home: &Home, clusterset: &str) -> Self {
        Self {
            api: Api::namespaced(home.client.clone(), &home.namespace),
            name: identities_name(clusterset),
        }
    }

    /// What an earlier run wrote, however long it takes to read.
    pub(crate) async fn load(&self) -> Records {
        let mut failures = 0_u32;
        loop {
            match self.get().await {
                Ok(found) => return found.as_ref().map(parse).unwrap_or_default(),
                Err(error) => {
                    tracing::warn!(config_map = self.name, %error, "cannot read the members' identities: asking again");
                }
            }
            failures = failures.saturating_add(1);
            let wait = backoff(failures, RETRY_MIN, RETRY_MAX, &mut rand::rng());
            sleep(wait).await;
        }
    }

    /// Writes the newest `wanted` while `claim` holds, until its sender is dropped; none: nothing is known yet. What fails is
    /// logged and tried again after 0.5 to 30 s.
    pub async fn keep(
        &self,
        mut wanted: watch::Receiver<Option<Records>>,
        claim: Claim,
        clock: Clock,
    ) {
        let mut failures = 0_u32;
        loop {
            let records = wanted.borrow_and_update().clone();
            if let Some(records) = records {
                let tenure = tokio::select! {
                    tenure = claim.gained() => tenure,
                    changed = wanted.changed() => match changed {
                        Ok(()) => continue,
                        Err(_) => return,
                    },
                };
                let outcome = tokio::select! {
                    biased;
                    // a call in flight is cancelled, and what it was for is written under the next
                    () = tenure.ended() => continue,
                    outcome = self.write(records, &tenure, clock) => outcome,
                };
                if let Err(error) = outcome {
                    failures = failures.saturating_add(1);
                    tracing::warn!(config_map = self.name, %error, "cannot write the members' identities: trying again");
                    let wait = backoff(failures, RETRY_MIN, RETRY_MAX, &mut rand::rng());
                    sleep(wait).await;
                    if wanted.has_changed().is_err() {
                        return;
                    }
                    continue;
                }
            }
            failures = 0;
            if wanted.changed().await.is_err() {
                return;
            }
        }
    }

    async fn write(
        &self,
        records: Records,
        tenure: &Tenure,
        clock: Clock,
    ) -> Result<(), IdentitiesError> {
        let live = self.get().await?;
        let known = live.as_ref().map(parse).unwrap_or_default();
        let merged = merge(&known, records, Timestamp::now());
        if live.is_some() && merged == known || live.is_none() && merged.is_empty() {
            return Ok(());
        }
        if !tenure.is_valid(clock.now()) {
            // whoever calls sees the same and drops this
            pending::<()>().await;
        }
        let data = Some(render(&merged));
        let options = PostParams::default();
        if let Some(live) = live {
            // with its resourceVersion: of two controllers that both think that they lead, one fails
            let config_map = ConfigMap { data, ..live };
            bounded(self.api.replace(&self.name, &options, &config_map)).await?;
        } else {
            let label = (MANAGED_BY.to_owned(), MANAGED_BY_CONTROLLER.to_owned());
            let config_map = ConfigMap {
                metadata: ObjectMeta {
                    name: Some(self.name.clone()),
                    labels: Some(BTreeMap::from([label])),
                    ..ObjectMeta::default()
                },
                data,
                ..ConfigMap::default()
            };
            bounded(self.api.create(&options, &config_map)).await?;
        }
        Ok(())
    }

    async fn get(&self) -> Result<Option<ConfigMap>, IdentitiesError> {
        bounded(self.api.get_opt(&self.name)).await
    }
}

async fn bounded<T>(
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, IdentitiesError> {
    match timeout(TIMEOUT, call).await {
        Ok(outcome) => outcome.map_err(|error| IdentitiesError::Call(Box::new(error))),
        Err(_) => Err(IdentitiesError::Timeout(TIMEOUT)),
    }
}

/// What can be read of it: a line that somebody spoilt is no reason to forget the others.
fn parse(config_map: &ConfigMap) -> Records {
    let lines = config_map.data.iter().flatten();
    lines
        .filter_map(|(name, line)| {
            let name = ClusterName::new(name).ok()?;
            match serde_json::from_str::<Record>(line) {
                Ok(mut record) => {
                    // a time marks what was read
                    record.first_seen.get_or_insert(Timestamp::UNIX_EPOCH);
                    Some((name, record))
                }
                Err(error) => {
                    tracing::warn!(member = %name, %error, "an identity in the ConfigMap cannot be read: it is recorded again");
                    None
                }
            }
        })
        .collect()
}

/// The wanted records; one that stands for the same cluster as before keeps its time and source.
fn merge(known: &Records, mut wanted: Records, now: Timestamp) -> Records {
    for (name, record) in &mut wanted {
        match known.get(name).filter(|before| before.uid == record.uid) {
            Some(before) => *record = before.clone(),
            None => record.first_seen = Some(now),
        }
    }
    wanted
}

fn render(records: &Records) -> BTreeMap<String, String> {
    let line = |record: &Record| serde_json::json!(record).to_string();
    let lines = records.iter();
    lines
        .map(|(name, record)| (name.to_string(), line(record)))
        .collect()
}

#[cfg(test)]
mod tests;
