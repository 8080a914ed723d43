use super::*;
use crate::{
    explain::render,
    fixtures::*,
    index::{
        member::Fault,
        update::{Change, Update},
    },
};

fn ask(world: &World, key: &Key, seconds: u64) -> Option<Explanation> {
    let queues: BTreeMap<ClusterName, Arc<Queue>> = world
        .members
        .keys()
        .map(|name| (name.clone(), Arc::default()))
        .collect();
    let input = ExplainInput {
        world,
        policy: &mk_policy(),
        queues: &queues,
        gate_open: true,
        leader: true,
        dry_run: false,
        now: Moment::from_millis(seconds * 1000),
    };
    explain(input, key)
}

/// Exported by `a`, imported by `b`; `c` lacks the namespace; `d` is lost and has the import.
fn mk_world_with_export() -> World {
    let mut world = mk_world(&["a", "b", "c", "d"]);
    let gone = Update::Namespaces(Change::Deleted(Key::new("", NS)));
    world.update(&mk_name("c"), gone, Moment::default());
    export(&mut world, "a", "llm");
    settle(&mut world, &mk_policy(), Moment::default());
    let lost = Update::Lost(Fault::ConnectionLost);
    world.update(&mk_name("d"), lost, Moment::default());
    world
}

fn states(explanation: &Explanation) -> Vec<(String, State, String)> {
    let importers = explanation.importers.iter();
    importers
        .map(|one| (one.cluster.clone(), one.state, one.reason.clone()))
        .collect()
}

#[test]
fn each_member_is_listed_with_its_reason() {
    let explanation = ask(&mk_world_with_export(), &mk_key("llm"), 10).expect("known");
    assert_eq!(explanation.key, "ml/llm");
    let exporters: Vec<(&str, Option<&str>, &str)> = explanation
        .exporters
        .iter()
        .map(|one| {
            (
                one.cluster.as_str(),
                one.mode.as_deref(),
                one.evidence.as_str(),
            )
        })
        .collect();
    assert_eq!(exporters, [("a", Some("EndpointMode"), "Exported")]);
    let entry = explanation.exporters[0].entry.as_ref().expect("an entry");
    assert_eq!(
        entry["endpointPicker"]["service"][0]["addresses"][0],
        "192.0.2.1"
    );
    assert_eq!(
        states(&explanation),
        [
            ("a".to_owned(), State::Applied, "NoRemoteCluster".to_owned()),
            ("b".to_owned(), State::Applied, "AsPlanned".to_owned()),
            (
                "c".to_owned(),
                State::Skipped,
                "NamespaceMissing".to_owned()
            ),
            ("d".to_owned(), State::Applied, "AsLastSeen".to_owned()),
        ]
    );
}

#[test]
fn a_key_that_nobody_has_is_unknown() {
    assert_eq!(ask(&mk_world_with_export(), &mk_key("other"), 10), None);
}

#[test]
fn a_pool_that_asks_for_no_export_is_explained_too() {
    let mut world = mk_world(&["a", "b"]);
    let pool = mk_pool("llm", Some("cluster-set"));
    world.update(&mk_name("a"), Update::PoolApplied(pool), Moment::default());
    let explanation = ask(&world, &mk_key("llm"), 1).expect("known");
    assert_eq!(explanation.exporters[0].entry, None);
    assert_eq!(explanation.exporters[0].evidence, "AnnotationInvalid");
    let rule = explanation
        .trace
        .iter()
        .find(|rule| rule.rule == "exported-condition")
        .expect("a row");
    assert_eq!(rule.outcome, "NotSupported");
    assert!(rule.detail.contains("use ClusterSet"), "{rule:?}");
}

#[test]
fn a_new_export_is_pending_until_it_is_seen() {
    let mut world = mk_world(&["a", "b"]);
    export(&mut world, "a", "llm");
    let explanation = ask(&world, &mk_key("llm"), 1).expect("known");
    let b = explanation.importers.iter().find(|one| one.cluster == "b");
    let b = b.expect("a row");
    assert_eq!((b.state, b.reason.as_str()), (State::Pending, "Create"));
    assert_eq!(b.flavour.as_deref(), Some("Superset"));
}

#[test]
fn nothing_pends_for_another_reason_than_the_first() {
    let mut world = mk_world(&["a", "b"]);
    export(&mut world, "a", "llm");
    let queues = BTreeMap::new();
    let input = ExplainInput {
        world: &world,
        policy: &mk_policy(),
        queues: &queues,
        gate_open: false,
        leader: false,
        dry_run: true,
        now: Moment::from_millis(1000),
    };
    let explanation = explain(input, &mk_key("llm")).expect("known");
    assert_eq!(states(&explanation)[1].2, "GateClosed");
    let rules: Vec<&str> = explanation
        .trace
        .iter()
        .map(|rule| rule.outcome.as_str())
        .collect();
    assert_eq!(rules[..3], ["Closed", "NotHeld", "On"]);
}

#[test]
fn the_text_is_for_people() {
    let explanation = ask(&mk_world_with_export(), &mk_key("llm"), 10).expect("known");
    let drawn = render(&explanation);
    let golden = include_str!("golden.txt");
    assert_eq!(drawn, golden, "the golden should be:\n{drawn}");
}

#[test]
fn the_json_is_read_back_as_it_was() {
    let explanation = ask(&mk_world_with_export(), &mk_key("llm"), 10).expect("known");
    let json = serde_json::to_string(&explanation).expect("JSON");
    let back: Explanation = serde_json::from_str(&json).expect("read");
    assert_eq!(back, explanation);
    let value: serde_json::Value = serde_json::from_str(&json).expect("read");
    let fields: Vec<&String> = value.as_object().expect("an object").keys().collect();
    assert_eq!(fields.len(), 4, "{fields:?}");
    for field in ["key", "exporters", "importers", "trace"] {
        assert!(value.get(field).is_some(), "{field}");
    }
    let importer = &value["importers"][1];
    for field in ["cluster", "state", "reason", "flavour", "queued"] {
        assert!(importer.get(field).is_some(), "{field} of {importer}");
    }
}
