use std::collections::BTreeMap;

use prometheus_client::encoding::text::encode;

use super::*;
use crate::{
    fixtures::{mk_name, mk_world},
    overview::OverviewBuilder,
};

/// A page with one member, `a`, and one count of everything.
fn mk_page() -> (Metrics, Registry) {
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    metrics.add(&mk_name("a"));
    let member = metrics.member(&mk_name("a"));
    member.patched("ok");
    member.watch_failed("services", "Gone");
    member.rejected_address("Loopback");
    member.client_rebuilt("AuthFailed");
    metrics.withdrawn(Evidence::PoolDeleted, 1);
    metrics.propagated(Duration::from_millis(3));
    let mut builder = OverviewBuilder::default();
    builder.mark_changed(&mk_name("a"));
    let world = mk_world(&["a"]);
    let overview = builder.build(&world, &BTreeMap::new(), moment::Moment::default());
    metrics.set_overview(Arc::new(overview));
    (metrics, registry)
}

/// A page that has every metric, with its labels.
pub(crate) fn sample_page() -> String {
    text(&mk_page().1)
}

fn text(registry: &Registry) -> String {
    let mut text = String::new();
    encode(&mut text, registry).expect("encodes");
    text
}

#[test]
fn counters_and_gauges_bear_their_member() {
    let (_, registry) = mk_page();
    let page = text(&registry);
    for line in [
        r#"mci_patches_total{cluster="a",result="ok"} 1"#,
        r#"mci_watch_restarts_total{cluster="a",kind="services",reason="Gone"} 1"#,
        r#"mci_rejected_addresses_total{cluster="a",reason="Loopback"} 1"#,
        r#"mci_client_rebuilds_total{cluster="a",reason="AuthFailed"} 1"#,
        r#"mci_withdrawals_total{reason="PoolDeleted"} 1"#,
        r#"mci_withdrawals_total{reason="PoolAbsent"} 0"#,
        r#"mci_member_up{cluster="a"} 1"#,
        r#"mci_member_state{cluster="a",reason="Active"} 1"#,
        r#"mci_member_state{cluster="a",reason="AuthFailed"} 0"#,
        r#"mci_member_last_contact_seconds{cluster="a"} 0.0"#,
        r#"mci_member_crd_flavour{cluster="a",flavour="Superset"} 1"#,
        r#"mci_import_entries{cluster="a",ready="Unknown"} 0"#,
        r#"mci_queue_oldest_seconds{cluster="a"} 0.0"#,
        "mci_conflicts 0",
        "mci_isolation_guard 0",
        "mci_propagation_seconds_count 1",
    ] {
        assert!(page.contains(&format!("{line}\n")), "{line}\n{page}");
    }
}

#[test]
fn every_metric_has_a_help_text() {
    let (_, registry) = mk_page();
    let page = text(&registry);
    let typed = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    for line in typed {
        let name = line.split(' ').next().expect("a name");
        assert!(page.contains(&format!("# HELP {name} ")), "{name}\n{page}");
    }
}

#[test]
fn a_member_that_is_forgotten_leaves_no_series() {
    let (metrics, registry) = mk_page();
    let late = metrics.member(&mk_name("a"));
    metrics.forget(&mk_name("a"));
    metrics.set_overview(Arc::default());
    // late counts of its tasks
    late.patched("timeout");
    metrics.member(&mk_name("a")).patched("timeout");
    let page = text(&registry);
    assert!(!page.contains(r#"cluster="a""#), "{page}");
}
