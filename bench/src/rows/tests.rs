use std::collections::BTreeSet;

use super::*;

#[test]
fn each_figure_has_one_row() {
    let names: BTreeSet<&str> = ROWS.iter().map(|row| row.name).collect();
    assert_eq!(names.len(), ROWS.len());
}

/// Each of these stands in the design or the specification, in numbers of its own.
#[test]
fn the_goals_are_those_of_the_design() {
    let goals: [(&str, f64); 9] = [
        (
            "100 members, 50 exporters, TLS: event to all applied, p99",
            120.0,
        ),
        (
            "1000 members, 5 exporters, TLS: event to all sent, p99",
            100.0,
        ),
        (
            "100 members, 1 exporters, TLS: controller's CPU per write / the bare client's",
            1.5,
        ),
        (
            "100 members, 50 exporters, TLS: controller's CPU per write / the bare client's",
            2.5,
        ),
        (
            "1000 members, 5 exporters, TLS: controller's CPU per write / the bare client's",
            1.5,
        ),
        ("100 members x 50 exported pools: RSS", 150.0),
        ("100 members, 50 pools x 5 exporters: restart, writes", 0.0),
        ("failover after a crash: event to all applied", 17.0),
        ("failover after SIGTERM: event to all applied", 3.0),
    ];
    for (name, at_most) in goals {
        let goal = goal_of(name).expect(name);
        assert_eq!(goal.bound, Bound::AtMost(at_most), "{name}");
        assert_ne!(goal.set_by, SetBy::Ours, "{name}");
    }
    for (name, at_least) in [
        ("data path, pool: requests/s / without EPP", 0.45),
        (
            "data path, import in EndpointMode: requests/s / without EPP",
            0.35,
        ),
        (
            "data path, import in ParentMode: requests/s / without EPP",
            0.35,
        ),
    ] {
        let goal = goal_of(name).expect(name);
        assert_eq!(goal.bound, Bound::AtLeast(at_least), "{name}");
    }
    assert_eq!(goal_of("no figure"), None);
}
