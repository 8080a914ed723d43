use std::sync::Arc;

use moment::Moment;
use prometheus_client::registry::Registry;

use super::{members::LEAVING, *};
use crate::{
    fixtures::{export, first_lists, member, mk_key, mk_name, mk_policy, mk_world, settle},
    index::{member::Refusal, update::Update},
    member::Control,
    run::tests::mk_settings,
    write::action::Slot,
};
use mci_inventory::{Access, Credentials, Listing};

fn mk_supervisor() -> Supervisor {
    let settings = mk_settings("/".as_ref());
    let metrics = Metrics::register(&mut Registry::default());
    let health = Health::new(&[GATE_PART]);
    Supervisor::new(settings, Clock::start(), metrics, health, Claim::always())
}

/// The member's tasks report that it is the cluster `one`.
fn connected(supervisor: &mut Supervisor, name: &str) {
    let update = Update::Connected {
        uid: "one".to_owned(),
        clusterset: None,
    };
    send_update(supervisor, name, update);
}

/// Applies an update from the member's present tasks.
fn send_update(supervisor: &mut Supervisor, name: &str, update: Update) {
    let name = mk_name(name);
    let epoch = supervisor.members[&name].epoch;
    supervisor.apply_update(MemberUpdate {
        name,
        epoch,
        timed: (update, Moment::default()),
    });
}

/// What the member's tasks receive.
fn control(supervisor: &Supervisor, name: &str) -> Control {
    let control = supervisor.members[&mk_name(name)].control.as_ref();
    control.expect("credentials").borrow().clone()
}

#[tokio::test(start_paused = true)]
async fn a_member_that_leaves_goes_on_leaving_when_its_tasks_fail() {
    let mut supervisor = mk_supervisor();
    let name = mk_name("a");
    supervisor.admit(&name, &Credentials::for_tests(), None);
    supervisor.remove(&name);
    let until = supervisor.members[&name].leaving;
    assert!(until.is_some());
    supervisor.tasks.abort_all();
    let ended = supervisor.tasks.join_next_with_id().await.expect("a task");
    supervisor.ended(ended);
    assert_eq!(supervisor.members[&name].leaving, until);
    let member = &supervisor.planner.world().members[&name];
    assert_eq!(member.contact.link, Link::Removing);
    // never listed, so not known to be clean: it has its 30 s
    supervisor.tick();
    assert!(supervisor.members.contains_key(&name));
    tokio::time::advance(LEAVING).await;
    supervisor.tick();
    assert!(!supervisor.members.contains_key(&name));
}

#[tokio::test(start_paused = true)]
async fn a_cluster_is_accepted_under_one_name_only() {
    let mut supervisor = mk_supervisor();
    for name in ["a", "b"] {
        supervisor.admit(&mk_name(name), &Credentials::for_tests(), None);
    }
    connected(&mut supervisor, "b");
    assert_eq!(control(&supervisor, "b").accepted.as_deref(), Some("one"));
    connected(&mut supervisor, "a");
    assert_eq!(control(&supervisor, "a").accepted.as_deref(), Some("one"));
    let rival = control(&supervisor, "b");
    assert_eq!(rival.accepted, None);
    assert_eq!(rival.refused, Some(Refusal::DuplicateCluster));
}

#[tokio::test(start_paused = true)]
async fn updates_from_the_tasks_of_an_earlier_admission_are_dropped() {
    let mut supervisor = mk_supervisor();
    let name = mk_name("a");
    supervisor.admit(&name, &Credentials::for_tests(), None);
    let earlier = supervisor.members[&name].epoch;
    supervisor.tasks.abort_all();
    let ended = supervisor.tasks.join_next_with_id().await.expect("a task");
    supervisor.ended(ended);
    let epoch = supervisor.members[&name].epoch;
    assert_ne!(epoch, earlier, "started again");
    let link = |supervisor: &Supervisor| supervisor.planner.world().members[&name].contact.link;
    for (epoch, expected) in [
        (earlier, Link::Lost),
        (epoch + 1, Link::Lost),
        (epoch, Link::Live),
    ] {
        for update in first_lists(Vec::new(), Vec::new()) {
            supervisor.apply_update(MemberUpdate {
                name: name.clone(),
                epoch,
                timed: (update, Moment::default()),
            });
        }
        assert_eq!(link(&supervisor), expected, "{epoch}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_member_that_goes_on_under_another_name_is_forgotten_at_once() {
    let mut supervisor = mk_supervisor();
    for name in ["a", "b"] {
        supervisor.admit(&mk_name(name), &Credentials::for_tests(), None);
        connected(&mut supervisor, name);
    }
    let refused = control(&supervisor, "b");
    assert_eq!(refused.refused, Some(Refusal::DuplicateCluster));
    supervisor.remove(&mk_name("a"));
    // the guard waits to see who else left
    tokio::time::advance(std::time::Duration::from_secs(11)).await;
    supervisor.tick();
    assert!(!supervisor.members.contains_key(&mk_name("a")));
    let free = control(&supervisor, "b");
    assert_eq!(free.refused, None);
    assert!(free.version > refused.version, "it is tried at once");
    connected(&mut supervisor, "b");
    assert_eq!(control(&supervisor, "b").accepted.as_deref(), Some("one"));
}

fn mk_listing(access: Access, accepts: Option<&str>) -> Listing {
    let origin = crate::index::origin::Origin {
        accepted_identity: accepts.map(ToOwned::to_owned),
        ..crate::index::origin::Origin::default()
    };
    Listing {
        member: "a".to_owned(),
        origin: Arc::new(origin),
        access,
    }
}

#[tokio::test(start_paused = true)]
async fn a_member_is_tried_again_when_another_cluster_is_accepted_and_not_for_a_label() {
    let mut supervisor = mk_supervisor();
    let name = mk_name("a");
    let ready = || Access::Ready(Box::new(Credentials::for_tests()));
    supervisor.upsert(&name, &mk_listing(ready(), None));
    supervisor.upsert(&name, &mk_listing(ready(), None));
    assert_eq!(control(&supervisor, "a").version, 0);
    supervisor.upsert(&name, &mk_listing(ready(), Some("u-2")));
    assert_eq!(control(&supervisor, "a").version, 1);
}

#[tokio::test(start_paused = true)]
async fn a_spoilt_object_keeps_the_credentials_that_it_had_and_is_reported() {
    let mut supervisor = mk_supervisor();
    let name = mk_name("a");
    let ready = Access::Ready(Box::new(Credentials::for_tests()));
    supervisor.upsert(&name, &mk_listing(ready, None));
    let spoilt = Access::refused(Refusal::BadCredentials, "no kubeconfig");
    supervisor.upsert(&name, &mk_listing(spoilt, None));
    let handle = &supervisor.members[&name];
    assert!(handle.control.is_some());
    let detail = handle.refused.as_ref().map(|refused| &*refused.detail);
    assert_eq!(detail, Some("no kubeconfig"));
    let member = &supervisor.planner.world().members[&name];
    assert_eq!(member.contact.link, Link::Connecting, "it is not refused");
}

#[tokio::test(start_paused = true)]
async fn a_member_whose_plugin_has_not_answered_is_one_all_the_same() {
    let mut supervisor = mk_supervisor();
    let name = mk_name("a");
    supervisor.upsert(&name, &mk_listing(Access::Pending, None));
    let link = |supervisor: &Supervisor| supervisor.planner.world().members[&name].contact.link;
    assert_eq!(link(&supervisor), Link::Connecting);
    let refused = Access::refused(Refusal::NoAccessProvider, "none");
    supervisor.upsert(&name, &mk_listing(refused, None));
    assert_eq!(link(&supervisor), Link::Refused(Refusal::NoAccessProvider));
    let ready = Access::Ready(Box::new(Credentials::for_tests()));
    supervisor.upsert(&name, &mk_listing(ready, None));
    assert!(supervisor.members[&name].control.is_some());
}

#[tokio::test(start_paused = true)]
async fn what_a_queue_lost_is_planned_again_every_ten_minutes() {
    let mut world = mk_world(&["a", "b"]);
    export(&mut world, "a", "llm");
    settle(&mut world, &mk_policy(), Moment::default());
    let orphan = member(&world, "b").imports.items[&mk_key("llm")].clone();
    let mut supervisor = mk_supervisor();
    // members without tasks send no further updates
    for (name, imports) in [("a", Vec::new()), ("b", vec![orphan])] {
        supervisor.expect(&mk_name(name));
        for update in first_lists(Vec::new(), imports) {
            let update = match update {
                Update::Connected { clusterset, .. } => Update::Connected {
                    uid: format!("cluster-{name}"),
                    clusterset,
                },
                other => other,
            };
            send_update(&mut supervisor, name, update);
        }
    }
    supervisor.inventory(InventoryEvent::Listed);
    let queue = supervisor.members[&mk_name("b")].queue.clone();
    let slot = Slot::Import(mk_key("llm"));
    let (_told, inventory) = mpsc::channel(1);
    let drain = CancellationToken::new();
    let mut running = JoinSet::new();
    running.spawn(supervisor.run(inventory, drain.clone()));
    let start = Instant::now();
    let is_planned_at = async |minute: f64| {
        sleep_until(start + Duration::from_mins(1).mul_f64(minute)).await;
        queue.lane_stats(&slot).queued
    };
    // nobody exports it any more
    assert!(is_planned_at(2.0).await);
    queue.withdraw(&slot);
    assert!(!is_planned_at(7.9).await, "nothing has happened since");
    assert!(is_planned_at(12.1).await);
    queue.withdraw(&slot);
    // the next pass is 8 to 12 minutes after the first
    assert!(!is_planned_at(15.9).await, "nothing has happened since");
    assert!(is_planned_at(24.2).await);
    drain.cancel();
    let ended = running.join_next().await.expect("a task");
    assert!(ended.expect("no panic").is_ok());
}
