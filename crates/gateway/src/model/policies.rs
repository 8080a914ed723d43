//! Which policy holds for which import, and what policies are told (pure).

use std::collections::BTreeMap;

use crd::annotations::{IMPORT_GROUP, IMPORT_KIND};
use crd::conditions::ACCEPTED;

use crate::select::Policy;
use crate::world::{Key, ParentRef, SelectionPolicy, World};

use super::{Cond, ParentStatus};

/// By import, the policy that holds for it: the oldest of those that are valid and name it, then by name.
fn holding(world: &World) -> BTreeMap<Key, (&Key, &SelectionPolicy)> {
    let valid = world.policies.iter();
    let valid = valid.filter(|(_, policy)| policy.policy.is_ok());
    let mut valid: Vec<_> = valid.collect();
    valid.sort_by_key(|(key, policy)| (policy.created, *key));
    let mut holding = BTreeMap::new();
    for (key, policy) in valid {
        for target in &policy.targets {
            let import = Key::new(&key.namespace, target);
            holding.entry(import).or_insert((key, policy));
        }
    }
    holding
}

/// What holds for the imports that a policy names.
pub(crate) fn of_imports(world: &World) -> BTreeMap<Key, Policy> {
    let holding = holding(world).into_iter();
    holding
        .filter_map(|(import, (_, policy))| Some((import, policy.policy.clone().ok()?)))
        .collect()
}

/// An entry for each import that a policy names.
pub(crate) fn status(world: &World) -> BTreeMap<Key, Vec<ParentStatus>> {
    let holding = holding(world);
    let status = world.policies.iter().map(|(key, policy)| {
        let ancestors = policy.targets.iter().map(|target| {
            let import = Key::new(&key.namespace, target);
            let holder = holding.get(&import).map(|(holder, _)| *holder);
            ParentStatus {
                conditions: vec![accepted(world, key, policy, &import, holder)],
                parent: import_ref(import),
            }
        });
        (key.clone(), ancestors.collect())
    });
    status.collect()
}

fn accepted(
    world: &World,
    key: &Key,
    policy: &SelectionPolicy,
    import: &Key,
    holder: Option<&Key>,
) -> Cond {
    let no = |reason: &str, message: String| Cond::no(ACCEPTED, reason, message, policy.generation);
    if let Err(why) = &policy.policy {
        return no("Invalid", why.clone());
    }
    if !world.imports.contains_key(import) {
        let message = format!("InferencePoolImport {import} does not exist");
        return no("TargetNotFound", message);
    }
    match holder {
        Some(holder) if holder != key => {
            let message = format!("the older policy {holder} holds for it");
            no("Conflicted", message)
        }
        _ => Cond::yes(ACCEPTED, policy.generation),
    }
}

fn import_ref(import: Key) -> ParentRef {
    ParentRef {
        group: Some(IMPORT_GROUP.to_owned()),
        kind: Some(IMPORT_KIND.to_owned()),
        namespace: Some(import.namespace),
        name: import.name,
        section: None,
        port: None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::fixture::{key, mk_world};
    use crate::select::{OrderRule, Strategy};

    /// Its failback time tells which one holds.
    fn mk(created: i64, targets: &[&str]) -> SelectionPolicy {
        SelectionPolicy {
            generation: 2,
            created,
            targets: targets.iter().map(|&name| name.to_owned()).collect(),
            policy: Ok(Policy {
                strategy: Strategy::ActivePassive(OrderRule {
                    failback: Duration::from_secs(u64::try_from(created).unwrap()),
                    ..OrderRule::default()
                }),
                ..Policy::default()
            }),
        }
    }

    fn said(world: &World, policy: &str) -> Vec<String> {
        let status = status(world);
        let entries = status[&key(policy)].iter();
        let said = entries.map(|entry| {
            let [accepted] = &entry.conditions[..] else {
                panic!("{entry:?}");
            };
            assert_eq!(accepted.generation, 2);
            format!("{} {}", entry.parent.name, accepted.reason)
        });
        said.collect()
    }

    fn holds(world: &World) -> Option<u64> {
        let policies = of_imports(world);
        Some(policies.get(&key("llm"))?.order()?.failback.as_secs())
    }

    #[test]
    fn of_two_policies_for_an_import_the_older_one_holds_and_then_the_first_by_name() {
        let mut world = mk_world();
        assert_eq!(holds(&world), None);
        for (name, created) in [("b", 10), ("c", 20), ("a", 20)] {
            let policy = mk(created, &["llm"]);
            world.policies.insert(key(name), policy);
        }
        assert_eq!(holds(&world), Some(10));
        assert_eq!(said(&world, "b"), ["llm Accepted"]);
        assert_eq!(said(&world, "a"), ["llm Conflicted"]);
        // One that is invalid holds nothing.
        let invalid = world.policies.get_mut(&key("b")).unwrap();
        invalid.policy = Err("bad".to_owned());
        assert_eq!(said(&world, "b"), ["llm Invalid"]);
        assert_eq!(holds(&world), Some(20));
        assert_eq!(said(&world, "a"), ["llm Accepted"]);
        assert_eq!(said(&world, "c"), ["llm Conflicted"]);
    }

    #[test]
    fn each_target_has_an_entry_and_those_that_do_not_exist_say_so() {
        let mut world = mk_world();
        let policy = mk(10, &["gone", "llm"]);
        world.policies.insert(key("a"), policy);
        assert_eq!(said(&world, "a"), ["gone TargetNotFound", "llm Accepted"]);
        // Imports of another namespace are not named.
        let other = Key::new("other", "b");
        world.policies.insert(other, mk(1, &["llm"]));
        assert_eq!(holds(&world), Some(10));
    }
}
