//! What is asked of an entry, in its order, and what a policy may read of it.

use super::*;
use crate::fixture::{key, mk_import, mk_settings};
use crate::world::SecretRef;

fn mk_entry() -> ImportedCluster {
    mk_import(&[("east", "10.2.0.9")]).clusters.remove(0)
}

fn mk_imported(entry: &ImportedCluster) -> Imported {
    imported(&key("llm"), entry, &mk_settings(), &[], None)
}

type Fault = fn(&mut ImportedCluster);

/// Each fault hides those after it.
#[test]
fn first_reason_against_an_entry_is_the_one_that_is_said() {
    let faults: [(Fault, &str); 7] = [
        (|entry| entry.name = "@pool".into(), "InvalidName"),
        (|entry| entry.accepted = false, "NotAccepted"),
        (
            |entry| entry.not_ready = Some("NoReadyEndpoint".into()),
            "NoReadyEndpoint",
        ),
        (|entry| entry.picker = None, "EndpointPickerRefMissing"),
        (|entry| entry.pod_cidrs.clear(), "AddressDenied"),
        (
            |entry| {
                if let Some(picker) = &mut entry.picker {
                    picker.port = None;
                }
            },
            "AddressNotAssigned",
        ),
        (
            |entry| {
                if let Some(picker) = &mut entry.picker {
                    picker.addresses = vec!["127.0.0.1".into()];
                }
            },
            "AddressDenied",
        ),
    ];
    for first in 0..faults.len() {
        let mut entry = mk_entry();
        for (fault, _) in faults.iter().skip(first).rev() {
            fault(&mut entry);
        }
        let made = mk_imported(&entry);
        let why = made.eligible().unwrap_err();
        assert_eq!(why.reason(), faults[first].1, "{first}");
    }
    assert!(mk_imported(&mk_entry()).eligible().is_ok());
}

#[test]
fn metrics_are_read_where_the_picker_is_reached_with_a_secret_of_the_import() {
    let metrics = |namespace: Option<&str>, secret: bool| {
        let mut entry = mk_entry();
        let picker = entry.picker.as_mut().unwrap();
        picker.addresses.push("169.254.169.254".into());
        let secret = secret.then(|| SecretRef {
            namespace: namespace.map(Into::into),
            name: "token".into(),
        });
        picker.metrics = Some(MetricsPort { port: 9090, secret });
        mk_imported(&entry).metrics
    };
    let mk = |secret: Option<Key>| Metrics {
        addresses: vec![("10.2.0.9".into(), 9090)],
        secret,
    };
    assert_eq!(metrics(None, false), Some(mk(None)));
    assert_eq!(metrics(None, true), Some(mk(Some(key("token")))));
    assert_eq!(metrics(Some("ns"), true), Some(mk(Some(key("token")))));
    assert_eq!(metrics(Some("other"), true), None);
}

/// Those of endpoint pickers, of their metrics and of Gateways.
#[test]
fn given_networks_are_the_only_ones_where_anything_of_another_cluster_may_be() {
    let settings = Settings {
        remote_cidrs: vec![
            "10.2.0.0/16".parse().unwrap(),
            "169.254.0.0/16".parse().unwrap(),
        ],
        ..mk_settings()
    };
    let made = |entry: &ImportedCluster| imported(&key("llm"), entry, &settings, &[], None);
    let mut entry = mk_entry();
    let picker = entry.picker.as_mut().unwrap();
    picker.addresses = [
        "10.2.0.9",
        "10.3.0.9",
        "epp.east.example",
        "169.254.169.254",
    ]
    .map(String::from)
    .into();
    picker.metrics = Some(MetricsPort {
        port: 9090,
        secret: None,
    });
    let found = made(&entry);
    let Ok(Mode::Endpoint(mode)) = &found.mode else {
        panic!("{found:?}");
    };
    let expected = EppAddresses::Ips {
        addresses: vec!["10.2.0.9:9002".parse().unwrap()],
        health: None,
    };
    assert_eq!(mode.epp.addresses, expected);
    let metrics = found.metrics.as_ref().map(|found| found.addresses.clone());
    assert_eq!(metrics, Some(vec![("10.2.0.9".to_owned(), 9090)]));
    for (address, allowed) in [
        ("10.2.0.7", true),
        ("10.3.0.7", false),
        ("lb.east.example", false),
    ] {
        let entry = crate::fixture::mk_parent_entry("east", address, &[80], &[]);
        let found = made(&entry);
        let why = found.eligible().map_err(|why| why.label());
        assert_eq!(why.is_ok(), allowed, "{address}");
        assert!(allowed || why == Err("AddressDenied"), "{address}");
    }
}
