use rstest::rstest;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;

type Table = BTreeMap<String, Found>;

fn mk<K: DeserializeOwned>(name: &str, created: Option<&str>, spec: Value) -> K {
    let mut metadata = json!({"name": name, "namespace": "ns"});
    if let Some(created) = created {
        metadata["creationTimestamp"] = json!(created);
    }
    let status = json!({"conditions": []});
    let object = json!({"metadata": metadata, "spec": spec, "status": status});
    serde_json::from_value(object).expect("it decodes")
}

fn mk_table(seen: impl IntoIterator<Item = Seen>) -> Table {
    let ours = seen.into_iter();
    ours.filter_map(|one| Some((one.name, one.found?)))
        .collect()
}

fn mk_objective(name: &str, priority: Option<i32>) -> Seen {
    let spec = json!({"poolRef": {"name": "llm"}, "priority": priority});
    Seen::objective("llm", mk(name, None, spec))
}

fn mk_rewrite(name: &str, created: Option<&str>, target: &str) -> Seen {
    let rule = json!({"targets": [{"modelRewrite": target}]});
    let spec = json!({"poolRef": {"name": "llm"}, "rules": [rule]});
    Seen::rewrite("llm", mk(name, created, spec)).expect("it can be used")
}

fn mk_model(name: &str, created: &str, criticality: &str) -> Seen {
    let spec = json!({"poolRef": {"name": "llm"}, "modelName": "m", "criticality": criticality});
    Seen::model("llm", mk(name, Some(created), spec)).expect("it can be used")
}

#[test]
fn an_unset_priority_is_0_and_the_current_group_comes_first() {
    let current = mk_table([mk_objective("b", Some(-3)), mk_objective("a", None)]);
    let former = mk_table([mk_objective("b", Some(7))]);
    let objects = Objects::of([&current, &former].into_iter());
    let seen: Vec<_> = objects
        .objectives
        .iter()
        .map(|one| (one.name.as_str(), one.priority))
        .collect();
    assert_eq!(seen, [("a", 0), ("b", -3), ("b", 7)]);
}

/// By age whatever the group, of the same second by name, and what has no age at the end.
#[test]
fn older_rewrites_come_first() {
    let (old, new) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
    let current = mk_table([
        mk_rewrite("ageless", None, "5"),
        mk_rewrite("a", Some(new), "3"),
        mk_rewrite("c", Some(old), "2"),
    ]);
    let former = mk_table([
        mk_rewrite("b", Some(old), "1"),
        mk_rewrite("z", Some(new), "4"),
    ]);
    let objects = Objects::of([&current, &former].into_iter());
    let rules = objects.rewrites.iter();
    let seen: Vec<_> = rules.map(|rule| rule.targets[0].model.as_str()).collect();
    assert_eq!(seen, ["1", "2", "3", "4", "5"]);
}

#[test]
fn the_older_of_two_models_of_a_name_comes_first() {
    let table = mk_table([
        mk_model("a", "2026-01-02T00:00:00Z", "Critical"),
        mk_model("b", "2026-01-01T00:00:00Z", "Sheddable"),
        mk_model("c", "2026-01-03T00:00:00Z", "Default"),
    ]);
    let objects = Objects::of([&table].into_iter());
    let seen: Vec<_> = objects.models.iter().map(|model| model.priority).collect();
    assert_eq!(seen, [-1, 1, 0]);
}

#[test]
fn a_rule_has_its_matches_and_a_weight_of_1_where_none_is_said() {
    let spec = json!({"poolRef": {"name": "llm"}, "rules": [
        {"matches": [{"model": {"type": "Exact", "value": "m"}}, {"model": {"value": "n"}}],
         "targets": [{"modelRewrite": "a", "weight": 9}, {"modelRewrite": "b"}]},
        {"targets": [{"modelRewrite": "c"}]},
    ]});
    let seen = Seen::rewrite("llm", mk("r", None, spec));
    let table = mk_table([seen.expect("it can be used")]);
    let target = |model: &str, weight| Target {
        model: model.to_owned(),
        weight,
    };
    let expected = [
        Rewrite {
            models: vec!["m".to_owned(), "n".to_owned()],
            targets: vec![target("a", 9), target("b", 1)],
        },
        Rewrite {
            models: Vec::new(),
            targets: vec![target("c", 1)],
        },
    ];
    assert_eq!(Objects::of([&table].into_iter()).rewrites, expected);
}

#[test]
fn an_object_of_another_pool_says_nothing() {
    let spec = json!({"poolRef": {"name": "other"}, "modelName": "m", "rules": []});
    let objective = Seen::objective("llm", mk("o", None, spec.clone()));
    let rewrite = Seen::rewrite("llm", mk("o", None, spec.clone()));
    let model = Seen::model("llm", mk("o", None, spec));
    let (rewrite, model) = (rewrite.expect("no concern"), model.expect("no concern"));
    assert!(mk_table([objective, rewrite, model]).is_empty());
}

#[rstest]
#[case(json!([{"targets": []}]), "has no target")]
#[case(json!([{"matches": []}]), "has no target")]
#[case(json!([{"targets": [{"modelRewrite": "a", "weight": 0}]}]), "none with a weight")]
#[case(json!([{"targets": [{"modelRewrite": ""}]}]), "is empty")]
fn a_rule_that_leads_nowhere_makes_its_object_odd(#[case] rules: Value, #[case] why: &str) {
    let spec = json!({"poolRef": {"name": "llm"}, "rules": rules});
    let odd = Seen::rewrite("llm", mk("r", None, spec)).expect_err("it is odd");
    assert_eq!(odd.name, "r");
    assert!(odd.error.contains(why), "{}", odd.error);
}

#[rstest]
#[case(json!({"modelName": ""}), "modelName")]
#[case(json!({"modelName": "m", "targetModels": [{"name": ""}]}), "name of a target")]
fn a_model_without_a_name_is_odd(#[case] mut spec: Value, #[case] why: &str) {
    spec["poolRef"] = json!({"name": "llm"});
    let odd = Seen::model("llm", mk("m", None, spec)).expect_err("it is odd");
    assert!(odd.error.contains(why), "{}", odd.error);
}
