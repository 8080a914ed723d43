//! Compares the names in docs/reference.md with the program: reasons, types, and the rules of explanations.

use std::collections::{BTreeMap, BTreeSet};

use crd::{annotations, cluster_profile, conditions};

use super::read;
use crate::{
    events::reason,
    evidence::Evidence,
    explain::{ExplainInput, ImporterReason, State, explain},
    export::ANNOTATIONS,
    fixtures::{export, mk_key, mk_policy, mk_world},
    index::{
        flavour::Flavour,
        member::{Fault, Reach, Refusal},
    },
    overview::STATES,
    plan::{
        Rejection,
        decision::{ExportKnown, ImportsKnown, Known, Membership, NamespaceKnown, decide},
    },
};
use moment::Moment;

/// A section of the reference, without those that follow.
fn section(title: &str) -> String {
    let text = read("docs/reference.md");
    let (_, rest) = text.split_once(&format!("\n## {title}\n")).expect(title);
    let end = rest.split("\n## ").next();
    end.expect("a beginning").to_owned()
}

/// Asserts that a section contains all of these names, each separately.
fn assert_section_has(title: &str, wanted: impl IntoIterator<Item = impl AsRef<str>>) {
    let text = section(title);
    let is_separator = |c: char| !c.is_ascii_alphanumeric() && !"-_".contains(c);
    let names: BTreeSet<&str> = text.split(is_separator).collect();
    for name in wanted {
        let name = name.as_ref();
        assert!(
            names.contains(name),
            "{name} is not in docs/reference.md under {title}"
        );
    }
}

/// What may be known of a member, in every combination that matters for a decision.
fn all_known() -> impl Iterator<Item = Known> {
    let refusals = [
        Refusal::BadCredentials,
        Refusal::InsecureCredentials,
        Refusal::NoAccessProvider,
        Refusal::DuplicateCluster,
        Refusal::IdentityChanged,
        Refusal::ClusterSetMismatch,
    ];
    let mut memberships = vec![Membership::Member, Membership::Removed];
    memberships.extend(refusals.map(Membership::Refused));
    let mut exports = vec![
        ExportKnown::NotSeen,
        ExportKnown::Asked,
        ExportKnown::CrdMissing,
        ExportKnown::Guarded,
        ExportKnown::PartsUnknown,
        ExportKnown::OverCap,
        ExportKnown::RightUnknown,
    ];
    exports.extend(Evidence::ALL.map(ExportKnown::Ended));
    let mut known = Vec::new();
    for membership in memberships {
        for &export in &exports {
            for import_crd in [
                Flavour::Superset,
                Flavour::Earlier,
                Flavour::Upstream,
                Flavour::Absent,
            ] {
                known.push(Known {
                    membership,
                    export,
                    reach: Reach::Reachable,
                    exports_denied: None,
                    met: true,
                    import_crd: Some(import_crd),
                    imports: ImportsKnown::Listed,
                    namespace: NamespaceKnown::Present,
                });
            }
        }
    }
    let faults = Fault::ALL;
    let mut reaches = vec![Reach::Reachable];
    reaches.extend(faults.map(Reach::Lost));
    reaches.extend(faults.map(Reach::Stale));
    let imports = [
        ImportsKnown::No,
        ImportsKnown::NotServed,
        ImportsKnown::Denied,
        ImportsKnown::Listed,
    ];
    let namespaces = [NamespaceKnown::Present, NamespaceKnown::Missing];
    known.into_iter().flat_map(move |known| {
        let reaches = reaches.clone();
        reaches.into_iter().flat_map(move |reach| {
            imports.into_iter().flat_map(move |imports| {
                namespaces.into_iter().map(move |namespace| Known {
                    reach,
                    imports,
                    namespace,
                    ..known
                })
            })
        })
    })
}

#[test]
fn the_names_of_explanations_are_in_the_reference() {
    let mut names: BTreeSet<String> = BTreeSet::new();
    let mut add = |name: &str| {
        names.insert(name.to_owned());
    };
    for decision in all_known().map(decide) {
        let (entry, imports, counted_as) = (decision.entry, decision.imports, decision.counted_as);
        let rules = [entry.rule(), imports.rule(), counted_as.rule()];
        let reasons = [entry.reason(), imports.reason(), counted_as.reason()];
        rules.into_iter().chain(reasons).for_each(&mut add);
    }
    ImporterReason::ALL
        .map(ImporterReason::reason)
        .into_iter()
        .for_each(&mut add);
    let states = [State::Applied, State::Pending, State::Skipped];
    states.map(State::name).into_iter().for_each(&mut add);
    let mut world = mk_world(&["a", "b"]);
    export(&mut world, "a", "llm");
    for may_write in [true, false] {
        let input = ExplainInput {
            world: &world,
            policy: &mk_policy(),
            queues: &BTreeMap::new(),
            gate_open: may_write,
            leader: may_write,
            dry_run: !may_write,
            now: Moment::default(),
        };
        let explanation = explain(input, &mk_key("llm")).expect("known");
        for rule in explanation.trace {
            add(&rule.rule);
            // that of a condition stands with the conditions
            if rule.rule != "exported-condition" {
                add(&rule.outcome);
            }
        }
    }
    assert!(names.len() > 40, "{names:?}");
    assert_section_has("Explanations", names);
}

#[test]
fn reasons_and_types_are_in_the_reference() {
    assert_section_has("Conditions", STATES);
    assert_section_has(
        "Conditions",
        [
            conditions::ACCEPTED,
            conditions::READY,
            conditions::RESOLVED_REFS,
            conditions::REACHABLE,
            conditions::CONSISTENT,
            conditions::EXPORTED,
            conditions::PROGRAMMED,
            conditions::HOSTNAMES_KNOWN,
            conditions::LOOP_FREE,
        ],
    );
    assert_section_has(
        "Events",
        [
            reason::EXPORTED,
            reason::PARTIALLY_EXPORTED,
            reason::NOT_SUPPORTED,
            reason::NOT_ALLOWED,
            reason::INVALID_ANNOTATION,
            reason::INVALID_EXPORT_ANNOTATION,
            reason::NAMESPACE_MISSING,
            reason::IMPORT_CONFLICT,
            reason::CLUSTER_UNREACHABLE,
            reason::HEALTH_PORT_NOT_FOUND,
            reason::TOO_MANY_EXPORTERS,
            reason::POOL_STATUS_FULL,
            reason::ADDRESS_REJECTED,
            reason::ISOLATION_GUARD,
        ],
    );
    assert_section_has("Metrics", Evidence::ALL.map(Evidence::reason));
    let rejections = [
        Rejection::Unroutable,
        Rejection::Malformed,
        Rejection::LocalName,
        Rejection::NotAllowed,
    ];
    assert_section_has("Metrics", rejections.map(Rejection::reason));
}

#[test]
fn names_are_in_the_reference() {
    let text = read("docs/reference.md");
    let names = [
        annotations::CLUSTER_NAME,
        annotations::ALLOWED_ADDRESSES,
        annotations::ACCEPT_IDENTITY,
        annotations::POD_CIDRS,
        annotations::EXPORT_NAMESPACES,
        annotations::MANAGED_BY,
        annotations::MANAGED_BY_CONTROLLER,
        annotations::CLUSTERSET,
        annotations::CONTROLLER_INSTANCE,
        annotations::MCI_CONTROLLER,
        cluster_profile::CLUSTER_NAME_PROPERTY,
        cluster_profile::JOINED,
        cluster_profile::CONTROL_PLANE_HEALTHY,
    ];
    for name in names
        .into_iter()
        .chain(ANNOTATIONS)
        .chain(cluster_profile::CLUSTERSET_LABELS)
    {
        assert!(
            text.contains(&format!("`{name}`")),
            "{name} is not in docs/reference.md"
        );
    }
}
