//! Clusters that wait for hosts: Envoy uses a version of a cluster once it has hosts for it, and the version before until then.

use moment::Moment;

use super::Ads;

/// A cluster whose hosts are not acknowledged since it was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Awaited {
    /// When it was sent first.
    pub(super) since: Moment,
    /// Envoy has no version of it with hosts.
    pub(super) is_new: bool,
    /// Hosts have been sent since.
    pub(super) has_hosts: bool,
}

impl Ads {
    /// The hosts of a cluster are waited for. One that is sent once more is not waited for longer.
    pub(super) fn await_hosts(&mut self, cluster: &str, is_new: bool, now: Moment) {
        let begun = Awaited {
            since: now,
            is_new,
            has_hosts: false,
        };
        let awaited = self.awaited.entry(cluster.to_owned()).or_insert(begun);
        if is_new && !awaited.is_new {
            *awaited = begun;
        }
    }

    /// Envoy has acknowledged hosts of the cluster.
    pub(super) fn has_hosts(&mut self, cluster: &str) {
        if !self.repush.contains(cluster) {
            self.awaited.remove(cluster);
        } else if let Some(awaited) = self.awaited.get_mut(cluster) {
            // it has a version that serves, and is sent another one
            awaited.is_new &= !awaited.has_hosts;
        }
    }
}
