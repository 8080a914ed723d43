//! One test per cell of the fault table, named by its row.

use rstest::rstest;

use super::{
    EntryAction::{Carry, Drain, Publish, Remove, Retain},
    ImportAction::{Apply, Pause, Queue, TakeAway},
    *,
};

const LOST: Fault = Fault::ConnectionLost;
const DENIED: Fault = Fault::AuthFailed;

/// A member in contact that exports the key and has its namespace.
const GOOD: Known = Known {
    membership: Membership::Member,
    export: ExportKnown::Asked,
    reach: Reach::Reachable,
    exports_denied: None,
    met: true,
    import_crd: Some(Flavour::Superset),
    imports: ImportsKnown::Listed,
    namespace: NamespaceKnown::Present,
};

fn exporting(export: ExportKnown) -> Known {
    Known { export, ..GOOD }
}

fn reached(reach: Reach) -> Known {
    Known { reach, ..GOOD }
}

fn removed() -> Known {
    Known {
        membership: Membership::Removed,
        ..GOOD
    }
}

/// It counts as silent.
fn refused(refusal: Refusal) -> Known {
    Known {
        membership: Membership::Refused(refusal),
        ..reached(Reach::Lost(LOST))
    }
}

fn served(flavour: Flavour) -> Known {
    Known {
        import_crd: Some(flavour),
        ..GOOD
    }
}

const fn ended(evidence: Evidence) -> ExportKnown {
    ExportKnown::Ended(evidence)
}

#[rstest]
#[case::no_fault(GOOD, Publish)]
#[case::pool_deleted(exporting(ended(Evidence::PoolDeleted)), Drain(Evidence::PoolDeleted))]
#[case::pool_missing_from_a_complete_list(
    exporting(ended(Evidence::PoolAbsent)),
    Drain(Evidence::PoolAbsent)
)]
#[case::annotation_gone(
    exporting(ended(Evidence::AnnotationGone)),
    Drain(Evidence::AnnotationGone)
)]
#[case::annotation_invalid(
    exporting(ended(Evidence::AnnotationInvalid)),
    Drain(Evidence::AnnotationInvalid)
)]
#[case::pool_gone_and_then_silence(
    Known { reach: Reach::Stale(LOST), ..exporting(ended(Evidence::PoolDeleted)) },
    Drain(Evidence::PoolDeleted)
)]
#[case::namespace_deleted_in_x_before_its_pools(Known { namespace: NamespaceKnown::Missing, ..GOOD }, Publish)]
#[case::pools_crd_missing_or_new(exporting(ExportKnown::CrdMissing), Retain(Mark::CrdMissing))]
#[case::import_crd_absent(served(Flavour::Absent), Publish)]
#[case::import_crd_is_upstreams(served(Flavour::Upstream), Publish)]
#[case::silence(reached(Reach::Lost(LOST)), Retain(Mark::Silent(LOST)))]
#[case::long_silence(reached(Reach::Stale(LOST)), Retain(Mark::Stale(LOST)))]
#[case::silence_under_a_missing_crd(
    Known { reach: Reach::Lost(LOST), ..exporting(ExportKnown::CrdMissing) },
    Retain(Mark::Silent(LOST))
)]
#[case::silence_past_withdraw_after(
    Known { reach: Reach::Stale(LOST), ..exporting(ended(Evidence::WithdrawAfter)) },
    Remove(Evidence::WithdrawAfter)
)]
#[case::denied(reached(Reach::Lost(DENIED)), Retain(Mark::Silent(DENIED)))]
#[case::long_denied(reached(Reach::Stale(DENIED)), Retain(Mark::Stale(DENIED)))]
#[case::removed_from_the_inventory(removed(), Remove(Evidence::MemberRemoved))]
#[case::removed_while_silent(
    Known { reach: Reach::Stale(LOST), ..removed() },
    Remove(Evidence::MemberRemoved)
)]
#[case::bad_credentials(refused(Refusal::BadCredentials), Retain(Mark::Silent(LOST)))]
#[case::another_uid(refused(Refusal::IdentityChanged), Retain(Mark::Silent(LOST)))]
#[case::guard(exporting(ExportKnown::Guarded), Retain(Mark::None))]
#[case::restart_while_x_is_down(
    Known { met: false, reach: Reach::Lost(LOST), ..exporting(ExportKnown::NotSeen) },
    Carry(Mark::Silent(LOST))
)]
#[case::restart_while_x_is_down_for_long(
    Known { met: false, reach: Reach::Stale(LOST), ..exporting(ExportKnown::NotSeen) },
    Carry(Mark::Stale(LOST))
)]
#[case::gateways_not_listed_yet(exporting(ExportKnown::PartsUnknown), Carry(Mark::None))]
#[case::too_many_exports(exporting(ExportKnown::OverCap), Carry(Mark::None))]
#[case::restart_and_x_not_all_listed(exporting(ExportKnown::NotSeen), Carry(Mark::CrdMissing))]
fn entries_elsewhere(#[case] known: Known, #[case] expected: EntryAction) {
    assert_eq!(decide(known).entry, expected);
}

#[rstest]
#[case::no_fault(GOOD, Apply(Flavour::Superset))]
#[case::pool_deleted_in_x(exporting(ended(Evidence::PoolDeleted)), Apply(Flavour::Superset))]
#[case::namespace_deleted_in_x(
    Known { namespace: NamespaceKnown::Missing, ..GOOD },
    Pause(Hold::NamespaceMissing)
)]
#[case::namespace_appears_in_x(Known { namespace: NamespaceKnown::Present, ..GOOD }, Apply(Flavour::Superset))]
#[case::pools_crd_missing_or_new(exporting(ExportKnown::CrdMissing), Apply(Flavour::Superset))]
#[case::import_crd_absent(served(Flavour::Absent), Pause(Hold::CrdAbsent))]
#[case::imports_not_served(
    Known { imports: ImportsKnown::NotServed, import_crd: None, ..GOOD },
    Pause(Hold::CrdAbsent)
)]
#[case::import_crd_hidden_from_us(Known { import_crd: None, ..GOOD }, Apply(Flavour::Superset))]
#[case::import_crd_is_upstreams(served(Flavour::Upstream), Apply(Flavour::Upstream))]
#[case::silence(reached(Reach::Lost(LOST)), Queue(Flavour::Superset))]
#[case::denied(reached(Reach::Stale(DENIED)), Queue(Flavour::Superset))]
#[case::removed_from_the_inventory(removed(), TakeAway)]
#[case::bad_credentials(refused(Refusal::BadCredentials), Pause(Hold::Unreachable))]
#[case::another_uid(refused(Refusal::IdentityChanged), Pause(Hold::IdentityChanged))]
#[case::guard(exporting(ExportKnown::Guarded), Apply(Flavour::Superset))]
#[case::restart_while_x_is_down(
    Known { met: false, imports: ImportsKnown::No, reach: Reach::Lost(LOST), ..GOOD },
    Pause(Hold::Unreachable)
)]
#[case::restart_while_x_denies(
    Known { met: false, imports: ImportsKnown::No, reach: Reach::Lost(DENIED), ..GOOD },
    Pause(Hold::AuthFailed)
)]
fn imports_in_x(#[case] known: Known, #[case] expected: ImportAction) {
    assert_eq!(decide(known).imports, expected);
}

#[rstest]
#[case::no_fault(GOOD, CountedAs::Import)]
#[case::namespace_deleted_in_x(Known { namespace: NamespaceKnown::Missing, ..GOOD }, CountedAs::NamespaceMissing)]
#[case::namespace_appears_in_x(Known { namespace: NamespaceKnown::Present, ..GOOD }, CountedAs::Import)]
#[case::pools_crd_missing_or_new(exporting(ExportKnown::CrdMissing), CountedAs::Import)]
#[case::import_crd_absent(served(Flavour::Absent), CountedAs::Blocked(Hold::CrdAbsent))]
#[case::import_crd_is_upstreams(served(Flavour::Upstream), CountedAs::Import)]
#[case::silence(reached(Reach::Lost(LOST)), CountedAs::Blocked(Hold::Unreachable))]
#[case::silence_where_the_namespace_is_missing(
    Known { namespace: NamespaceKnown::Missing, ..reached(Reach::Stale(LOST)) },
    CountedAs::Blocked(Hold::Unreachable)
)]
#[case::denied(reached(Reach::Stale(DENIED)), CountedAs::Blocked(Hold::AuthFailed))]
#[case::removed_from_the_inventory(removed(), CountedAs::NotCounted)]
#[case::another_uid(
    refused(Refusal::IdentityChanged),
    CountedAs::Blocked(Hold::IdentityChanged)
)]
#[case::bad_credentials(
    refused(Refusal::BadCredentials),
    CountedAs::Blocked(Hold::Unreachable)
)]
#[case::guard(exporting(ExportKnown::Guarded), CountedAs::Import)]
#[case::restart_while_x_is_down(
    Known { met: false, imports: ImportsKnown::No, reach: Reach::Lost(DENIED), ..GOOD },
    CountedAs::Blocked(Hold::AuthFailed)
)]
fn what_others_count_it_as(#[case] known: Known, #[case] expected: CountedAs) {
    assert_eq!(decide(known).counted_as, expected);
}

#[rstest]
#[case::pool_deleted(Evidence::PoolDeleted, Removal::Drain, Removal::Drain)]
#[case::pool_absent(Evidence::PoolAbsent, Removal::Drain, Removal::Held)]
#[case::annotation_gone(Evidence::AnnotationGone, Removal::Drain, Removal::Drain)]
#[case::annotation_invalid(Evidence::AnnotationInvalid, Removal::Drain, Removal::Drain)]
#[case::member_removed(Evidence::MemberRemoved, Removal::AtOnce, Removal::Held)]
#[case::withdraw_after(Evidence::WithdrawAfter, Removal::AtOnce, Removal::Held)]
fn evidence_without_and_under_the_guard(
    #[case] evidence: Evidence,
    #[case] free: Removal,
    #[case] guarded: Removal,
) {
    assert_eq!(on_evidence(evidence, false), free);
    assert_eq!(on_evidence(evidence, true), guarded);
}

/// Whatever is known, an entry goes only by evidence.
#[test]
fn nothing_but_evidence_removes_an_entry() {
    let reaches = [
        Reach::Reachable,
        Reach::Lost(LOST),
        Reach::Stale(LOST),
        Reach::Lost(DENIED),
        Reach::Stale(DENIED),
    ];
    let memberships = [
        Membership::Member,
        Membership::Refused(Refusal::BadCredentials),
        Membership::Refused(Refusal::InsecureCredentials),
        Membership::Refused(Refusal::DuplicateCluster),
        Membership::Refused(Refusal::IdentityChanged),
    ];
    let exports = [
        ExportKnown::NotSeen,
        ExportKnown::Asked,
        ExportKnown::CrdMissing,
        ExportKnown::Guarded,
        ExportKnown::OverCap,
        ExportKnown::PartsUnknown,
    ];
    let crds = [
        None,
        Some(Flavour::Superset),
        Some(Flavour::Upstream),
        Some(Flavour::Absent),
    ];
    for reach in reaches {
        for membership in memberships {
            for export in exports {
                for import_crd in crds {
                    let known = Known {
                        membership,
                        export,
                        reach,
                        import_crd,
                        ..GOOD
                    };
                    let action = decide(known).entry;
                    let stays = !matches!(action, Drain(_) | Remove(_));
                    assert!(stays, "{known:?}: {action:?}");
                }
            }
        }
    }
}

#[rstest]
#[case(Publish, "entry-published", "Exported")]
#[case(Retain(Mark::None), "entry-retained", "Retained")]
#[case(Retain(Mark::CrdMissing), "entry-retained", "CRDMissing")]
#[case(Carry(Mark::Silent(DENIED)), "entry-carried", "AuthFailed")]
#[case(Carry(Mark::Stale(DENIED)), "entry-carried", "Stale")]
#[case(Drain(Evidence::PoolDeleted), "export-ended", "PoolDeleted")]
#[case(Remove(Evidence::MemberRemoved), "entry-removed", "MemberRemoved")]
fn actions_on_entries_have_names(
    #[case] action: EntryAction,
    #[case] rule: &str,
    #[case] reason: &str,
) {
    assert_eq!((action.rule(), action.reason()), (rule, reason));
}

#[rstest]
#[case(Apply(Flavour::Superset), "import-applied", "Active")]
#[case(Apply(Flavour::Upstream), "import-applied", "UpstreamCRD")]
#[case(Queue(Flavour::Upstream), "import-queued", "Unreachable")]
#[case(Pause(Hold::CrdAbsent), "import-paused", "CRDAbsent")]
#[case(TakeAway, "import-taken-away", "MemberRemoved")]
fn actions_on_imports_have_names(
    #[case] action: ImportAction,
    #[case] rule: &str,
    #[case] reason: &str,
) {
    assert_eq!((action.rule(), action.reason()), (rule, reason));
}

#[rstest]
#[case(CountedAs::Import, "counted-by-its-import", "Active")]
#[case(
    CountedAs::Blocked(Hold::AuthFailed),
    "counted-as-missing",
    "AuthFailed"
)]
#[case(CountedAs::NamespaceMissing, "named-not-counted", "NamespaceMissing")]
#[case(CountedAs::NotCounted, "not-counted", "MemberRemoved")]
fn ways_to_count_have_names(
    #[case] counted_as: CountedAs,
    #[case] rule: &str,
    #[case] reason: &str,
) {
    assert_eq!((counted_as.rule(), counted_as.reason()), (rule, reason));
}
