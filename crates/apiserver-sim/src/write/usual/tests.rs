//! The usual way against the long one.

use serde_json::json;

use super::{
    super::{
        PatchType, find, patch,
        tests::{OTHER, OURS, apply_main, at, entry, mk_store},
        update,
    },
    *,
};
use crate::{hand::Flavour, kinds::IMPORTS, refusal::Refusal};

/// What may befall an import between two applies of ours.
#[derive(Clone, Copy, Debug)]
enum Step {
    Ours(usize),
    Forced(usize),
    Theirs(usize),
    Main,
    ByHand,
    Upstream,
    Superset,
}

fn statuses() -> [Value; 5] {
    let mut labelled = entry("a");
    labelled["labels"] = json!({"region": "r"});
    [
        json!({"clusters": [entry("a"), entry("b"), entry("c")]}),
        json!({"clusters": [entry("c"), entry("d"), labelled], "controllers": [{"name": OURS}]}),
        json!({"clusters": [entry("z"), entry("b")], "observedGeneration": 1}),
        json!({"clusters": []}),
        json!({"clusters": [{"name": "a", "routingMode": "Direct"}]}),
    ]
}

/// Does a step, the usual way or always the long one.
fn step(store: &mut Store, step: Step, long: bool) -> Result<Written, Refusal> {
    let mut apply = |manager, force, number: usize| {
        let body = json!({"apiVersion": IMPORTS.api_version(), "kind": IMPORTS.kind,
            "metadata": {"namespace": "ml", "name": "a"}, "status": statuses()[number]});
        let at = at("a", true);
        if long {
            super::super::apply(store, at, manager, force, body)
        } else {
            let type_ = PatchType::Apply { force };
            patch(store, at, manager, type_, &body.to_string().into())
        }
    };
    match step {
        Step::Ours(number) => apply(OURS, false, number),
        Step::Forced(number) => apply(OURS, true, number),
        Step::Theirs(number) => apply(OTHER, false, number),
        Step::Main => apply_main(store, "a", OURS),
        Step::ByHand => {
            let mut value = find(store, at("a", true))?.value();
            if let Some(port) = value.pointer_mut("/status/clusters/0/targetPortNumber") {
                *port = json!(1);
            }
            update(store, at("a", true), "kubectl-edit", value)
        }
        Step::Upstream | Step::Superset => {
            let flavour = if matches!(step, Step::Upstream) {
                Flavour::Upstream
            } else {
                Flavour::Superset
            };
            store.import_schema = schema::of_imports(flavour);
            let object = find(store, at("a", true))?;
            Ok(Written {
                created: false,
                object,
            })
        }
    }
}

/// What a write left behind, without times.
fn left(written: &Written) -> Value {
    let partial: Value = serde_json::from_slice(&written.object.partial()).expect("JSON");
    let mut value = written.object.value();
    assert_eq!(partial["metadata"], value["metadata"]);
    assert_eq!(
        written.object.json(),
        value.to_string(),
        "as a tree is written"
    );
    for entry in value["metadata"]["managedFields"]
        .as_array_mut()
        .expect("a list")
    {
        entry["time"] = Value::Null;
    }
    value["metadata"]["creationTimestamp"] = Value::Null;
    value
}

#[test]
fn the_usual_way_ends_where_the_long_one_does() {
    let mut steps = vec![Step::Main, Step::ByHand, Step::Upstream, Step::Superset];
    steps.extend((0..statuses().len()).map(Step::Ours));
    steps.extend([Step::Forced(1), Step::Theirs(2)]);
    let mut usual = 0;
    for number in 0..steps.len().pow(3) {
        let (mut one, mut other) = (mk_store(), mk_store());
        let begin = [Step::Main, Step::Ours(0)];
        let rest = (0..3).map(|place| steps[number / steps.len().pow(place) % steps.len()]);
        let all: Vec<Step> = begin.into_iter().chain(rest).collect();
        for &each in &all {
            let before = one.get(&IMPORTS, "ml", "a");
            let outcome = step(&mut one, each, false).map(|written| left(&written));
            let other_outcome = step(&mut other, each, true).map(|written| left(&written));
            assert_eq!(outcome, other_outcome, "{all:?}: {each:?}");
            assert_eq!(one.version, other.version, "{all:?}: {each:?}");
            let replaced = before.is_some_and(|before| before.whole().is_some());
            usual += usize::from(replaced && outcome.is_ok());
        }
    }
    assert!(
        usual > steps.len().pow(3),
        "the usual way is taken: {usual}"
    );
}
