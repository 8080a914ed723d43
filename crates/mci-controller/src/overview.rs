//! The state of the members for operators: built once a second, read by `/metrics` and `/debug/clusters`, without secrets.
//! Pure.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use crd::{conditions, networks::Cidr};
use serde::Serialize;

use crate::{
    index::{
        World,
        facts::Claim,
        flavour::Flavour,
        member::{Fault, Link, Member, PoolRecord},
    },
    name::ClusterName,
    write::{
        Queue,
        stats::{QueueStats, seconds},
    },
};
use mci_inventory::Unused;
use moment::Moment;

/// The state of the controller and all members.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Overview {
    /// Whether this controller may write: no other one leads.
    pub(crate) leader: bool,
    /// Whether anything is written yet.
    pub(crate) gate_open: bool,
    /// Whether withdrawals are held since many members were lost at once.
    pub(crate) guard: bool,
    /// Imports with a planned name that are not ours, or that are in conflict.
    pub(crate) conflicts: usize,
    pub(crate) clusters: Vec<MemberView>,
    /// Inventory objects that define no member.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) unused: Vec<UnusedView>,
}

/// An inventory object that defines no member.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct UnusedView {
    /// The object.
    pub(crate) source: String,
    /// The name that it gives.
    pub(crate) name: String,
    pub(crate) active: Active,
    pub(crate) detail: String,
}

/// One member.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MemberView {
    pub(crate) name: ClusterName,
    pub(crate) link: &'static str,
    pub(crate) active: Active,
    /// The object that defines it.
    pub(crate) source: String,
    /// What is wrong with that object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) detail: Option<String>,
    /// Networks of its pods from that object; none means that gateways reject its picks unless a flag names the
    /// networks.
    #[serde(rename = "podCIDRs")]
    pub(crate) pod_cidrs: Vec<String>,
    /// Namespaces that it may export, from that object; absent means all but those of the system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) export_namespaces: Option<String>,
    /// Values of that object that cannot be read: the earlier values stay in force.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) complaints: Vec<String>,
    /// A hint from that object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hint: Option<String>,
    /// The reason of `Active` that `detail` explains, if no older credentials are in use.
    #[serde(skip)]
    pub(crate) detail_of: Option<&'static str>,
    /// Whether it is in contact.
    pub(crate) up: bool,
    /// Uid of its `kube-system` namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) uid: Option<String>,
    /// Why its newest credentials are not used, while older ones are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unusable_credentials: Option<String>,
    /// Permissions that we lack there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) denied: Option<String>,
    /// Kinds of which it has more than is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) over_limit: Option<String>,
    /// Since its last contact; zero while in contact.
    #[serde(rename = "lastContactSeconds", serialize_with = "seconds")]
    pub(crate) silent: Duration,
    /// Absent until it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) flavour: Option<&'static str>,
    pub(crate) counts: Counts,
    pub(crate) queue: QueueStats,
}

/// The condition `Active` of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Active {
    pub(crate) status: bool,
    pub(crate) reason: &'static str,
    pub(crate) message: &'static str,
}

/// Objects of one member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Counts {
    pub(crate) pools: usize,
    pub(crate) exported_pools: usize,
    /// Imports of ours.
    pub(crate) imports: usize,
    /// Their entries, by `Ready`.
    pub(crate) entries_ready: usize,
    pub(crate) entries_not_ready: usize,
    pub(crate) entries_unknown: usize,
}

/// Builds overviews. Only changed members are counted again: the imports of a thousand members are too many for each
/// second.
#[derive(Debug, Default)]
pub(crate) struct OverviewBuilder {
    counts: BTreeMap<ClusterName, Counts>,
    changed: BTreeSet<ClusterName>,
}

/// Values of `mci_member_state{reason}`, and the reasons of `Active`: exactly one holds of a member.
pub(crate) const STATES: [&str; 15] = [
    "Active",
    "CRDAbsent",
    "LimitExceeded",
    "Connecting",
    "ConnectionLost",
    "CertificateUntrusted",
    "CertificateExpired",
    "CertificateNameMismatch",
    "AuthFailed",
    "BadCredentials",
    "InsecureCredentials",
    "NoAccessProvider",
    "DuplicateCluster",
    "IdentityChanged",
    "ClusterSetMismatch",
];

/// What each reason means, for a person.
const MEANINGS: [(&str, &str); 15] = [
    ("Active", "in contact"),
    (
        "CRDAbsent",
        "in contact; it exports, but has no InferencePoolImport CRD, so nothing can be imported there",
    ),
    (
        "LimitExceeded",
        "in contact; it has more objects, or larger ones, than are kept of one member: see overLimit in /debug/clusters",
    ),
    ("Connecting", "the first lists have not completed yet"),
    (
        "ConnectionLost",
        "its API server does not answer: what it exports is kept",
    ),
    (
        "CertificateUntrusted",
        "no authority of its kubeconfig has signed its API server's certificate: give it one with the present certificate-authority-data (kubectl mci join makes one); what it exports is kept",
    ),
    (
        "CertificateExpired",
        "its API server's certificate has expired or is not valid yet: renew it there, or correct the clocks; what it exports is kept",
    ),
    (
        "CertificateNameMismatch",
        "its API server's certificate is not of the host in its kubeconfig: use a host name or address of the certificate, or set tls-server-name; what it exports is kept",
    ),
    (
        "AuthFailed",
        "its API server refuses the credentials or a permission is missing: see config/rbac",
    ),
    (
        "BadCredentials",
        "its kubeconfig cannot be used: give it one whose current context holds a server and a token or certificates",
    ),
    (
        "InsecureCredentials",
        "its kubeconfig asks for something that is not allowed (exec, files, insecure TLS, http): give it data only",
    ),
    (
        "NoAccessProvider",
        "its ClusterProfile names no provider of the provider file: add one of them to status.accessProviders",
    ),
    (
        "DuplicateCluster",
        "it is a cluster that is a member under another name: remove one of the two",
    ),
    (
        "IdentityChanged",
        "its credentials lead to another cluster than before: accept the new one, or remove and add it again",
    ),
    (
        "ClusterSetMismatch",
        "it says that it belongs to another ClusterSet",
    ),
];

// === impl OverviewBuilder ===

impl OverviewBuilder {
    /// A member sent an update: its objects are counted again.
    pub(crate) fn mark_changed(&mut self, name: &ClusterName) {
        if !self.changed.contains(name) {
            self.changed.insert(name.clone());
        }
    }

    pub(crate) fn forget(&mut self, name: &ClusterName) {
        self.counts.remove(name);
        self.changed.remove(name);
    }

    /// The present state of the members; the caller fills in the rest.
    pub(crate) fn build(
        &mut self,
        world: &World,
        queues: &BTreeMap<ClusterName, Arc<Queue>>,
        now: Moment,
    ) -> Overview {
        for name in std::mem::take(&mut self.changed) {
            if let Some(member) = world.members.get(&name) {
                self.counts.insert(name, Counts::of(member));
            }
        }
        let clusters = world.members.iter().map(|(name, member)| MemberView {
            name: name.clone(),
            link: member.contact.link.name(),
            active: active(member),
            source: member.origin.source.to_string(),
            detail: None,
            pod_cidrs: texts(member.origin.pod_cidrs.known()),
            export_namespaces: member
                .origin
                .export_namespaces
                .known()
                .map(ToString::to_string),
            complaints: member.origin.complaints.clone(),
            hint: member.origin.hint.clone(),
            detail_of: None,
            up: is_up(member),
            uid: member.uid.clone(),
            unusable_credentials: member.unusable_credentials.clone(),
            denied: (!member.denied.is_empty()).then(|| member.denied.missing()),
            over_limit: member.over_limit(),
            silent: member
                .contact
                .silence
                .map_or(Duration::ZERO, |silence| now.since(silence.since)),
            flavour: flavour(member),
            counts: self.counts.get(name).copied().unwrap_or_default(),
            queue: queues
                .get(name)
                .map(|queue| queue.stats(now))
                .unwrap_or_default(),
        });
        Overview {
            leader: false,
            gate_open: false,
            guard: false,
            conflicts: 0,
            clusters: clusters.collect(),
            unused: Vec::new(),
        }
    }
}

fn texts(networks: Option<&Vec<Cidr>>) -> Vec<String> {
    let networks = networks.into_iter().flatten();
    networks.map(ToString::to_string).collect()
}

// === impl Counts ===

impl Counts {
    fn of(member: &Member) -> Self {
        let pools = member.pools.records.values();
        let exported = pools.filter(|one| PoolRecord::is_exported(one));
        let mut counts = Self {
            pools: member.pools.records.len(),
            exported_pools: exported.count(),
            ..Self::default()
        };
        let ours = member.imports.items.values();
        for import in ours.filter(|import| import.claim == Claim::Ours) {
            counts.imports += 1;
            for entry in &import.status.clusters {
                let ready = conditions::find(&entry.conditions, conditions::READY);
                match ready.map(|condition| condition.status.as_str()) {
                    Some("True") => counts.entries_ready += 1,
                    Some("False") => counts.entries_not_ready += 1,
                    _ => counts.entries_unknown += 1,
                }
            }
        }
        counts
    }
}

// === impl UnusedView ===

impl UnusedView {
    pub(crate) fn of(unused: &Unused) -> Self {
        Self {
            source: unused.origin.source.to_string(),
            name: unused.member.clone(),
            active: Active::of(unused.refusal.reason()),
            detail: unused.detail.clone(),
        }
    }
}

// === impl MemberView ===

impl MemberView {
    /// The explanation of its `Active`; `detail` only if it belongs to the present reason.
    pub(crate) fn explanation(&self) -> Cow<'_, str> {
        let active = &self.active;
        match (&self.denied, &self.detail) {
            (Some(missing), _) if self.up && active.reason == "AuthFailed" => {
                format!("grant {missing}").into()
            }
            (_, Some(detail)) if self.detail_of == Some(active.reason) => detail.into(),
            _ => active.message.into(),
        }
    }
}

// === impl Active ===

impl Active {
    pub(crate) fn of(reason: &'static str) -> Self {
        let meaning = MEANINGS.iter().find(|(known, _)| *known == reason);
        Self {
            status: matches!(reason, "Active" | "CRDAbsent" | "LimitExceeded"),
            reason,
            message: meaning.map_or("", |(_, text)| *text),
        }
    }
}

/// Whether a member takes part, and why not.
pub(crate) fn active(member: &Member) -> Active {
    Active::of(match (member.contact.link, member.contact.silence) {
        (Link::Connecting | Link::Syncing, _) => "Connecting",
        (Link::Refused(refusal), _) => refusal.reason(),
        (Link::Lost, None) => Fault::ConnectionLost.reason(),
        // a member that is being removed may be silent, too
        (Link::Lost | Link::Removing, Some(silence)) => silence.fault.reason(),
        _ if !member.denied.is_empty() => "AuthFailed",
        _ if is_absent(member) => "CRDAbsent",
        _ if member.over_limit().is_some() => "LimitExceeded",
        (Link::Live | Link::Suspect | Link::Removing, _) => "Active",
    })
}

/// Whether a member is in contact, one that is being removed among them.
fn is_up(member: &Member) -> bool {
    match member.contact.link {
        Link::Removing => member.contact.silence.is_none(),
        _ => member.contact.is_up(),
    }
}

/// Which import CRD the member serves; none: not known yet.
fn flavour(member: &Member) -> Option<&'static str> {
    member.import_crd.as_ref().map(|crd| crd.flavour.name())
}

fn is_absent(member: &Member) -> bool {
    let crd = member.import_crd.as_ref();
    crd.is_some_and(|crd| crd.flavour == Flavour::Absent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fixtures::{export, member, mk_key, mk_name, mk_policy, mk_world, settle},
        index::{member::Refusal, origin::Origin, update::Update},
    };

    fn draw(overview_builder: &mut OverviewBuilder, world: &World, seconds: u64) -> Overview {
        for name in world.members.keys() {
            overview_builder.mark_changed(name);
        }
        overview_builder.build(world, &BTreeMap::new(), Moment::from_millis(seconds * 1000))
    }

    #[test]
    fn refused_credentials_are_a_state_of_their_own() {
        let mut world = mk_world(&["a"]);
        let now = Moment::default();
        world.update(&mk_name("a"), Update::Lost(Fault::AuthFailed), now);
        assert_eq!(active(member(&world, "a")).reason, "AuthFailed");
        world.update(&mk_name("a"), Update::Lost(Fault::ConnectionLost), now);
        assert_eq!(active(member(&world, "a")).reason, "ConnectionLost");
        world.update(
            &mk_name("a"),
            Update::Refused(Refusal::IdentityChanged),
            now,
        );
        let shown = active(member(&world, "a"));
        assert_eq!(shown.reason, "IdentityChanged");
        assert!(!shown.status && !shown.message.is_empty());
    }

    #[test]
    fn a_member_that_is_removed_keeps_its_silence() {
        for fault in Fault::ALL.map(Some).into_iter().chain([None]) {
            let mut world = mk_world(&["a"]);
            let now = Moment::default();
            if let Some(fault) = fault {
                world.update(&mk_name("a"), Update::Lost(fault), now);
            }
            world.remove_member(&mk_name("a"), now);
            let overview = draw(&mut OverviewBuilder::default(), &world, 1);
            let row = &overview.clusters[0];
            assert_eq!(row.link, Link::Removing.name());
            let reason = fault.map_or("Active", Fault::reason);
            assert_eq!(
                (row.active.reason, row.active.status, row.up),
                (reason, fault.is_none(), fault.is_none())
            );
        }
    }

    #[test]
    fn every_state_has_a_meaning() {
        for reason in STATES {
            assert!(!Active::of(reason).message.is_empty(), "{reason}");
        }
    }

    #[test]
    fn entries_are_counted_by_readiness() {
        let mut world = mk_world(&["a", "b", "c"]);
        export(&mut world, "a", "llm");
        settle(&mut world, &mk_policy(), Moment::default());
        let mut overview_builder = OverviewBuilder::default();
        let overview = draw(&mut overview_builder, &world, 1);
        let rows: Vec<(&str, usize, usize, usize)> = overview
            .clusters
            .iter()
            .map(|row| {
                let counts = row.counts;
                (
                    row.name.as_str(),
                    counts.exported_pools,
                    counts.imports,
                    counts.entries_ready,
                )
            })
            .collect();
        assert_eq!(rows, [("a", 1, 0, 0), ("b", 0, 1, 1), ("c", 0, 1, 1)]);
        assert!(
            member(&world, "b")
                .imports
                .items
                .contains_key(&mk_key("llm"))
        );
    }

    #[test]
    fn only_a_member_that_sent_an_update_is_counted_again() {
        let mut world = mk_world(&["a"]);
        let mut overview_builder = OverviewBuilder::default();
        draw(&mut overview_builder, &world, 1);
        export(&mut world, "a", "llm");
        let quiet = overview_builder.build(&world, &BTreeMap::new(), Moment::default());
        assert_eq!(quiet.clusters[0].counts.exported_pools, 0);
        overview_builder.mark_changed(&mk_name("a"));
        let overview = overview_builder.build(&world, &BTreeMap::new(), Moment::default());
        assert_eq!(overview.clusters[0].counts.exported_pools, 1);
    }

    #[test]
    fn a_hint_of_the_inventory_is_shown_and_is_no_state() {
        let mut world = mk_world(&["a"]);
        let page = |world: &World| {
            let overview = draw(&mut OverviewBuilder::default(), world, 1);
            serde_json::to_value(&overview.clusters[0]).expect("JSON")
        };
        let mut expected = page(&world);
        let origin = Origin {
            hint: Some("it looks ill".to_owned()),
            ..Origin::default()
        };
        let changes = world.describe(&mk_name("a"), &Arc::new(origin));
        assert!(changes.dirty.is_empty(), "nothing is planned again");
        expected["hint"] = "it looks ill".into();
        assert_eq!(page(&world), expected);
    }

    #[test]
    fn silence_is_shown_as_age() {
        let mut world = mk_world(&["a"]);
        let lost = Update::Lost(Fault::ConnectionLost);
        world.update(&mk_name("a"), lost, Moment::from_millis(2_000));
        let overview = draw(&mut OverviewBuilder::default(), &world, 9);
        assert_eq!(overview.clusters[0].silent, Duration::from_secs(7));
        let page = serde_json::to_value(&overview).expect("JSON");
        assert_eq!(page["clusters"][0]["lastContactSeconds"], 7.0);
        assert_eq!(page["clusters"][0]["active"]["reason"], "ConnectionLost");
    }
}
