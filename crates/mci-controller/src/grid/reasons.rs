//! What the reasons on the page mean, and where the documentation has more.

use crate::overview::Active;

/// A reason, explained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) name: &'static str,
    pub(super) meaning: &'static str,
    /// Page of the documentation.
    pub(super) page: &'static str,
    /// Heading on it.
    pub(super) anchor: &'static str,
}

const EXPLANATIONS: (&str, &str) = ("reference", "explanations");
const CONDITIONS: (&str, &str) = ("reference", "conditions");
const REFUSED: (&str, &str) = ("runbook", "mcimemberrefused");
const UNREACHABLE: (&str, &str) = ("runbook", "mcimemberunreachable");
const NOT_READY: (&str, &str) = ("runbook", "mcientriesnotready");

/// An empty meaning is that of the member's state of this name.
const REASONS: [(&str, &str, (&str, &str)); 49] = [
    // an importer
    (
        "AsLastSeen",
        "it was as planned when it was last seen: there is no contact now",
        UNREACHABLE,
    ),
    ("Create", "the import is to be created there", EXPLANATIONS),
    ("Update", "the import there is to be changed", EXPLANATIONS),
    (
        "RemoveForeign",
        "what somebody else put into the import is to be taken out",
        EXPLANATIONS,
    ),
    ("Delete", "the import there is to go", EXPLANATIONS),
    (
        "Unreachable",
        "there is no contact with the member, or it is not used: see its state",
        UNREACHABLE,
    ),
    (
        "GateClosed",
        "written once every member is synced or was waited for",
        EXPLANATIONS,
    ),
    (
        "NotLeading",
        "written by the controller that leads",
        ("runbook", "mcinoleader"),
    ),
    (
        "Conflict",
        "an import of this name is somebody else's, or somebody keeps undoing ours",
        ("runbook", "mciconflict"),
    ),
    (
        "NotOurs",
        "it needs no import, and the one that it has is not ours to delete",
        EXPLANATIONS,
    ),
    (
        "NamespaceMissing",
        "the pool's namespace is missing there, so it is not imported: create the namespace if it should be",
        EXPLANATIONS,
    ),
    // a member
    ("CRDAbsent", "", ("runbook", "mcimemberwithoutcrd")),
    ("LimitExceeded", "", ("runbook", "mcimemberoverlimit")),
    ("Connecting", "", UNREACHABLE),
    ("ConnectionLost", "", UNREACHABLE),
    ("CertificateUntrusted", "", REFUSED),
    ("CertificateExpired", "", REFUSED),
    ("CertificateNameMismatch", "", REFUSED),
    ("AuthFailed", "", REFUSED),
    ("BadCredentials", "", REFUSED),
    ("InsecureCredentials", "", REFUSED),
    ("NoAccessProvider", "", REFUSED),
    ("DuplicateCluster", "", REFUSED),
    ("IdentityChanged", "", REFUSED),
    ("ClusterSetMismatch", "", REFUSED),
    // an entry
    (
        "NotAllowed",
        "the object that makes the cluster a member does not allow it to export this namespace",
        CONDITIONS,
    ),
    (
        "Draining",
        "the export ended; its entry goes when the drain is over",
        CONDITIONS,
    ),
    (
        "Stale",
        "there has been no contact for so long that its readiness is unknown",
        UNREACHABLE,
    ),
    (
        "CRDMissing",
        "the CRD of its pools is missing or new: the last known state stays",
        CONDITIONS,
    ),
    (
        "Retained",
        "the last known state stays: not all that it is made of is known",
        EXPLANATIONS,
    ),
    (
        "AddressNotAssigned",
        "the Service of its endpoint picker, or its Gateway, has no address that other clusters can use: a LoadBalancer without one waits for it",
        NOT_READY,
    ),
    (
        "NoReadyEndpoint",
        "its endpoint picker has no ready pod",
        NOT_READY,
    ),
    (
        "ParentNotProgrammed",
        "its Gateway is not programmed",
        NOT_READY,
    ),
    (
        "UnsupportedServiceType",
        "its endpoint picker's Service is of a type that cannot be exported",
        NOT_READY,
    ),
    (
        "InvalidAddress",
        "its endpoint picker has no address that another cluster could use",
        ("runbook", "mciaddressesrejected"),
    ),
    (
        "EndpointPickerRefMissing",
        "the pool names no endpoint picker",
        CONDITIONS,
    ),
    (
        "InvalidKind",
        "the pool's endpoint picker is no Service",
        CONDITIONS,
    ),
    (
        "BackendNotFound",
        "the Service that the pool names as its endpoint picker does not exist",
        CONDITIONS,
    ),
    (
        "PortNotFound",
        "the endpoint picker's Service lacks the port that the pool names",
        CONDITIONS,
    ),
    (
        "RefNotPermitted",
        "a Secret of another namespace may not be used",
        CONDITIONS,
    ),
    // an export
    (
        "NotSupported",
        "the export cannot be done as it is asked for",
        CONDITIONS,
    ),
    (
        "NoOtherMember",
        "the ClusterSet has no other member",
        CONDITIONS,
    ),
    (
        "PartiallyExported",
        "some members do not have it yet, or cannot",
        CONDITIONS,
    ),
    (
        "TooManyExporters",
        "other clusters with older pools fill the import",
        CONDITIONS,
    ),
    (
        "PoolAbsent",
        "the export ended: it has no such pool any more",
        EXPLANATIONS,
    ),
    (
        "PoolDeleted",
        "the export ended: the pool was deleted",
        EXPLANATIONS,
    ),
    (
        "AnnotationGone",
        "the export ended: the pool asks for none",
        EXPLANATIONS,
    ),
    (
        "AnnotationInvalid",
        "the pool's annotation is not legal",
        EXPLANATIONS,
    ),
    (
        "MemberRemoved",
        "the member left the inventory",
        EXPLANATIONS,
    ),
];

/// None: it has no explanation, such as one that another program wrote.
pub(super) fn known(reason: &str) -> Option<Known> {
    let found = REASONS.iter().find(|(name, _, _)| *name == reason);
    let (name, meaning, (page, anchor)) = *found?;
    let meaning = match meaning {
        "" => Active::of(name).message,
        meaning => meaning,
    };
    Some(Known {
        name,
        meaning,
        page,
        anchor,
    })
}

/// For the test that looks the headings up.
#[cfg(test)]
pub(super) fn all() -> impl Iterator<Item = Known> {
    REASONS.iter().filter_map(|(name, _, _)| known(name))
}
