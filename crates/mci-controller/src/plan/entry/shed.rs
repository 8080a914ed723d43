//! Cuts entries that are too large (spec 4.1).

use crd::{ImportedCluster, ServiceEndpoints};

use crate::plan::parent;

/// Largest entry, in bytes of JSON: 256 of them stay under what etcd takes with the rest (spec 4.1).
pub(super) const MAX_ENTRY_BYTES: usize = 8 * 1024;
/// Left for what the cut itself adds: the condition that tells of it, and the times of four conditions.
const CUT_RESERVE: usize = 512;
/// What is left of the addresses of an entry that is too large.
const FEW_ADDRESSES: usize = 4;

/// Cuts an entry that is too large until it is not, what is missed least first (spec 4.1); returns whether it did, and
/// the size that it has now, in bytes.
pub(super) fn shed(entry: &mut ImportedCluster) -> (bool, usize) {
    let cuts: [fn(&mut ImportedCluster); 7] = [
        |entry| {
            if let Some(picker) = &mut entry.endpoint_picker {
                picker.endpoints.clear();
            }
        },
        |entry| entry.labels.clear(),
        |entry| entry.parents.iter_mut().for_each(parent::shed_hostnames),
        |entry| cut_services(entry, |service| service.addresses.truncate(FEW_ADDRESSES)),
        |entry| {
            cut_services(entry, |service| {
                for port in &mut service.ports {
                    port.app_protocol = None;
                    port.protocol = None;
                    port.name = None;
                }
            });
        },
        |entry| entry.app_protocol = None,
        // their ports tell enough
        |entry| {
            for parent in &mut entry.parents {
                parent.listeners.clear();
            }
        },
    ];
    let measure = |entry: &ImportedCluster| serde_json::to_vec(entry).map_or(0, |json| json.len());
    let mut cut = false;
    let mut size = measure(entry);
    for step in cuts {
        if size <= MAX_ENTRY_BYTES - CUT_RESERVE {
            break;
        }
        step(entry);
        size = measure(entry);
        cut = true;
    }
    // those that can be used come first
    while entry.parents.len() > 1 && size > MAX_ENTRY_BYTES - CUT_RESERVE {
        entry.parents.pop();
        size = measure(entry);
        cut = true;
    }
    (cut, size)
}

fn cut_services(entry: &mut ImportedCluster, cut: impl FnMut(&mut ServiceEndpoints)) {
    services_of(entry).for_each(cut);
}

/// All that an entry says of addresses, in either mode.
pub(in crate::plan) fn services_of(
    entry: &mut ImportedCluster,
) -> impl Iterator<Item = &mut ServiceEndpoints> {
    let picker = entry.endpoint_picker.iter_mut();
    let parents = entry.parents.iter_mut();
    picker
        .flat_map(|picker| &mut picker.service)
        .chain(parents.flat_map(|parent| &mut parent.service))
}
