//! What Envoys have of an import, and what of it follows from how requests are shared.

use crate::model::GatewayModel;
use crate::select::{Assigned, Health, Selection};
use crate::world::ImportedCluster;
use crate::xds::Plan;

use super::*;

fn mk_model(change: impl FnOnce(&mut Vec<ImportedCluster>)) -> GatewayModel {
    let mut import = mk_import(&[("east", "10.2.0.9"), ("south", "10.3.0.9")]);
    change(&mut import.clusters);
    let mut world = mk_world();
    world.imports.insert(key("llm"), import);
    let (mut models, _) = build(&world, &mk_settings());
    models.remove(0)
}

fn mk_plan(model: &GatewayModel) -> Plan {
    translate(model, &mk_options())
}

/// Of each priority the clusters with their weight and health.
fn show_hops(model: &GatewayModel, selection: &Selection) -> Vec<Vec<String>> {
    let snapshot = assign(&mk_plan(model), &mk_endpoints(), selection);
    let bytes = &snapshot.endpoints["import/ns/llm"].bytes;
    let made = endpoint::ClusterLoadAssignment::decode(&bytes[..]).unwrap();
    let strict = made
        .policy
        .and_then(|policy| policy.overprovisioning_factor);
    assert_eq!(strict.is_some(), made.endpoints.len() > 1);
    for (number, locality) in made.endpoints.iter().enumerate() {
        assert_eq!(usize::try_from(locality.priority), Ok(number));
    }
    let localities = made.endpoints.iter().map(|locality| {
        let hosts = locality.lb_endpoints.iter().map(show_hop);
        hosts.collect()
    });
    localities.collect()
}

fn show_hop(host: &endpoint::LbEndpoint) -> String {
    let Some(endpoint::lb_endpoint::HostIdentifier::Endpoint(at)) = &host.host_identifier else {
        panic!("{host:?}");
    };
    let address = at.address.as_ref().unwrap().address.as_ref();
    let Some(core::address::Address::EnvoyInternalAddress(address)) = address else {
        panic!("{host:?}");
    };
    let Some(core::envoy_internal_address::AddressNameSpecifier::ServerListenerName(name)) =
        &address.address_name_specifier
    else {
        panic!("{host:?}");
    };
    let weight = host.load_balancing_weight.map_or(0, |weight| weight.value);
    let cluster = name.strip_prefix("hop/ns/llm/").unwrap();
    format!("{cluster} {weight} {:?}", host.health_status())
}

/// The edge table of a Gateway may have 1000 routes, and each change of it goes to each Envoy.
#[test]
fn readiness_changes_the_assignment_of_its_import_and_nothing_else() {
    let ready = mk_model(|_| {});
    let selection = |model: &GatewayModel| Selection::equal(model.imports.values().map(|i| &**i));
    let before = show_hops(&ready, &selection(&ready));
    assert_eq!(before, [["east 500 Unknown", "south 500 Unknown"]]);
    let changes: [(fn(&mut ImportedCluster), &str); 3] = [
        (
            |entry| entry.not_ready = Some("NoReadyEndpoint".into()),
            "south 0 Unhealthy",
        ),
        (
            |entry| entry.not_ready = Some("Draining".into()),
            "south 0 Draining",
        ),
        (|entry| entry.drain_until = Some(1), "south 0 Draining"),
    ];
    for (change, south) in changes {
        let after = mk_model(|clusters| change(&mut clusters[1]));
        assert_eq!(mk_plan(&after), mk_plan(&ready), "{south}");
        let hops = show_hops(&after, &selection(&after));
        assert_eq!(hops, [["east 1000 Unknown", south]]);
    }
}

/// Envoy refuses an assignment whose priorities have gaps.
#[test]
fn priorities_are_numbered_without_gaps_and_those_without_a_share_drain() {
    let model = mk_model(|clusters| {
        for name in ["north", "west"] {
            let entry = ImportedCluster {
                name: name.into(),
                ..clusters[0].clone()
            };
            clusters.push(entry);
        }
    });
    let one = |weight, priority, health| Assigned {
        weight,
        priority,
        health,
    };
    let assigned = [
        ("east", one(1000, 7, Health::Healthy)),
        ("south", one(700, 2, Health::Unhealthy)),
        ("west", one(0, 2, Health::Healthy)),
        ("gone", one(1000, 0, Health::Healthy)),
    ];
    let assigned = assigned.map(|(name, one)| (name.to_owned(), one));
    let mut selection = Selection::default();
    assert_eq!(show_hops(&model, &selection), [[""; 0]]);
    selection.insert(key("llm"), assigned.into());
    let hops = show_hops(&model, &selection);
    let expected = [
        vec!["south 700 Unhealthy", "west 0 Draining"],
        vec!["east 1000 Unknown"],
    ];
    assert_eq!(hops, expected);
}
