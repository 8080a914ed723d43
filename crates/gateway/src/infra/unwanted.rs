//! What runs for a Gateway and is not wanted any more (pure): after a change of its class or parameters.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use crate::world::{Gateway, Infra, Key, World};

use super::{Owner, Part, controlling_gateway, is_made_by, parameters, part_key};

/// Objects that this controller made for a Gateway and that no one wants, each with its Gateway. What is on its way out is left
/// to the garbage collector, and so is what belongs to a Gateway of which not all is known.
///
/// Of another class of this controller the Deployment goes first, once as many Envoys of the new one are available. Its pods
/// serve on while they end, and are reached by the Service: that goes with the rest when they are gone. The ServiceAccount is
/// last: the Secret, which nothing watches, is deleted before it.
///
/// What a Gateway of another controller's class left here stays: whether that controller serves it is not known.
pub(crate) fn unwanted<'a>(
    world: &World,
    controller: &str,
    live: impl Iterator<Item = (&'a (Part, Key), &'a Value)>,
) -> BTreeMap<(Part, Key), Owner> {
    let live: BTreeMap<_, _> = live.collect();
    let kinds = |key: &Key| -> BTreeSet<Part> {
        let kinds = live.keys().filter(|(_, other)| other == key);
        kinds.map(|(part, _)| *part).collect()
    };
    let mut found = BTreeMap::new();
    for ((part, key), object) in &live {
        let Some(gateway) = gateway_of(world, controller, key, object) else {
            continue;
        };
        if is_wanted(world, controller, gateway, *part, key) {
            continue;
        }
        let is_former = *key != part_key(gateway);
        if is_former && !is_next(*part, &kinds(key)) {
            continue;
        }
        let owner = Owner {
            gateway: gateway.key.clone(),
            uid: gateway.uid.clone(),
            controller: controller.to_owned(),
        };
        found.insert((*part, key.clone()), owner);
    }
    found
}

/// The order in which the objects of a former class go, by those that are there.
fn is_next(part: Part, there: &BTreeSet<Part>) -> bool {
    match part {
        Part::Deployment => true,
        Part::ClientSecret | Part::DisruptionBudget | Part::Service => {
            !there.contains(&Part::Deployment)
        }
        Part::ServiceAccount => there.len() == 1,
    }
}

/// The Gateway that the object serves, if this controller made it and it is not being deleted.
fn gateway_of<'a>(
    world: &'a World,
    controller: &str,
    key: &Key,
    object: &Value,
) -> Option<&'a Gateway> {
    let meta: ObjectMeta = serde_json::from_value(object.get("metadata")?.clone()).ok()?;
    let owner = controlling_gateway(&meta)?;
    let gateway = world.gateways.get(&Key::new(&key.namespace, &owner.name))?;
    let is_kept = |kind, key: Key| world.kept.contains(&(kind, key));
    let is_here = is_made_by(&meta, controller)
        && meta.deletion_timestamp.is_none()
        && !gateway.deleting
        && gateway.uid == owner.uid
        && !is_kept("Gateway", gateway.key.clone())
        && !is_kept("GatewayClass", Key::new("", &gateway.class));
    is_here.then_some(gateway)
}

fn is_wanted(world: &World, controller: &str, gateway: &Gateway, part: Part, key: &Key) -> bool {
    // of a class that is not there nobody knows whose it is
    let class = world.classes.get(&gateway.class);
    if class.is_none_or(|class| class.controller != controller) {
        return true;
    }
    let now = part_key(gateway);
    if *key != now {
        let none = Infra::default();
        let of = |key: &Key| world.infra.get(key).unwrap_or(&none);
        let (heirs, former) = (of(&now), of(key));
        let is_served = heirs.available >= former.available.max(1) && !heirs.addresses.is_empty();
        return !is_served;
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

    /// Envoys of the new class `other` that are available; the former ones are 3.
    fn move_with(world: &mut World, available: i32) {
        move_to(world, "other", CONTROLLER);
        let former = world.infra.get_mut(&key("gw-isthmus")).unwrap();
        former.available = 3;
        let mut heirs = former.clone();
        heirs.available = available;
        world.infra.insert(key("gw-other"), heirs);
    }

    fn mk_live(world: &World, controller: &str) -> BTreeMap<(Part, Key), Value> {
        let settings = InfraSettings {
            controller: controller.to_owned(),
            ads_hostname: "isthmus-gateway.isthmus-system.svc".into(),
            ads_port: 18_000,
            ads_tls: true,
            envoy_image: "envoy".into(),
        };
        let of = &world.gateways[&key("gw")];
        let parameters = parameters::of_gateway(world, of).unwrap();
        let mut live = make_parts(of, &parameters, &[(80, 10_080)].into(), &settings);
        live.retain(|(part, _), _| *part != Part::ClientSecret); // not watched
        live
    }

    fn found(world: &World, live: &BTreeMap<(Part, Key), Value>) -> Vec<String> {
        let found = unwanted(world, CONTROLLER, live.iter());
        let names = found.iter().map(|((part, name), owner)| {
            assert_eq!((name, &owner.gateway), (&key("gw-isthmus"), &key("gw")));
            assert_eq!((&*owner.uid, &*owner.controller), ("uid-gw", CONTROLLER));
            format!("{part:?}")
        });
        names.collect()
    }

    /// What happened since the objects were made, and which of them go.
    #[rstest]
    #[case::nothing(|_: &mut World| {}, &[])]
    #[case::another_controller(|world: &mut World| move_to(world, "other", "example.com/other"), &[])]
    #[case::another_class_before_its_envoys_are_there(|world: &mut World| move_to(world, "other", CONTROLLER), &[])]
    #[case::another_class_with_fewer_envoys(|world: &mut World| move_with(world, 2), &[])]
    #[case::another_class(|world: &mut World| move_with(world, 3), &["Deployment"])]
    #[case::another_class_without_an_address(|world: &mut World| {
        move_with(world, 3);
        world.infra.get_mut(&key("gw-other")).unwrap().addresses.clear();
    }, &[])]
    #[case::its_class_is_gone(|world: &mut World| world.classes.clear(), &[])]
    #[case::the_crd_of_classes_is_gone(|world: &mut World| {
        move_with(world, 3);
        world.kept.insert(("GatewayClass", Key::new("", "other")));
    }, &[])]
    #[case::its_crd_is_gone(|world: &mut World| {
        move_with(world, 3);
        world.kept.insert(("Gateway", key("gw")));
    }, &[])]
    #[case::it_is_being_deleted(|world: &mut World| {
        move_with(world, 3);
        gateway(world).deleting = true;
    }, &[])]
    #[case::it_was_made_anew(|world: &mut World| {
        move_with(world, 3);
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
        let live = mk_live(&world, CONTROLLER);
        change(&mut world);
        assert_eq!(found(&world, &live), expected);
    }

    /// The Service leads to pods that end, and the account is there until the Secret is gone.
    #[test]
    fn objects_of_a_former_class_go_in_order() {
        let mut world = mk_world();
        let mut live = mk_live(&world, CONTROLLER);
        move_with(&mut world, 3);
        let deployment = (Part::Deployment, key("gw-isthmus"));
        assert_eq!(found(&world, &live), ["Deployment"]);
        // it is there until its pods are gone
        let meta = &mut live.get_mut(&deployment).unwrap()["metadata"];
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        assert_eq!(found(&world, &live), Vec::<String>::new());
        live.remove(&deployment);
        assert_eq!(found(&world, &live), ["DisruptionBudget", "Service"]);
        live.remove(&(Part::Service, key("gw-isthmus")));
        assert_eq!(found(&world, &live), ["DisruptionBudget"]);
        live.remove(&(Part::DisruptionBudget, key("gw-isthmus")));
        assert_eq!(found(&world, &live), ["ServiceAccount"]);
    }

    /// Also after a move from a class of that controller to one of ours.
    #[test]
    fn what_another_controller_made_stays() {
        let mut world = mk_world();
        let live = mk_live(&world, "example.com/other");
        move_with(&mut world, 3);
        assert_eq!(found(&world, &live), Vec::<String>::new());
        let mut live = mk_live(&mk_world(), CONTROLLER);
        for object in live.values_mut() {
            object["metadata"]["annotations"] = Value::Null; // as of an earlier version
        }
        assert_eq!(found(&world, &live), Vec::<String>::new());
    }
}
