use crd::annotations::{DRAIN_SECONDS, EXPORT_MODE, HEALTH_PORT, HEALTH_SECRET};
use prometheus_client::{encoding::text::encode, registry::Registry};

use super::*;
use crate::{
    events::fill,
    fixtures::*,
    index::{facts::Claim, update::Update},
    plan::desired_for,
};

/// A world of members with outboxes.
struct Bench {
    world: World,
    teller: PoolTeller,
    queues: BTreeMap<ClusterName, Arc<Queue>>,
    metrics: Metrics,
    registry: Registry,
}

impl Bench {
    fn new(names: &[&str]) -> Self {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        let queues = names.iter().map(|name| (mk_name(name), Arc::default()));
        Self {
            world: mk_world(names),
            teller: PoolTeller::default(),
            queues: queues.collect(),
            metrics,
            registry,
        }
    }

    fn plan(&mut self, seconds: u64, speaking: bool) {
        let now = Moment::from_millis(seconds * 1000);
        for name in self.queues.keys() {
            self.metrics.add(name);
        }
        let plan = desired_for(&self.world, &mk_policy(), &mk_key("llm"), now);
        let audience = Audience {
            queues: &self.queues,
            metrics: &self.metrics,
            speaking,
            now,
            wall: Timestamp::UNIX_EPOCH,
        };
        self.teller
            .planned(&self.world, &mk_key("llm"), &plan, &audience);
    }

    fn settle(&mut self) {
        settle(&mut self.world, &mk_policy(), Moment::default());
    }

    fn told(&self, name: &str) -> Vec<&'static str> {
        let letters = self.queues[&mk_name(name)].outbox().drain();
        letters.into_iter().map(|(reason, _)| reason).collect()
    }

    /// The pool of `a`, with one more annotation.
    fn annotate(&mut self, annotation: &str, value: &str) {
        let record = &member(&self.world, "a").pools[&mk_key("llm")];
        let mut pool = record.facts.clone();
        pool.annotations
            .insert(annotation.to_owned(), value.to_owned());
        self.world
            .update(&mk_name("a"), Update::PoolApplied(pool), Moment::default());
    }
}

#[test]
fn an_export_is_told_once_it_stands_and_not_again() {
    let mut bench = Bench::new(&["a", "b"]);
    export(&mut bench.world, "a", "llm");
    bench.plan(0, true);
    assert!(bench.told("a").is_empty(), "nothing stands yet");
    bench.settle();
    bench.plan(1, true);
    assert_eq!(bench.told("a"), ["Exported"]);
    bench.plan(700, true);
    assert!(bench.told("a").is_empty());
    assert!(bench.told("b").is_empty(), "the pool is in a");
}

#[test]
fn after_a_restart_what_the_condition_says_is_no_news() {
    let mut bench = Bench::new(&["a", "b"]);
    export(&mut bench.world, "a", "llm");
    bench.annotate(HEALTH_PORT, "0");
    bench.settle();
    bench.plan(0, true);
    assert!(bench.told("a").is_empty());
    // what changes afterwards is
    lose(&mut bench.world, "b", Moment::from_millis(1_000));
    bench.plan(4, true);
    assert_eq!(bench.told("a"), ["PartiallyExported", "ClusterUnreachable"]);
}

#[test]
fn who_does_not_lead_looks_on_and_does_not_repeat_it_later() {
    let mut bench = Bench::new(&["a", "b"]);
    export(&mut bench.world, "a", "llm");
    bench.plan(0, false);
    bench.settle();
    bench.plan(1, false);
    assert!(bench.told("a").is_empty());
    bench.plan(2, true);
    assert!(bench.told("a").is_empty());
}

#[test]
fn trouble_that_came_while_nobody_led_is_told_by_who_leads_next() {
    let mut bench = Bench::new(&["a", "b"]);
    export(&mut bench.world, "a", "llm");
    bench.settle();
    bench.plan(0, false);
    bench.annotate(DRAIN_SECONDS, "soon");
    lose(&mut bench.world, "b", Moment::from_millis(1_000));
    bench.plan(4, false);
    bench.plan(5, false);
    assert!(bench.told("a").is_empty());
    bench.plan(6, true);
    let told = bench.told("a");
    assert!(told.contains(&"InvalidExportAnnotation"), "{told:?}");
    assert!(told.contains(&"ClusterUnreachable"), "{told:?}");
    assert!(!told.contains(&"Exported"), "{told:?}");
    bench.plan(7, true);
    assert!(bench.told("a").is_empty());
}

#[test]
fn trouble_that_came_and_went_while_another_led_is_no_news() {
    let mut bench = Bench::new(&["a", "b"]);
    export(&mut bench.world, "a", "llm");
    bench.settle();
    bench.plan(0, false);
    bench.annotate(DRAIN_SECONDS, "soon");
    bench.plan(1, false);
    bench.annotate(DRAIN_SECONDS, "10");
    bench.plan(2, false);
    bench.plan(3, true);
    assert!(bench.told("a").is_empty());
}

#[test]
fn what_does_not_fit_is_told_later() {
    let mut bench = Bench::new(&["a", "b"]);
    export(&mut bench.world, "a", "llm");
    bench.annotate(DRAIN_SECONDS, "soon");
    let outbox = bench.queues[&mk_name("a")].outbox();
    fill(outbox, Moment::default());
    bench.plan(0, true);
    let told = bench.told("a");
    assert!(!told.contains(&"InvalidExportAnnotation"), "{told:?}");
    bench.plan(1, true);
    assert_eq!(bench.told("a"), ["InvalidExportAnnotation"]);
    bench.plan(2, true);
    assert!(bench.told("a").is_empty());
}

#[test]
fn a_verdict_that_did_not_fit_is_told_though_the_condition_says_it_by_then() {
    let mut bench = Bench::new(&["a", "b"]);
    export(&mut bench.world, "a", "llm");
    bench.settle();
    bench.plan(0, true);
    lose(&mut bench.world, "b", Moment::from_millis(1_000));
    fill(bench.queues[&mk_name("a")].outbox(), Moment::default());
    bench.plan(4, true);
    let write = |bench: &mut Bench| {
        settle(&mut bench.world, &mk_policy(), Moment::from_millis(4_000));
    };
    write(&mut bench);
    bench.plan(5, true);
    // for a while another leads, and is not there when it is told
    bench.plan(6, false);
    assert!(!bench.told("a").contains(&"PartiallyExported"));
    bench.plan(7, true);
    assert!(bench.told("a").contains(&"PartiallyExported"));
    bench.plan(8, true);
    assert!(bench.told("a").is_empty(), "once");
}

/// Notes that are due within the next five minutes.
fn due(bench: &Bench, name: &str, seconds: u64) -> Vec<&'static str> {
    let outbox = bench.queues[&mk_name(name)].outbox();
    let now = Moment::from_millis((seconds + 301) * 1000);
    let letters = std::iter::from_fn(|| {
        let letter = outbox.take(now)?;
        outbox.finish(crate::write::action::Outcome::Done, now);
        Some(letter.notice.reason.name())
    });
    letters.collect()
}

/// A pool with one complaint that was told, and another that came too soon.
fn mk_held() -> Bench {
    let mut bench = Bench::new(&["a", "b"]);
    export(&mut bench.world, "a", "llm");
    bench.settle();
    bench.plan(0, true);
    bench.annotate(DRAIN_SECONDS, "soon");
    bench.plan(1, true);
    assert_eq!(bench.told("a"), ["InvalidExportAnnotation"]);
    bench.annotate(HEALTH_SECRET, "other/creds");
    bench.plan(2, true);
    assert!(bench.told("a").is_empty());
    bench
}

#[test]
fn what_came_too_soon_is_told_later_unless_it_is_over_by_then() {
    for (secret, told) in [
        ("other/creds", &["InvalidExportAnnotation"][..]),
        ("creds", &[]),
    ] {
        let mut bench = mk_held();
        bench.annotate(DRAIN_SECONDS, "10");
        bench.annotate(HEALTH_SECRET, secret);
        // whoever leads by then, for a while another
        bench.plan(3, false);
        bench.plan(4, true);
        assert_eq!(due(&bench, "a", 3), told, "{secret}");
    }
}

#[test]
fn of_what_came_too_soon_only_what_still_stands_is_told() {
    let mut bench = mk_held();
    bench.annotate(HEALTH_PORT, "0");
    bench.plan(3, true);
    // neither overtakes the other
    let held = format!("{:?}", bench.queues[&mk_name("a")].outbox());
    for annotation in [HEALTH_PORT, HEALTH_SECRET] {
        assert!(
            held.contains(&format!("annotation {annotation} ")),
            "{held}"
        );
    }
    bench.annotate(DRAIN_SECONDS, "10");
    bench.annotate(HEALTH_SECRET, "creds");
    bench.plan(4, true);
    let outbox = bench.queues[&mk_name("a")].outbox();
    let letter = outbox.take(Moment::from_millis(302_000)).expect("due");
    let note = letter.notice.note;
    assert!(note.contains(HEALTH_PORT), "{note}");
    assert!(
        !note.contains(HEALTH_SECRET) && !note.contains(DRAIN_SECONDS),
        "{note}"
    );
}

#[test]
fn of_a_pool_that_is_not_exported_any_more_no_export_is_told() {
    for last in ["NoEntry", "Exported"] {
        let mut bench = Bench::new(&["a", "b"]);
        export(&mut bench.world, "a", "llm");
        let settle_at = |bench: &mut Bench, seconds: u64| {
            let now = Moment::from_millis(seconds * 1000);
            settle(&mut bench.world, &mk_policy(), now);
        };
        bench.plan(0, true);
        bench.settle();
        bench.plan(1, true);
        assert_eq!(bench.told("a"), ["Exported"]);
        lose(&mut bench.world, "b", Moment::from_millis(1_000));
        bench.plan(4, true);
        settle_at(&mut bench, 4);
        bench.told("a");
        bench.annotate(EXPORT_MODE, "EndpointMode");
        // the same again, too soon
        let back = Moment::from_millis(5_000);
        bench.world.update(&mk_name("b"), Update::Live, back);
        bench.plan(8, true);
        settle_at(&mut bench, 8);
        if last == "NoEntry" {
            let record = &member(&bench.world, "a").pools[&mk_key("llm")];
            let mut pool = record.facts.clone();
            pool.annotations.remove(crd::annotations::EXPORT);
            let applied = Update::PoolApplied(pool);
            bench
                .world
                .update(&mk_name("a"), applied, Moment::default());
        }
        bench.plan(9, true);
        let told = due(&bench, "a", 9);
        assert_eq!(told.contains(&"Exported"), last == "Exported", "{told:?}");
    }
}

#[test]
fn of_a_pool_that_is_gone_nothing_more_is_told() {
    let mut bench = mk_held();
    let gone = Update::PoolDeleted {
        key: mk_key("llm"),
        crd: mk_crd(),
    };
    bench.world.update(&mk_name("a"), gone, Moment::default());
    bench.plan(3, true);
    assert!(due(&bench, "a", 3).is_empty());
}

#[test]
fn what_did_not_fit_is_looked_at_again_where_there_is_room() {
    let mut bench = Bench::new(&["a", "b"]);
    let fill = |bench: &Bench| fill(bench.queues[&mk_name("a")].outbox(), Moment::default());
    export(&mut bench.world, "a", "llm");
    bench.annotate(DRAIN_SECONDS, "soon");
    fill(&bench);
    bench.plan(0, false);
    let fitting = |bench: &mut Bench| bench.teller.fitting(&bench.queues, Moment::default());
    bench.told("a");
    assert!(
        fitting(&mut bench).is_empty(),
        "who does not lead tells nothing"
    );
    fill(&bench);
    bench.plan(1, true);
    assert!(fitting(&mut bench).is_empty(), "there is no room");
    bench.told("a");
    assert_eq!(fitting(&mut bench), [mk_key("llm")].into());
    assert!(fitting(&mut bench).is_empty(), "once");
    bench.plan(2, true);
    assert!(bench.told("a").contains(&"InvalidExportAnnotation"));
}

#[test]
fn bad_annotations_are_told_with_what_they_should_be() {
    let mut bench = Bench::new(&["a", "b"]);
    let mut pool = mk_pool("llm", None);
    pool.annotations
        .insert(EXPORT_MODE.to_owned(), "EndpointMode".to_owned());
    let applied = Update::PoolApplied(pool);
    let changes = bench
        .world
        .update(&mk_name("a"), applied, Moment::default());
    assert!(changes.dirty.keys.contains(&mk_key("llm")), "it is planned");
    bench.plan(0, true);
    let letters = bench.queues[&mk_name("a")].outbox().drain();
    assert_eq!(letters.len(), 1, "{letters:?}");
    assert_eq!(letters[0].0, "InvalidExportAnnotation");
    assert!(
        letters[0].1.contains("set that to ClusterSet"),
        "{letters:?}"
    );
}

#[test]
fn overrides_that_are_ignored_are_told_together() {
    let mut bench = Bench::new(&["a", "b"]);
    export(&mut bench.world, "a", "llm");
    bench.annotate(HEALTH_PORT, "0");
    bench.annotate(HEALTH_SECRET, "other/creds");
    bench.plan(0, true);
    let letters = bench.queues[&mk_name("a")].outbox().drain();
    assert_eq!(letters.len(), 1, "{letters:?}");
    assert!(letters[0].1.contains(HEALTH_PORT), "{letters:?}");
    assert!(letters[0].1.contains(HEALTH_SECRET), "{letters:?}");
}

#[test]
fn what_stands_in_the_way_is_told_by_member() {
    let mut bench = Bench::new(&["a", "b", "c"]);
    export(&mut bench.world, "a", "llm");
    bench.settle();
    bench.plan(0, true);
    bench.told("a");
    let gone = Update::Namespaces(crate::index::update::Change::Deleted(Key::new("", NS)));
    bench.world.update(&mk_name("b"), gone, Moment::default());
    let mut foreign = member(&bench.world, "c").imports.items[&mk_key("llm")].clone();
    foreign.claim = Claim::Foreign;
    let foreign = Update::Imports(crate::index::update::Change::Applied(foreign));
    bench
        .world
        .update(&mk_name("c"), foreign, Moment::default());
    bench.plan(1, true);
    let told = bench.told("a");
    assert!(told.contains(&"NamespaceMissing"), "{told:?}");
    assert!(told.contains(&"ImportConflict"), "{told:?}");
}

#[rstest::rstest]
#[case::from_the_start(&[true, true])]
#[case::found_while_looking_on(&[false, false, true])]
fn a_rejected_address_is_told_and_counted_once(#[case] speaking: &[bool]) {
    let mut bench = Bench::new(&["a", "b"]);
    export(&mut bench.world, "a", "llm");
    let service = mk_service(crd::ServiceType::LoadBalancer, "127.0.0.1");
    let service = Update::Services(crate::index::update::Change::Applied(service));
    bench
        .world
        .update(&mk_name("a"), service, Moment::default());
    for (second, speaking) in (0..).zip(speaking) {
        bench.plan(second, *speaking);
    }
    let told = bench.told("a");
    assert!(told.contains(&"AddressRejected"), "{told:?}");
    let mut page = String::new();
    encode(&mut page, &bench.registry).expect("encodes");
    let line = r#"mci_rejected_addresses_total{cluster="a",reason="unroutable"} 1"#;
    assert!(page.contains(&format!("{line}\n")), "{page}");
}

#[test]
fn a_pool_that_is_gone_is_forgotten() {
    let mut bench = Bench::new(&["a", "b"]);
    export(&mut bench.world, "a", "llm");
    bench.settle();
    bench.plan(0, true);
    assert_eq!(bench.teller.seen.len(), 1);
    bench.teller.forget(&mk_name("a"));
    assert!(bench.teller.seen.is_empty());
}
