//! Cuts entries that are too large (spec 4.1).

use crd::{ImportedCluster, ServiceEndpoints};

use crate::plan::parent;

/// Largest entry, in bytes of JSON: 256 of them stay under what etcd takes with the rest (spec 4.1).
pub(super) const MAX_ENTRY_BYTES: usize = 8 * 1024;
/// Reserve for what the cut itself adds: the condition that reports it, and the times of four conditions.
const CUT_RESERVE: usize = 512;
/// Addresses that an entry keeps if it is too large.
const FEW_ADDRESSES: usize = 4;

/// Cuts an entry that is too large until it fits, beginning with what matters least (spec 4.1). Returns whether anything
/// was cut, and the new size in bytes.
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
        // the ports of the parents are enough
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

/// All addresses and ports of an entry, in either mode.
pub(in crate::plan) fn services_of(
    entry: &mut ImportedCluster,
) -> impl Iterator<Item = &mut ServiceEndpoints> {
    let picker = entry.endpoint_picker.iter_mut();
    let parents = entry.parents.iter_mut();
    picker
        .flat_map(|picker| &mut picker.service)
        .chain(parents.flat_map(|parent| &mut parent.service))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    /// An entry of all that can be shed, with a name that cannot: so long that the whole is so much too large.
    fn mk_too_large(excess: usize) -> ImportedCluster {
        let texts = |count: usize, each: usize| -> Vec<String> {
            let texts = 0..count;
            texts.map(|n| format!("{n:0each$}")).collect()
        };
        // with quotes and a comma
        let service = |count: usize| {
            let addresses = texts(count, 97);
            json!([{"type": "LoadBalancer", "addresses": addresses, "ports": []}])
        };
        let entry = json!({
            "name": "", "routingMode": "EndpointMode", "targetPortNumber": 8000,
            "labels": {"l": "x".repeat(1000)},
            "endpointPicker": {"name": "epp", "service": service(FEW_ADDRESSES + 10), "endpoints": texts(100, 10)},
            "parents": [{"name": "gw", "namespace": "ml", "service": service(1), "hostnames": texts(10, 100)}],
        });
        let mut entry: ImportedCluster = serde_json::from_value(entry).expect("an entry");
        let size = serde_json::to_vec(&entry).expect("JSON").len();
        let room = MAX_ENTRY_BYTES - CUT_RESERVE - size;
        entry.name = "x".repeat(room + excess);
        entry
    }

    // the endpoints are 1.3 KB of it, the labels 1.0, the host names 1.0, the addresses past the fourth 1.0
    #[rstest]
    #[case::nothing(0, [true, true, true, true])]
    #[case::endpoints(1, [false, true, true, true])]
    #[case::then_labels(1_500, [false, false, true, true])]
    #[case::then_host_names(2_700, [false, false, false, true])]
    #[case::then_addresses(3_900, [false, false, false, false])]
    fn what_matters_least_is_cut_first(#[case] excess: usize, #[case] expected: [bool; 4]) {
        let mut entry = mk_too_large(excess);
        let (cut, size) = shed(&mut entry);
        let picker = entry.endpoint_picker.as_ref().expect("an EPP");
        let addresses = &picker.service[0].addresses;
        let kept = [
            !picker.endpoints.is_empty(),
            !entry.labels.is_empty(),
            !entry.parents[0].hostnames.is_empty(),
            addresses.len() > FEW_ADDRESSES,
        ];
        assert_eq!(kept, expected);
        assert!(addresses.len() >= FEW_ADDRESSES, "{}", addresses.len());
        assert_eq!(cut, expected != [true; 4]);
        assert!(size <= MAX_ENTRY_BYTES - CUT_RESERVE, "{size}");
    }
}
