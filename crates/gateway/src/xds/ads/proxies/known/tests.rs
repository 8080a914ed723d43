//! What follows from what several replicas know.

use bytes::Bytes;
use rstest::rstest;

use super::*;
use crate::xds::{Kind, Resource};

use std::sync::Arc;

const VERSION: u64 = 7;

fn id(version: u64) -> ResourceId {
    (Kind::Listener, "edge/80".to_owned(), version)
}

/// Envoys of one replica: how many, whether ready ones serve the edge, and how many refuse it, if it was refused.
fn mk_known(connected: usize, is_ready: bool, by: Option<usize>, others_serve: bool) -> Known {
    let verdict = |by| Verdict {
        message: "bad".to_owned(),
        by,
        of: connected,
        others_serve,
    };
    let served = is_ready.then(|| "edge/80".to_owned());
    Known {
        connected,
        served: served.into_iter().collect(),
        refused: by
            .map(|by| (id(VERSION), verdict(by)))
            .into_iter()
            .collect(),
        is_partial: false,
    }
}

/// How many refuse it, of how many, and whether others serve.
fn said(all: &[Known]) -> Option<(usize, usize, bool)> {
    let mut snapshot = Snapshot::default();
    let resource = Resource {
        version: VERSION,
        bytes: Bytes::new(),
        needs_endpoints: false,
    };
    let resource = Arc::new(resource);
    snapshot.listeners.insert("edge/80".to_owned(), resource);
    let merged = merged(all.iter(), &snapshot);
    let verdict = merged.get(&id(VERSION))?;
    Some((verdict.by, verdict.of, verdict.others_serve))
}

#[rstest]
#[case::one_replica(&[mk_known(2, true, Some(1), true)], Some((1, 2, true)))]
#[case::the_other_serves(
    &[mk_known(1, false, Some(1), false), mk_known(2, true, None, false)],
    Some((1, 3, true))
)]
#[case::no_one_is_ready_at_the_other(
    &[mk_known(1, false, Some(1), false), mk_known(2, false, None, false)],
    Some((1, 3, false))
)]
#[case::both_refuse(
    &[mk_known(1, true, Some(1), false), mk_known(1, true, Some(1), false)],
    Some((2, 2, false))
)]
#[case::only_the_other_knows(
    &[Known::default(), mk_known(1, true, Some(1), false)],
    Some((1, 1, false))
)]
#[case::gone_at_one_and_not_judged_yet(
    &[mk_known(0, false, Some(0), false), mk_known(1, false, None, false)],
    Some((0, 1, false))
)]
#[case::gone_at_one_and_served_at_the_other(
    &[mk_known(0, false, Some(0), false), mk_known(1, true, None, false)],
    None
)]
#[case::gone_at_one_and_refused_at_the_other(
    &[mk_known(0, false, Some(0), false), mk_known(1, false, Some(1), false)],
    Some((1, 1, false))
)]
fn a_refusal_is_judged_by_the_envoys_of_all_replicas(
    #[case] all: &[Known],
    #[case] expected: Option<(usize, usize, bool)>,
) {
    assert_eq!(said(all), expected);
}

/// What has no place in an entry may be refused as well.
#[test]
fn what_a_replica_does_not_name_is_served_only_where_it_names_all() {
    let refuses = mk_known(1, true, Some(1), false);
    let mut other = mk_known(1, true, None, false);
    other.is_partial = true;
    assert_eq!(said(&[refuses, other]), Some((1, 2, false)));
}

#[test]
fn what_is_said_of_another_version_says_nothing() {
    let mut other = mk_known(1, true, None, false);
    let verdict = Verdict {
        message: "bad".to_owned(),
        by: 1,
        of: 1,
        others_serve: false,
    };
    other.refused.insert(id(VERSION + 1), verdict);
    assert_eq!(said(std::slice::from_ref(&other)), None);
    let refuses = mk_known(1, false, Some(1), false);
    assert_eq!(said(&[refuses, other]), Some((1, 2, true)));
}
