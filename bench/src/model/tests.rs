use super::*;

const STALE_AFTER: Duration = Duration::from_secs(10);
/// Since then the import in [`IMPORTER`] lists [`EXPORTER`], which exports [`POOL`] since then.
const START: u64 = 1;
const EXPORTER: Member = 0;
const IMPORTER: Member = 1;
const POOL: Pool = 0;

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn mk_import(entries: &[Member], names: &[Member]) -> Import {
    Import {
        entries: entries.iter().copied().collect(),
        names: names.iter().copied().collect(),
    }
}

fn mk_model() -> Model {
    let mut model = Model::new(3, STALE_AFTER);
    model.exported(at(START), EXPORTER, POOL);
    let listed = mk_import(&[EXPORTER], &[EXPORTER]);
    assert!(model.changed(at(START), IMPORTER, POOL, listed).is_empty());
    model
}

/// Whether the loss of the entry at that moment is found; `named`: the import still names the exporter.
fn found(model: &mut Model, seconds: u64, named: bool) -> bool {
    let names: &[Member] = if named { &[EXPORTER] } else { &[] };
    let wrong = model.changed(at(seconds), IMPORTER, POOL, mk_import(&[], names));
    assert!(wrong.len() <= 1, "{wrong:?}");
    !wrong.is_empty()
}

/// What a fault excuses of an entry of a pool that is exported all the while.
#[test]
fn each_fault_excuses_what_the_table_says() {
    use Excuse::{Any, Delay, EntryIfNamed, Nothing};
    use Fault::*;
    use Side::{Exporter, Importer};
    let table = [
        (Stopped, Exporter, Delay),
        (Stopped, Importer, Delay),
        (Hung, Exporter, Delay),
        (Hung, Importer, Delay),
        (Broken, Exporter, Delay),
        (Broken, Importer, Delay),
        (PoolsCrdGone, Exporter, Delay),
        (PoolsCrdGone, Importer, Nothing),
        (UpstreamCrd, Exporter, Nothing),
        (UpstreamCrd, Importer, EntryIfNamed),
        (NamespaceGone, Exporter, Any),
        (NamespaceGone, Importer, Any),
        (Removed, Exporter, Any),
        (Removed, Importer, Any),
        (RemovedWithMost, Exporter, Delay),
        (RemovedWithMost, Importer, Delay),
    ];
    for (fault, side, expected) in table {
        assert_eq!(excuse(fault, side), expected, "{fault:?} {side:?}");
        let member = if side == Exporter { EXPORTER } else { IMPORTER };
        for named in [false, true] {
            let excused = expected == Any || (named && expected == EntryIfNamed);
            let lose = |seconds| {
                let mut model = mk_model();
                model.begin(at(10), fault, member);
                model.end(at(20), fault, member);
                if fault == NamespaceGone {
                    model.exported(at(20), EXPORTER, POOL);
                }
                found(&mut model, seconds, named)
            };
            let case = format!("{fault:?} {side:?}, named: {named}");
            assert!(lose(9), "before: {case}");
            assert_eq!(lose(15), !excused, "meanwhile: {case}");
            assert_eq!(lose(27), !excused, "soon after: {case}");
            assert!(lose(29), "after the allowance: {case}");
        }
    }
}

#[test]
fn an_entry_that_goes_without_evidence_is_found_and_the_message_says_what_is_known() {
    let mut model = mk_model();
    model.begin(at(4), Fault::Hung, EXPORTER);
    let wrong = model.changed(at(5), IMPORTER, POOL, Import::default());
    let expected = "at 5.000 s the entry of member 0 for pool 0 went from member 1 without evidence (exported since 1.0 s; \
                    member 0 Hung since 4.0 s)";
    assert_eq!(wrong, [expected]);
    // found once
    assert!(
        model
            .changed(at(6), IMPORTER, POOL, Import::default())
            .is_empty()
    );
}

#[test]
fn a_name_that_goes_without_evidence_is_found_too() {
    let mut model = mk_model();
    let import = mk_import(&[EXPORTER], &[]);
    assert_eq!(model.changed(at(5), IMPORTER, POOL, import).len(), 1);
}

#[test]
fn an_export_that_ended_may_be_acted_on_for_the_allowance_after_it_began_again() {
    let lose = |seconds| {
        let mut model = mk_model();
        model.unexported(at(10), EXPORTER, POOL);
        model.exported(at(12), EXPORTER, POOL);
        found(&mut model, seconds, false)
    };
    assert!(lose(9));
    assert!(!lose(10) && !lose(12) && !lose(17));
    assert!(lose(18), "10 s and the allowance");
    // another exporter's end is no evidence
    let mut model = mk_model();
    model.exported(at(2), 2, POOL);
    model.unexported(at(10), 2, POOL);
    assert!(found(&mut model, 11, false));
}

/// Of a pool whose export ended at 10 s and began again at 12 s: until when its loss is excused.
#[test]
fn faults_that_delay_prolong_what_evidence_excuses() {
    type Do = fn(&mut Model);
    let cases: [(&str, Do, u64); 9] = [
        ("none", |_| {}, 18),
        (
            "exporter down meanwhile",
            |model| {
                model.begin(at(9), Fault::Stopped, EXPORTER);
                model.end(at(30), Fault::Stopped, EXPORTER);
            },
            30 + 35 + 8,
        ),
        (
            "importer hung meanwhile",
            |model| {
                model.begin(at(11), Fault::Hung, IMPORTER);
                model.end(at(30), Fault::Hung, IMPORTER);
            },
            30 + 35 + 8,
        ),
        (
            "one after the other",
            |model| {
                model.begin(at(9), Fault::Broken, EXPORTER);
                model.end(at(9), Fault::Broken, EXPORTER);
                model.begin(at(20), Fault::Broken, IMPORTER);
                model.end(at(20), Fault::Broken, IMPORTER);
            },
            20 + 5 + 8,
        ),
        (
            "too late to matter",
            |model| {
                model.begin(at(19), Fault::Stopped, EXPORTER);
                model.end(at(30), Fault::Stopped, EXPORTER);
            },
            18,
        ),
        (
            "over before",
            |model| {
                model.begin(at(2), Fault::Broken, EXPORTER);
                model.end(at(2), Fault::Broken, EXPORTER);
            },
            18,
        ),
        (
            "somebody else's",
            |model| {
                model.begin(at(9), Fault::Stopped, 2);
                model.end(at(30), Fault::Stopped, 2);
            },
            18,
        ),
        (
            "upstream's import CRD, which hides nothing of its exporter",
            |model| {
                model.begin(at(11), Fault::UpstreamCrd, IMPORTER);
                model.end(at(30), Fault::UpstreamCrd, IMPORTER);
            },
            18,
        ),
        (
            "a restart",
            |model| {
                model.stopped(at(9));
                model.restarted(at(16));
            },
            16 + 10 + 8,
        ),
    ];
    for (case, prepare, until) in cases {
        let lose = |seconds| {
            let mut model = mk_model();
            model.unexported(at(10), EXPORTER, POOL);
            model.exported(at(12), EXPORTER, POOL);
            prepare(&mut model);
            found(&mut model, seconds, false)
        };
        assert!(!lose(until - 1), "{case}");
        assert!(lose(until), "{case}");
    }
}

#[test]
fn a_restart_is_no_evidence() {
    let mut model = mk_model();
    model.stopped(at(5));
    assert!(found(&mut model, 6, false));
}

#[test]
fn pools_that_do_not_come_back_with_their_crd_may_go_after_stale_after() {
    let lose = |seconds, back: &[Pool]| {
        let mut model = mk_model();
        model.begin(at(10), Fault::PoolsCrdGone, EXPORTER);
        model.pools_crd_back(at(20), EXPORTER, &back.iter().copied().collect());
        model.end(at(20), Fault::PoolsCrdGone, EXPORTER);
        (
            found(&mut model, seconds, false),
            model.wanted(at(seconds), IMPORTER, POOL).is_empty(),
        )
    };
    assert_eq!(lose(29, &[]), (true, false));
    assert_eq!(lose(30, &[]), (false, true));
    assert_eq!(lose(30, &[POOL]), (true, false));
    // one that is exported again in time never ended
    let mut model = mk_model();
    model.begin(at(10), Fault::PoolsCrdGone, EXPORTER);
    model.pools_crd_back(at(20), EXPORTER, &BTreeSet::new());
    model.exported(at(25), EXPORTER, POOL);
    assert!(found(&mut model, 31, false));
}

#[test]
fn an_importer_without_its_namespace_has_nothing_and_exports_nothing() {
    let mut model = mk_model();
    model.exported(at(2), IMPORTER, POOL);
    model.begin(at(3), Fault::NamespaceGone, IMPORTER);
    assert!(!found(&mut model, 3, false));
    assert!(model.wanted(at(4), IMPORTER, POOL).is_empty());
    assert!(model.wanted(at(4), EXPORTER, POOL).is_empty());
    model.end(at(5), Fault::NamespaceGone, IMPORTER);
    assert_eq!(model.wanted(at(5), IMPORTER, POOL), BTreeSet::from([0]));
    assert!(!model.exports(at(5), IMPORTER, POOL));
}

#[test]
fn nobody_lists_itself_but_may_be_named() {
    let mut model = mk_model();
    let own = mk_import(&[EXPORTER], &[EXPORTER, IMPORTER]);
    assert!(model.changed(at(2), IMPORTER, POOL, own).is_empty());
    // its own name goes with its own export alone
    let other = mk_import(&[EXPORTER], &[EXPORTER]);
    assert!(model.changed(at(3), IMPORTER, POOL, other).is_empty());
    let own = mk_import(&[EXPORTER, IMPORTER], &[EXPORTER]);
    assert_eq!(model.changed(at(4), IMPORTER, POOL, own).len(), 1);
    // nor does it stay when the last other exporter goes
    let mut model = mk_model();
    model.exported(at(2), IMPORTER, POOL);
    let own = mk_import(&[EXPORTER], &[EXPORTER, IMPORTER]);
    assert!(model.changed(at(2), IMPORTER, POOL, own).is_empty());
    model.unexported(at(3), EXPORTER, POOL);
    assert!(!found(&mut model, 3, false));
}

#[test]
fn what_was_never_exported_may_go() {
    let mut model = mk_model();
    let forged = mk_import(&[EXPORTER, 2], &[EXPORTER, 2]);
    assert!(model.changed(at(2), IMPORTER, POOL, forged).is_empty());
    let clean = mk_import(&[EXPORTER], &[EXPORTER]);
    assert!(model.changed(at(3), IMPORTER, POOL, clean).is_empty());
}

#[test]
fn the_tally_says_how_much_could_not_go_unseen() {
    let mut model = mk_model();
    model.exported(at(START), 2, POOL);
    let both = mk_import(&[EXPORTER, 2], &[EXPORTER, 2]);
    model.changed(at(2), IMPORTER, POOL, both);
    model.tally(at(3));
    assert!((model.strictness() - 1.0).abs() < 1e-9);
    model.unexported(at(4), 2, POOL);
    model.tally(at(5));
    assert!((model.strictness() - 0.75).abs() < 1e-9);
}

#[test]
fn what_is_long_over_is_forgotten_and_what_holds_is_not() {
    let mut model = mk_model();
    for second in 10..20 {
        model.begin(at(second), Fault::Broken, EXPORTER);
        model.end(at(second), Fault::Broken, EXPORTER);
        model.unexported(at(second), 2, POOL);
        model.exported(at(second), 2, POOL);
    }
    model.begin(at(20), Fault::Hung, EXPORTER);
    model.tally(at(3600));
    assert_eq!(model.faults[&EXPORTER].len(), 1);
    assert_eq!(model.exports[&(2, POOL)].len(), 1);
    assert!(model.exports(at(3600), 2, POOL));
    assert!(model.exports(at(3600), EXPORTER, POOL));
    assert!(model.has(at(3600), Fault::Hung, EXPORTER));
}
