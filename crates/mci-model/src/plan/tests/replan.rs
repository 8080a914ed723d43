//! An import that changed is planned alone as it would be with all others.

use super::*;
use crate::{index::facts::Claim, plan::Replanned};

type Edit = fn(&mut LiveImport);

/// `a` has exported its pool to `b` and `c`.
fn mk_exporting() -> World {
    let mut world = mk_world(&["a", "b", "c"]);
    export(&mut world, "a", "llm");
    settle(&mut world, &mk_policy(), Moment::START);
    world
}

/// The same after a restart: `a` has not been met yet.
fn mk_restarted() -> World {
    let old = mk_exporting();
    let mut world = World::new(mk_rules());
    world.add_member(&mk_name("a"), Moment::START);
    for name in ["b", "c"] {
        world.add_member(&mk_name(name), Moment::START);
        let live = member(&old, name).imports.items[&mk_key("llm")].clone();
        connect(&mut world, name, Vec::new(), vec![live], Moment::START);
    }
    world
}

fn plan(world: &World) -> KeyPlan {
    desired_for(world, &mk_policy(), &mk_key("llm"), NOW)
}

/// What `b` shows changes like this; whether its plan changes with it.
fn check(
    mut world: World,
    what: &str,
    change: impl Fn(LiveImport) -> Change<LiveImport>,
) -> Replanned {
    let (key, name) = (mk_key("llm"), mk_name("b"));
    let mut kept = plan(&world);
    let live = member(&world, "b").imports.items[&key].clone();
    let before = kept.imports[&name].clone();
    world.update(&name, Update::Imports(change(live)), NOW);
    let replanned = kept.replan_import(&world, &mk_policy(), &key, &name, NOW);
    assert_eq!(
        replanned == Replanned::Same,
        before == kept.imports[&name],
        "{what}"
    );
    kept.plan_pools(&world, &mk_policy(), &key);
    assert_eq!(kept, plan(&world), "{what}");
    replanned
}

#[test]
fn an_import_that_changed_is_planned_as_with_all_others() {
    let edits: [(&str, Edit); 5] = [
        ("generation", |live| live.generation += 1),
        ("foreign", |live| live.claim = Claim::Foreign),
        ("no entries", |live| live.status.clusters.clear()),
        ("nothing of ours", |live| live.status.controllers.clear()),
        ("nothing", |live| "2".clone_into(&mut live.resource_version)),
    ];
    for (made, is_known) in [(mk_exporting as fn() -> World, true), (mk_restarted, false)] {
        for (what, edit) in edits {
            let replanned = check(made(), what, |mut live| {
                edit(&mut live);
                Change::Applied(live)
            });
            // only what is carried over depends on the import's own entries
            let changes = match what {
                "nothing" | "nothing of ours" => false,
                "generation" => true,
                _ => !is_known,
            };
            let expected = if changes {
                Replanned::Changed
            } else {
                Replanned::Same
            };
            assert_eq!(replanned, expected, "{what}, exporter known: {is_known}");
        }
        let replanned = check(made(), "deleted", |live| Change::Deleted(live.key));
        let expected = if is_known {
            Replanned::Same
        } else {
            Replanned::Changed
        };
        assert_eq!(replanned, expected, "deleted, exporter known: {is_known}");
    }
}

#[test]
fn where_an_exporter_found_no_room_the_whole_key_is_planned() {
    let names: Vec<String> = (0..258).map(|n| format!("m{n:03}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut world = mk_world(&names);
    for name in &names {
        export(&mut world, name, "llm");
    }
    let (key, name) = (mk_key("llm"), mk_name("m000"));
    let mut kept = plan(&world);
    assert!(!kept.crowded_out.is_empty());
    let mut live = mk_live(&key, planned(&kept, "m000"), 1);
    live.generation += 1;
    world.update(&name, Update::Imports(Change::Applied(live)), NOW);
    let replanned = kept.replan_import(&world, &mk_policy(), &key, &name, NOW);
    assert_eq!(replanned, Replanned::Not);
}
