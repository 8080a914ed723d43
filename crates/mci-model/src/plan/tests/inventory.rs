//! Labels and networks of the inventory in a member's entries.

use std::{collections::BTreeMap, sync::Arc};

use super::*;
use crate::{index::origin::Origin, networks::Allowed};

fn describe(world: &mut World, name: &str, allowed: &str, labels: &[(&str, &str)]) {
    let networks = allowed.parse().expect("networks");
    let labels = labels.iter();
    let origin = Origin {
        allowed: Allowed::default().and(Arc::new(networks)),
        labels: labels
            .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()))
            .collect(),
        ..Origin::default()
    };
    world.describe(&mk_name(name), &Arc::new(origin));
}

fn addresses(entry: &ImportedCluster) -> Vec<&str> {
    let picker = entry.endpoint_picker.iter();
    let services = picker.flat_map(|picker| &picker.service);
    let addresses = services.flat_map(|service| &service.addresses);
    addresses.map(String::as_str).collect()
}

#[test]
fn labels_of_the_inventory_go_into_the_entries() {
    let mut world = mk_world(&["a", "b"]);
    export(&mut world, "a", "llm");
    describe(&mut world, "a", "0.0.0.0/0", &[("region", "eu")]);
    let plan = desired_for(&world, &mk_policy(), &mk_key("llm"), NOW);
    let entry = &planned(&plan, "b").status.clusters[0];
    let expected = BTreeMap::from([("region".to_owned(), "eu".to_owned())]);
    assert_eq!(entry.labels, expected);
    assert_eq!(addresses(entry), ["192.0.2.1"]);
}

#[test]
fn an_address_outside_of_the_members_networks_is_left_out_and_reported() {
    let mut world = mk_world(&["a", "b"]);
    export(&mut world, "a", "llm");
    describe(&mut world, "a", "10.0.0.0/8", &[]);
    // another member's networks are its own matter
    describe(&mut world, "b", "192.0.2.0/24", &[]);
    let plan = desired_for(&world, &mk_policy(), &mk_key("llm"), NOW);
    let entry = &planned(&plan, "b").status.clusters[0];
    assert_eq!(addresses(entry), [""; 0]);
    assert_eq!(reason(entry, conditions::ACCEPTED), "InvalidAddress");
    assert_eq!(plan.rejected, [(mk_name("a"), Rejection::NotAllowed)]);
}

#[test]
fn a_carried_entry_is_narrowed_as_well() {
    let mut before = mk_world(&["a", "b"]);
    export(&mut before, "a", "llm");
    settle(&mut before, &mk_policy(), NOW);
    let live = member(&before, "b").imports.items[&mk_key("llm")].clone();
    let mut world = World::new(mk_rules());
    for name in ["a", "b"] {
        world.add_member(&mk_name(name), NOW);
    }
    describe(&mut world, "a", "10.0.0.0/8", &[]);
    connect(&mut world, "b", Vec::new(), vec![live], NOW);
    let plan = desired_for(&world, &mk_policy(), &mk_key("llm"), NOW);
    let entry = &planned(&plan, "b").status.clusters[0];
    assert_eq!(addresses(entry), [""; 0]);
}
