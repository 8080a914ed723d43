//! Bounds on what is kept of a member's texts and lists. Real servers stay within them; a hostile one may send 2 MiB in
//! any field. Pure.

use crd::{Condition, conditions::MAX_MESSAGE_BYTES};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use watch::clipped;

use crate::index::{digest::is_ours, entry::ImportStatus};

/// Length of a name, an API group, an address or a host name, in bytes.
pub(super) const MAX_NAME: usize = 253;
/// Length of a kind, in bytes, as the pool's CRD admits it.
pub(super) const MAX_KIND: usize = 63;
/// Ports of a pool, as its CRD and the import's admit them.
pub(super) const MAX_TARGET_PORTS: usize = 8;
/// Conditions of an entry in a pool's status, as its CRD admits them.
pub(super) const MAX_CONDITIONS: usize = 8;
/// Entries of an import, as its CRD admits them.
pub(super) const MAX_ENTRIES: usize = 256;
/// Exporting clusters that a controller names in an import, as its CRD admits them.
const MAX_EXPORTING: usize = 1024;
/// Cluster IPs of a Service: one for each family.
pub(super) const MAX_CLUSTER_IPS: usize = 2;
/// Addresses of a load balancer: four times what goes into an entry, for some may be refused.
pub(super) const MAX_INGRESS: usize = 256;
/// Ready endpoints of an EndpointSlice, as the API admits them.
pub(super) const MAX_ENDPOINTS: usize = 1000;
/// Ports of a Service or EndpointSlice: ten times those of any that we know.
pub(super) const MAX_PORTS: usize = 1000;

/// A longer name is cut to more than [`MAX_NAME`], so that the checks still refuse it.
const CUT_NAME: usize = MAX_NAME + MAX_CHAR;
/// The same for a condition's message: a cut one equals none of ours.
const CUT_MESSAGE: usize = MAX_MESSAGE_BYTES + MAX_CHAR;
/// Bytes of the longest character.
const MAX_CHAR: usize = 4;

/// The first `max`, with no spare capacity: a list that is shortened in place keeps its allocation.
pub(super) fn few<T>(all: impl Iterator<Item = T>, max: usize) -> Vec<T> {
    let mut kept: Vec<T> = all.take(max).collect();
    kept.shrink_to_fit();
    kept
}

/// An address, not checked yet.
pub(super) fn address(text: String) -> String {
    clipped(text, CUT_NAME)
}

/// Bounds conditions that another controller wrote.
pub(super) fn conditions(all: Vec<Condition>) -> Vec<Condition> {
    let kept = all.into_iter().map(|condition| Condition {
        last_transition_time: condition.last_transition_time,
        message: clipped(condition.message, CUT_MESSAGE),
        observed_generation: condition.observed_generation,
        reason: clipped(condition.reason, CUT_NAME),
        status: clipped(condition.status, CUT_NAME),
        type_: clipped(condition.type_, CUT_NAME),
    });
    few(kept, MAX_CONDITIONS)
}

/// The part of an import's status that the named controller writes, with no more entries and names than the CRD admits.
/// What others write differs between members and is not needed. Of their top-level conditions the types stay, since ours
/// are removed by index.
pub(super) fn import_status<E>(
    mut status: ImportStatus<E>,
    controller_name: &str,
) -> ImportStatus<E> {
    shorten(&mut status.clusters, MAX_ENTRIES);
    status.controllers.retain(|one| one.name == controller_name);
    // a map by name
    shorten(&mut status.controllers, 1);
    status.controllers.shrink_to_fit();
    for controller in &mut status.controllers {
        controller.parents = Vec::new();
        shorten(&mut controller.exporting_clusters, MAX_EXPORTING);
    }
    for condition in status.conditions.iter_mut().filter(|one| !is_ours(one)) {
        *condition = Condition {
            type_: std::mem::take(&mut condition.type_),
            last_transition_time: Time(Timestamp::UNIX_EPOCH),
            message: String::new(),
            observed_generation: None,
            reason: String::new(),
            status: String::new(),
        };
    }
    status
}

fn shorten<T>(all: &mut Vec<T>, max: usize) {
    if all.len() > max {
        all.truncate(max);
        all.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_is_still_too_long() {
        for text in ["x".repeat(1 << 20), "\u{1f600}".repeat(1 << 18)] {
            let kept = address(text);
            assert!(
                kept.len() > MAX_NAME && kept.len() <= CUT_NAME,
                "{}",
                kept.len()
            );
            assert!(kept.capacity() < 2 * CUT_NAME);
        }
        assert_eq!(address("lb.example.com".to_owned()), "lb.example.com");
    }

    #[test]
    fn few_of_many_take_little_room() {
        let many: Vec<String> = vec![String::new(); 100_000];
        assert!(few(many.into_iter().filter(String::is_empty), 8).capacity() < 100);
    }
}
