//! What runs for a Gateway and is not wanted any more (pure): after a change of its class or parameters.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use crate::world::{Gateway, Key, World};

use super::{Part, controlling_gateway, parameters, part_key};

/// Objects of ours that a Gateway controls and that no one wants, each with its Gateway. What is on its way out is left to the
/// garbage collector, and so is what belongs to a Gateway of which not all is known.
pub(crate) fn unwanted<'a>(
    world: &World,
    controller: &str,
    live: impl Iterator<Item = (&'a (Part, Key), &'a Value)>,
) -> BTreeSet<((Part, Key), Key)> {
    let mut found = BTreeSet::new();
    for ((part, key), object) in live {
        let Some(gateway) = gateway_of(world, key, object) else {
            continue;
        };
        if is_wanted(world, controller, gateway, *part, key) {
            continue;
        }
        let of = &gateway.key;
        found.insert(((*part, key.clone()), of.clone()));
        if *part == Part::Deployment {
            // nothing watches the Secret, which its pods alone have a use for
            found.insert(((Part::ClientSecret, key.clone()), of.clone()));
        }
    }
    found
}

fn gateway_of<'a>(world: &'a World, key: &Key, object: &Value) -> Option<&'a Gateway> {
    let meta: ObjectMeta = serde_json::from_value(object.get("metadata")?.clone()).ok()?;
    let owner = controlling_gateway(&meta)?;
    let gateway = world.gateways.get(&Key::new(&key.namespace, &owner.name))?;
    let is_kept = |kind, key: Key| world.kept.contains(&(kind, key));
    let is_here = !gateway.deleting
        && gateway.uid == owner.uid
        && !is_kept("Gateway", gateway.key.clone())
        && !is_kept("GatewayClass", Key::new("", &gateway.class));
    is_here.then_some(gateway)
}

fn is_wanted(world: &World, controller: &str, gateway: &Gateway, part: Part, key: &Key) -> bool {
    // of a class that is not there nobody knows whose it is
    let Some(class) = world.classes.get(&gateway.class) else {
        return true;
    };
    if class.controller != controller {
        return false;
    }
    let now = part_key(gateway);
    if *key != now {
        // those that take over are there first
        let heirs = world.infra.get(&now);
        return heirs.is_none_or(|heirs| heirs.available < 1 || heirs.addresses.is_empty());
    }
    part != Part::DisruptionBudget
        || parameters::of_gateway(world, gateway)
            .map_or(true, |parameters| parameters.pod_disruption_budget)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::fixture::{CONTROLLER, key, mk_own_parameters, mk_world};
    use crate::infra::{InfraSettings, make_parts};
    use crate::world::GatewayClass;

    fn gateway(world: &mut World) -> &mut Gateway {
        world.gateways.get_mut(&key("gw")).unwrap()
    }

    /// A class of this controller that the Gateway is of from now on.
    fn move_to(world: &mut World, class: &str, controller: &str) {
        let controller = controller.to_owned();
        let made = GatewayClass {
            controller,
            ..GatewayClass::default()
        };
        world.classes.insert(class.to_owned(), made);
        class.clone_into(&mut gateway(world).class);
    }

    /// What happened since the objects were made, and which of them go.
    #[rstest]
    #[case::nothing(|_: &mut World| {}, &[])]
    #[case::another_controller(|world: &mut World| move_to(world, "other", "example.com/other"),
        &["ServiceAccount", "ClientSecret", "Deployment", "DisruptionBudget", "Service"])]
    #[case::another_class_before_its_envoys_are_there(|world: &mut World| move_to(world, "other", CONTROLLER), &[])]
    #[case::another_class(|world: &mut World| {
        move_to(world, "other", CONTROLLER);
        let infra = world.infra[&key("gw-isthmus")].clone();
        world.infra.insert(key("gw-other"), infra);
    }, &["ServiceAccount", "ClientSecret", "Deployment", "DisruptionBudget", "Service"])]
    #[case::its_class_is_gone(|world: &mut World| world.classes.clear(), &[])]
    #[case::the_crd_of_classes_is_gone(|world: &mut World| {
        move_to(world, "other", "example.com/other");
        world.kept.insert(("GatewayClass", Key::new("", "other")));
    }, &[])]
    #[case::its_crd_is_gone(|world: &mut World| {
        move_to(world, "other", "example.com/other");
        world.kept.insert(("Gateway", key("gw")));
    }, &[])]
    #[case::it_is_being_deleted(|world: &mut World| {
        move_to(world, "other", "example.com/other");
        gateway(world).deleting = true;
    }, &[])]
    #[case::it_was_made_anew(|world: &mut World| {
        move_to(world, "other", "example.com/other");
        gateway(world).uid = "another".to_owned();
    }, &[])]
    #[case::it_is_gone(|world: &mut World| world.gateways.clear(), &[])]
    #[case::no_listener(|world: &mut World| gateway(world).listeners.clear(), &[])]
    #[case::no_budget_wanted(|world: &mut World| {
        gateway(world).parameters = Some(mk_own_parameters());
        let own = parameters::parse("podDisruptionBudget: false");
        world.parameters.insert(key("own"), Some(own));
    }, &["DisruptionBudget"])]
    #[case::parameters_that_cannot_be_read(|world: &mut World| {
        gateway(world).parameters = Some(mk_own_parameters());
        world.parameters.insert(key("own"), None);
    }, &[])]
    fn what_is_not_wanted_any_more_goes(#[case] change: fn(&mut World), #[case] expected: &[&str]) {
        let mut world = mk_world();
        let settings = InfraSettings {
            ads_hostname: "isthmus-gateway.isthmus-system.svc".into(),
            ads_port: 18_000,
            ads_tls: true,
            envoy_image: "envoy".into(),
        };
        let of = &world.gateways[&key("gw")];
        let parameters = parameters::of_gateway(&world, of).unwrap();
        let mut live = make_parts(of, &parameters, &[(80, 10_080)].into(), &settings);
        live.retain(|(part, _), _| *part != Part::ClientSecret); // not watched
        change(&mut world);
        let found = unwanted(&world, CONTROLLER, live.iter());
        let names = found.iter().map(|((part, name), of)| {
            assert_eq!((name, of), (&key("gw-isthmus"), &key("gw")));
            format!("{part:?}")
        });
        assert_eq!(names.collect::<Vec<_>>(), expected);
    }
}
