//! What runs for a Gateway and is not wanted any more (pure): after a change of its class or parameters.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use crate::feedback::{Feedback, Infra};
use crate::parameters;
use crate::world::{Gateway, Key, World, part_key};

use super::{Owner, Part, controlling_gateway, is_made_by};

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
    feedback: &Feedback,
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
        if is_wanted(world, feedback, controller, gateway, *part, key) {
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

fn is_wanted(
    world: &World,
    feedback: &Feedback,
    controller: &str,
    gateway: &Gateway,
    part: Part,
    key: &Key,
) -> bool {
    // of a class that is not there nobody knows whose it is
    let class = world.classes.get(&gateway.class);
    if class.is_none_or(|class| class.controller != controller) {
        return true;
    }
    let now = part_key(gateway);
    if *key != now {
        let none = Infra::default();
        let of = |key: &Key| feedback.infra.get(key).unwrap_or(&none);
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
    use crate::fixture::{CONTROLLER, key, mk_feedback, mk_own_parameters, mk_world};
    use crate::infra::{InfraSettings, make_parts};
    use crate::world::GatewayClass;

    struct Bed {
        world: World,
        feedback: Feedback,
    }

    impl Bed {
        fn new() -> Self {
            Self {
                world: mk_world(),
                feedback: mk_feedback(),
            }
        }
    }

    fn gateway(bed: &mut Bed) -> &mut Gateway {
        bed.world.gateways.get_mut(&key("gw")).unwrap()
    }

    /// A class of this controller that the Gateway is of from now on.
    fn move_to(bed: &mut Bed, class: &str, controller: &str) {
        let controller = controller.to_owned();
        let made = GatewayClass {
            controller,
            ..GatewayClass::default()
        };
        bed.world.classes.insert(class.to_owned(), made);
        class.clone_into(&mut gateway(bed).class);
    }

    /// Envoys of the new class `other` that are available; the former ones are 3.
    fn move_with(bed: &mut Bed, available: i32) {
        move_to(bed, "other", CONTROLLER);
        let former = bed.feedback.infra.get_mut(&key("gw-isthmus")).unwrap();
        former.available = 3;
        let mut heirs = former.clone();
        heirs.available = available;
        bed.feedback.infra.insert(key("gw-other"), heirs);
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

    fn found(bed: &Bed, live: &BTreeMap<(Part, Key), Value>) -> Vec<String> {
        let found = unwanted(&bed.world, &bed.feedback, CONTROLLER, live.iter());
        let names = found.iter().map(|((part, name), owner)| {
            assert_eq!((name, &owner.gateway), (&key("gw-isthmus"), &key("gw")));
            assert_eq!((&*owner.uid, &*owner.controller), ("uid-gw", CONTROLLER));
            format!("{part:?}")
        });
        names.collect()
    }

    /// What happened since the objects were made, and which of them go.
    #[rstest]
    #[case::nothing(|_: &mut Bed| {}, &[])]
    #[case::another_controller(|bed: &mut Bed| move_to(bed, "other", "example.com/other"), &[])]
    #[case::another_class_before_its_envoys_are_there(|bed: &mut Bed| move_to(bed, "other", CONTROLLER), &[])]
    #[case::another_class_with_fewer_envoys(|bed: &mut Bed| move_with(bed, 2), &[])]
    #[case::another_class(|bed: &mut Bed| move_with(bed, 3), &["Deployment"])]
    #[case::another_class_without_an_address(|bed: &mut Bed| {
        move_with(bed, 3);
        bed.feedback.infra.get_mut(&key("gw-other")).unwrap().addresses.clear();
    }, &[])]
    #[case::its_class_is_gone(|bed: &mut Bed| bed.world.classes.clear(), &[])]
    #[case::the_crd_of_classes_is_gone(|bed: &mut Bed| {
        move_with(bed, 3);
        bed.world.kept.insert(("GatewayClass", Key::new("", "other")));
    }, &[])]
    #[case::its_crd_is_gone(|bed: &mut Bed| {
        move_with(bed, 3);
        bed.world.kept.insert(("Gateway", key("gw")));
    }, &[])]
    #[case::it_is_being_deleted(|bed: &mut Bed| {
        move_with(bed, 3);
        gateway(bed).deleting = true;
    }, &[])]
    #[case::it_was_made_anew(|bed: &mut Bed| {
        move_with(bed, 3);
        gateway(bed).uid = "another".to_owned();
    }, &[])]
    #[case::it_is_gone(|bed: &mut Bed| bed.world.gateways.clear(), &[])]
    #[case::no_listener(|bed: &mut Bed| gateway(bed).listeners.clear(), &[])]
    #[case::no_budget_wanted(|bed: &mut Bed| {
        gateway(bed).parameters = Some(mk_own_parameters());
        let own = parameters::parse("podDisruptionBudget: false");
        bed.world.parameters.insert(key("own"), Some(own));
    }, &["DisruptionBudget"])]
    #[case::parameters_that_cannot_be_read(|bed: &mut Bed| {
        gateway(bed).parameters = Some(mk_own_parameters());
        bed.world.parameters.insert(key("own"), None);
    }, &[])]
    fn what_is_not_wanted_any_more_goes(#[case] change: fn(&mut Bed), #[case] expected: &[&str]) {
        let mut bed = Bed::new();
        let live = mk_live(&bed.world, CONTROLLER);
        change(&mut bed);
        assert_eq!(found(&bed, &live), expected);
    }

    /// The Service leads to pods that end, and the account is there until the Secret is gone.
    #[test]
    fn objects_of_a_former_class_go_in_order() {
        let mut bed = Bed::new();
        let mut live = mk_live(&bed.world, CONTROLLER);
        move_with(&mut bed, 3);
        let deployment = (Part::Deployment, key("gw-isthmus"));
        assert_eq!(found(&bed, &live), ["Deployment"]);
        // it is there until its pods are gone
        let meta = &mut live.get_mut(&deployment).unwrap()["metadata"];
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        assert_eq!(found(&bed, &live), Vec::<String>::new());
        live.remove(&deployment);
        assert_eq!(found(&bed, &live), ["DisruptionBudget", "Service"]);
        live.remove(&(Part::Service, key("gw-isthmus")));
        assert_eq!(found(&bed, &live), ["DisruptionBudget"]);
        live.remove(&(Part::DisruptionBudget, key("gw-isthmus")));
        assert_eq!(found(&bed, &live), ["ServiceAccount"]);
    }

    /// Also after a move from a class of that controller to one of ours.
    #[test]
    fn what_another_controller_made_stays() {
        let mut bed = Bed::new();
        let live = mk_live(&bed.world, "example.com/other");
        move_with(&mut bed, 3);
        assert_eq!(found(&bed, &live), Vec::<String>::new());
        let mut live = mk_live(&mk_world(), CONTROLLER);
        for object in live.values_mut() {
            object["metadata"]["annotations"] = Value::Null; // as of an earlier version
        }
        assert_eq!(found(&bed, &live), Vec::<String>::new());
    }
}
