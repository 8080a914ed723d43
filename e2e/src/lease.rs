//! The Lease by which one of several processes leads, as its API server has it.
//!
//! Its times are those of the processes that wrote it. On the testbed they run on this machine, so they read the same clock as
//! the tests, and what a busy test does in between does not count.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::{
    api::coordination::v1::Lease, apimachinery::pkg::apis::meta::v1::MicroTime, jiff::Timestamp,
};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;
use testbed::{Cluster, eventually};

/// The time within which another process leads after a crash, as the documentation promises. A standby takes a Lease
/// over once it has seen it unchanged for [`UNCHANGED`]. It polls every 2 s, so it sees the last renewal at most 2 s
/// late.
pub const AFTER_CRASH: Duration = Duration::from_secs(17);
/// Within this another process leads after the leader's end by SIGTERM, as the pages promise. The leader gives the Lease back,
/// a standby looks at it at most 2 s later, and one second is for what the three calls to the API server take.
pub const AFTER_END: Duration = Duration::from_secs(3);
/// The time for which a Lease must be unchanged before another process takes it over.
pub const UNCHANGED: Duration = Duration::from_secs(15);

/// A crash comes when the last renewal is so old, which leaves the calls of a busy machine as much of [`AFTER_CRASH`].
const OLD: Duration = Duration::from_secs(1);
/// Leaders renew every 2 s: after this time the next renewal may be in progress.
const TOO_OLD: Duration = Duration::from_millis(1700);
/// Longer than every promise: what takes longer never happens.
const EVER: Duration = Duration::from_mins(1);

/// A Lease for an election.
#[derive(Clone, Debug)]
pub struct Election {
    leases: Api<Lease>,
    name: String,
}

/// The current holder of the Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The process that holds the Lease.
    pub holder: String,
    /// How often the Lease changed its holder.
    pub transitions: i32,
    /// When the holder acquired it.
    pub acquired: Timestamp,
    /// When the holder last wrote it.
    pub renewed: Timestamp,
}

// === impl Election ===

impl Election {
    /// The election by the Lease of this name.
    #[must_use]
    pub fn new(cluster: &Cluster, namespace: &str, name: &str) -> Self {
        Self {
            leases: Api::namespaced(cluster.client(), namespace),
            name: name.to_owned(),
        }
    }

    /// The current holder.
    ///
    /// # Errors
    /// When no process holds the Lease, or the API server rejects the call or does not answer.
    pub async fn claim(&self) -> Result<Claim, String> {
        let lease = self.leases.get(&self.name).await;
        let spec = lease.map_err(|error| error.to_string())?.spec;
        let spec = spec.ok_or("a Lease without a specification")?;
        let holder = spec.holder_identity.filter(|holder| !holder.is_empty());
        Ok(Claim {
            holder: holder.ok_or("nobody holds the Lease")?,
            transitions: spec.lease_transitions.unwrap_or_default(),
            acquired: spec.acquire_time.ok_or("a Lease without acquireTime")?.0,
            renewed: spec.renew_time.ok_or("a Lease without renewTime")?.0,
        })
    }

    /// Waits for a moment between two renewals of the holder, which is when a leader is to crash: see [`AFTER_CRASH`].
    ///
    /// # Errors
    /// After a minute, with what was seen last.
    pub async fn between_renewals(&self) -> Result<Claim> {
        let seen = eventually("a moment between two renewals", EVER, async || {
            let claim = self.claim().await?;
            let age = elapsed(claim.renewed, Timestamp::now()).unwrap_or_default();
            if (OLD..TOO_OLD).contains(&age) {
                Ok(claim)
            } else {
                Err(format!("renewed {age:?} ago"))
            }
        });
        Ok(seen.await?)
    }

    /// Renews the Lease for a holder that has crashed, so that no other process takes over. Returns the time of a crash that
    /// comes as late after this renewal as those of [`Election::between_renewals`].
    ///
    /// # Errors
    /// When the API server rejects the call or does not answer.
    pub async fn renew(&self) -> Result<Timestamp> {
        let now = Timestamp::now();
        let patch = json!({"spec": {"renewTime": MicroTime(now)}});
        let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
        self.leases.patch(&self.name, &params, &patch).await?;
        now.checked_add(OLD).context("a time that is too late")
    }

    /// Waits until another process than that of `former` has the Lease, and returns how long after `since` it got it.
    ///
    /// # Errors
    /// After a minute, or when it was taken over more than once.
    pub async fn taken_over(&self, former: &Claim, since: Timestamp) -> Result<Duration> {
        let seen = eventually("another process has the Lease", EVER, async || {
            let claim = self.claim().await?;
            if claim.holder == former.holder {
                Err(format!("{claim:?}"))
            } else {
                Ok(claim)
            }
        });
        let claim = seen.await?;
        ensure!(
            claim.transitions == former.transitions + 1,
            "the Lease changed hands more than once: {former:?}, then {claim:?}"
        );
        elapsed(since, claim.acquired)
            .with_context(|| format!("another had the Lease before {since}: {claim:?}"))
    }
}

/// The time from one timestamp to a later one; none if the second is earlier.
fn elapsed(from: Timestamp, to: Timestamp) -> Option<Duration> {
    to.duration_since(from).try_into().ok()
}
