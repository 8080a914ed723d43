//! One test per cell of the fault table, named by its row.

use rstest::rstest;

use super::*;

const LOST: Fault = Fault::ConnectionLost;
const DENIED: Fault = Fault::AuthFailed;

/// A member in contact that exports the key and has its namespace.
const GOOD: Known = Known {
    tie: Tie::Member,
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

fn tied(tie: Tie) -> Known {
    // a refused member counts as silent
    let reach = match tie {
        Tie::Refused(_) => Reach::Lost(LOST),
        Tie::Member | Tie::Removed => Reach::Reachable,
    };
    Known { tie, reach, ..GOOD }
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
#[case::no_fault(GOOD, EntryFate::Publish)]
#[case::pool_deleted(
    exporting(ended(Evidence::PoolDeleted)),
    EntryFate::Drain(Evidence::PoolDeleted)
)]
#[case::pool_missing_from_a_complete_list(
    exporting(ended(Evidence::PoolAbsent)),
    EntryFate::Drain(Evidence::PoolAbsent)
)]
#[case::annotation_gone(
    exporting(ended(Evidence::AnnotationGone)),
    EntryFate::Drain(Evidence::AnnotationGone)
)]
#[case::annotation_invalid(
    exporting(ended(Evidence::AnnotationInvalid)),
    EntryFate::Drain(Evidence::AnnotationInvalid)
)]
#[case::pool_gone_and_then_silence(
    Known { reach: Reach::Stale(LOST), ..exporting(ended(Evidence::PoolDeleted)) },
    EntryFate::Drain(Evidence::PoolDeleted)
)]
#[case::namespace_deleted_in_x_before_its_pools(Known { namespace: NamespaceKnown::Missing, ..GOOD }, EntryFate::Publish)]
#[case::pools_crd_missing_or_new(
    exporting(ExportKnown::CrdMissing),
    EntryFate::Retain(Mark::CrdMissing)
)]
#[case::import_crd_absent(served(Flavour::Absent), EntryFate::Publish)]
#[case::import_crd_is_upstreams(served(Flavour::Upstream), EntryFate::Publish)]
#[case::silence(reached(Reach::Lost(LOST)), EntryFate::Retain(Mark::Silent(LOST)))]
#[case::long_silence(reached(Reach::Stale(LOST)), EntryFate::Retain(Mark::Stale(LOST)))]
#[case::silence_under_a_missing_crd(
    Known { reach: Reach::Lost(LOST), ..exporting(ExportKnown::CrdMissing) },
    EntryFate::Retain(Mark::Silent(LOST))
)]
#[case::silence_past_withdraw_after(
    Known { reach: Reach::Stale(LOST), ..exporting(ended(Evidence::WithdrawAfter)) },
    EntryFate::Remove(Evidence::WithdrawAfter)
)]
#[case::denied(reached(Reach::Lost(DENIED)), EntryFate::Retain(Mark::Silent(DENIED)))]
#[case::long_denied(reached(Reach::Stale(DENIED)), EntryFate::Retain(Mark::Stale(DENIED)))]
#[case::removed_from_the_inventory(tied(Tie::Removed), EntryFate::Remove(Evidence::MemberRemoved))]
#[case::removed_while_silent(
    Known { reach: Reach::Stale(LOST), ..tied(Tie::Removed) },
    EntryFate::Remove(Evidence::MemberRemoved)
)]
#[case::bad_credentials(
    tied(Tie::Refused(Refusal::BadCredentials)),
    EntryFate::Retain(Mark::Silent(LOST))
)]
#[case::another_uid(
    tied(Tie::Refused(Refusal::IdentityChanged)),
    EntryFate::Retain(Mark::Silent(LOST))
)]
#[case::guard(exporting(ExportKnown::Guarded), EntryFate::Retain(Mark::None))]
#[case::restart_while_x_is_down(
    Known { met: false, reach: Reach::Lost(LOST), ..exporting(ExportKnown::Unheard) },
    EntryFate::Carry(Mark::Silent(LOST))
)]
#[case::restart_while_x_is_down_for_long(
    Known { met: false, reach: Reach::Stale(LOST), ..exporting(ExportKnown::Unheard) },
    EntryFate::Carry(Mark::Stale(LOST))
)]
#[case::gateways_not_listed_yet(exporting(ExportKnown::PartsUnknown), EntryFate::Carry(Mark::None))]
#[case::too_many_exports(exporting(ExportKnown::OverCap), EntryFate::Carry(Mark::None))]
#[case::restart_and_x_not_all_listed(
    exporting(ExportKnown::Unheard),
    EntryFate::Carry(Mark::CrdMissing)
)]
fn entries_elsewhere(#[case] known: Known, #[case] expected: EntryFate) {
    assert_eq!(decide(known).entry, expected);
}

#[rstest]
#[case::no_fault(GOOD, ImportsFate::Apply(Flavour::Superset))]
#[case::pool_deleted_in_x(
    exporting(ended(Evidence::PoolDeleted)),
    ImportsFate::Apply(Flavour::Superset)
)]
#[case::namespace_deleted_in_x(
    Known { namespace: NamespaceKnown::Missing, ..GOOD },
    ImportsFate::Pause(Hold::NamespaceMissing)
)]
#[case::namespace_appears_in_x(Known { namespace: NamespaceKnown::Present, ..GOOD }, ImportsFate::Apply(Flavour::Superset))]
#[case::pools_crd_missing_or_new(
    exporting(ExportKnown::CrdMissing),
    ImportsFate::Apply(Flavour::Superset)
)]
#[case::import_crd_absent(served(Flavour::Absent), ImportsFate::Pause(Hold::CrdAbsent))]
#[case::imports_not_served(
    Known { imports: ImportsKnown::NotServed, import_crd: None, ..GOOD },
    ImportsFate::Pause(Hold::CrdAbsent)
)]
#[case::import_crd_hidden_from_us(Known { import_crd: None, ..GOOD }, ImportsFate::Apply(Flavour::Superset))]
#[case::import_crd_is_upstreams(served(Flavour::Upstream), ImportsFate::Apply(Flavour::Upstream))]
#[case::silence(reached(Reach::Lost(LOST)), ImportsFate::Queue(Flavour::Superset))]
#[case::denied(reached(Reach::Stale(DENIED)), ImportsFate::Queue(Flavour::Superset))]
#[case::removed_from_the_inventory(tied(Tie::Removed), ImportsFate::TakeAway)]
#[case::bad_credentials(
    tied(Tie::Refused(Refusal::BadCredentials)),
    ImportsFate::Pause(Hold::Unreachable)
)]
#[case::another_uid(
    tied(Tie::Refused(Refusal::IdentityChanged)),
    ImportsFate::Pause(Hold::IdentityChanged)
)]
#[case::guard(exporting(ExportKnown::Guarded), ImportsFate::Apply(Flavour::Superset))]
#[case::restart_while_x_is_down(
    Known { met: false, imports: ImportsKnown::No, reach: Reach::Lost(LOST), ..GOOD },
    ImportsFate::Pause(Hold::Unreachable)
)]
#[case::restart_while_x_denies(
    Known { met: false, imports: ImportsKnown::No, reach: Reach::Lost(DENIED), ..GOOD },
    ImportsFate::Pause(Hold::AuthFailed)
)]
fn imports_in_x(#[case] known: Known, #[case] expected: ImportsFate) {
    assert_eq!(decide(known).imports, expected);
}

#[rstest]
#[case::no_fault(GOOD, Word::Import)]
#[case::namespace_deleted_in_x(Known { namespace: NamespaceKnown::Missing, ..GOOD }, Word::NamespaceMissing)]
#[case::namespace_appears_in_x(Known { namespace: NamespaceKnown::Present, ..GOOD }, Word::Import)]
#[case::pools_crd_missing_or_new(exporting(ExportKnown::CrdMissing), Word::Import)]
#[case::import_crd_absent(served(Flavour::Absent), Word::Blocked(Hold::CrdAbsent))]
#[case::import_crd_is_upstreams(served(Flavour::Upstream), Word::Import)]
#[case::silence(reached(Reach::Lost(LOST)), Word::Blocked(Hold::Unreachable))]
#[case::silence_where_the_namespace_is_missing(
    Known { namespace: NamespaceKnown::Missing, ..reached(Reach::Stale(LOST)) },
    Word::Blocked(Hold::Unreachable)
)]
#[case::denied(reached(Reach::Stale(DENIED)), Word::Blocked(Hold::AuthFailed))]
#[case::removed_from_the_inventory(tied(Tie::Removed), Word::NotCounted)]
#[case::another_uid(
    tied(Tie::Refused(Refusal::IdentityChanged)),
    Word::Blocked(Hold::IdentityChanged)
)]
#[case::bad_credentials(
    tied(Tie::Refused(Refusal::BadCredentials)),
    Word::Blocked(Hold::Unreachable)
)]
#[case::guard(exporting(ExportKnown::Guarded), Word::Import)]
#[case::restart_while_x_is_down(
    Known { met: false, imports: ImportsKnown::No, reach: Reach::Lost(DENIED), ..GOOD },
    Word::Blocked(Hold::AuthFailed)
)]
fn words_in_others_exported(#[case] known: Known, #[case] expected: Word) {
    assert_eq!(decide(known).word, expected);
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
    let ties = [
        Tie::Member,
        Tie::Refused(Refusal::BadCredentials),
        Tie::Refused(Refusal::InsecureCredentials),
        Tie::Refused(Refusal::DuplicateCluster),
        Tie::Refused(Refusal::IdentityChanged),
    ];
    let exports = [
        ExportKnown::Unheard,
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
        for tie in ties {
            for export in exports {
                for import_crd in crds {
                    let known = Known {
                        tie,
                        export,
                        reach,
                        import_crd,
                        ..GOOD
                    };
                    let fate = decide(known).entry;
                    let stays = !matches!(fate, EntryFate::Drain(_) | EntryFate::Remove(_));
                    assert!(stays, "{known:?}: {fate:?}");
                }
            }
        }
    }
}

#[rstest]
#[case(EntryFate::Publish, "entry-published", "Exported")]
#[case(EntryFate::Retain(Mark::None), "entry-retained", "Retained")]
#[case(EntryFate::Retain(Mark::CrdMissing), "entry-retained", "CRDMissing")]
#[case(EntryFate::Carry(Mark::Silent(DENIED)), "entry-carried", "AuthFailed")]
#[case(EntryFate::Carry(Mark::Stale(DENIED)), "entry-carried", "Stale")]
#[case(EntryFate::Drain(Evidence::PoolDeleted), "export-ended", "PoolDeleted")]
#[case(
    EntryFate::Remove(Evidence::MemberRemoved),
    "entry-removed",
    "MemberRemoved"
)]
fn fates_of_entries_have_names(#[case] fate: EntryFate, #[case] rule: &str, #[case] reason: &str) {
    assert_eq!((fate.rule(), fate.reason()), (rule, reason));
}

#[rstest]
#[case(ImportsFate::Apply(Flavour::Superset), "import-applied", "Active")]
#[case(ImportsFate::Apply(Flavour::Upstream), "import-applied", "UpstreamCRD")]
#[case(ImportsFate::Queue(Flavour::Upstream), "import-queued", "Unreachable")]
#[case(ImportsFate::Pause(Hold::CrdAbsent), "import-paused", "CRDAbsent")]
#[case(ImportsFate::TakeAway, "import-taken-away", "MemberRemoved")]
fn fates_of_imports_have_names(
    #[case] fate: ImportsFate,
    #[case] rule: &str,
    #[case] reason: &str,
) {
    assert_eq!((fate.rule(), fate.reason()), (rule, reason));
}

#[rstest]
#[case(Word::Import, "counted-by-its-import", "Active")]
#[case(Word::Blocked(Hold::AuthFailed), "counted-as-missing", "AuthFailed")]
#[case(Word::NamespaceMissing, "named-not-counted", "NamespaceMissing")]
#[case(Word::NotCounted, "not-counted", "MemberRemoved")]
fn words_have_names(#[case] word: Word, #[case] rule: &str, #[case] reason: &str) {
    assert_eq!((word.rule(), word.reason()), (rule, reason));
}
