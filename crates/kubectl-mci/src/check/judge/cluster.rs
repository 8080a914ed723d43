//! One cluster that is, or is to be, a member.

use std::collections::BTreeMap;

use crd::annotations::BUNDLE_VERSION_VALUE;

use super::{ELSEWHERE, workload};
use crate::{
    check::{
        Group, Line,
        facts::{ClusterFacts, Definition, Denied, Facts, Inside, Version},
    },
    join::IMPORT_CRD,
    member::{MemberRights, Right},
};

/// CRD of what is exported.
pub(super) const POOL_CRD: &str = "inferencepools.inference.networking.k8s.io";
/// CRDs of Gateway API that a gateway of ours reads.
pub(super) const GATEWAY_CRDS: [&str; 4] = [
    "gatewayclasses.gateway.networking.k8s.io",
    "gateways.gateway.networking.k8s.io",
    "httproutes.gateway.networking.k8s.io",
    "referencegrants.gateway.networking.k8s.io",
];
/// docs/installation.md: the oldest that is supported.
const OLDEST: (u32, u32) = (1, 31);
/// Number of rights named.
const MAX_NAMED: usize = 4;

pub(super) fn group(facts: &Facts, cluster: &ClusterFacts) -> Group {
    let ClusterFacts {
        name,
        context,
        inside,
    } = cluster;
    let place = context
        .as_ref()
        .map(|context| format!(" (context {context})"));
    let title = format!("cluster {name}{}", place.unwrap_or_default());
    let lines = match inside {
        Err(problem) => vec![Line::unknown(problem)],
        Ok(inside) => {
            let members = &facts.home.members;
            let is_member = members.iter().any(|member| member.name == *name);
            let is_member = (is_member || facts.home.unseen.is_empty()).then_some(is_member);
            let context = context.as_deref().unwrap_or_default();
            judge(inside, facts, name, context, is_member)
        }
    };
    Group { title, lines }
}

/// `is_member`: none where not all members could be seen.
fn judge(
    inside: &Inside,
    facts: &Facts,
    name: &str,
    context: &str,
    is_member: Option<bool>,
) -> Vec<Line> {
    let mut lines = vec![version(inside)];
    match &inside.definitions {
        Err(problem) => lines.push(Line::unknown(problem)),
        Ok(definitions) => lines.extend(definitions_of(definitions)),
    }
    lines.push(match is_member {
        Some(true) => rights(inside, || apply_rights(facts, name, context)),
        Some(false) if facts.is_home_elsewhere() => {
            Line::bad(format!("{name} is no member of this home"), ELSEWHERE)
        }
        Some(false) => Line::bad(format!("{name} is no member"), facts.join(name)),
        None => Line::unknown(&format!("it was not seen whether {name} is a member")),
    });
    lines.extend(gateway(inside, context));
    lines
}

fn version(inside: &Inside) -> Line {
    match &inside.version {
        Err(problem) => Line::unknown(problem),
        Ok(Version { major, minor, text }) if (*major, *minor) < OLDEST => Line::bad(
            format!("Kubernetes {text} is too old"),
            format!("{}.{} or later is needed", OLDEST.0, OLDEST.1),
        ),
        Ok(Version { text, .. }) => Line::good(format!("Kubernetes {text}")),
    }
}

fn definitions_of(definitions: &BTreeMap<String, Definition>) -> Vec<Line> {
    let mut lines = Vec::new();
    let install = "install the CRD of the Inference Extension, as its project says";
    lines.push(match definitions.get(POOL_CRD) {
        None => Line::bad(
            "no CRD of InferencePool: there is nothing to export",
            install,
        ),
        Some(crd) if !crd.established || !crd.served.iter().any(|version| version == "v1") => {
            Line::bad("the CRD of InferencePool does not serve v1", install)
        }
        Some(crd) => Line::good(format!("the CRD of InferencePool{}", release(crd))),
    });
    let install = "install the chart isthmus-crds, or: kubectl apply --server-side -f config/crd/";
    lines.push(match definitions.get(IMPORT_CRD) {
        None => Line::bad(
            "no CRD of InferencePoolImport: nothing can be imported here",
            install,
        ),
        Some(crd) if !crd.established => {
            Line::bad("the CRD of InferencePoolImport is not established", install)
        }
        Some(crd) if !crd.has_clusters => Line::warning(
            "the CRD of InferencePoolImport is upstream's: imports here name exporters, and no gateway of ours can use them",
            install,
        ),
        Some(crd) if !crd.has_networks => Line::bad(
            "the CRD of InferencePoolImport is of an earlier release: imports here have no networks, so a gateway sends no request to other clusters (AddressDenied)",
            format!("{install}; before this version's gateway and controller"),
        ),
        Some(crd) if crd.bundle.as_deref() != Some(BUNDLE_VERSION_VALUE) => Line::warning(
            format!(
                "the CRD of InferencePoolImport{}: this version comes with {BUNDLE_VERSION_VALUE}",
                release(crd)
            ),
            "upgrade the older of the two",
        ),
        Some(crd) => Line::good(format!("the CRD of InferencePoolImport{}", release(crd))),
    });
    let missing: Vec<&str> = GATEWAY_CRDS
        .into_iter()
        .filter(|name| !definitions.contains_key(*name))
        .collect();
    lines.push(if missing.is_empty() {
        Line::good("the CRDs of Gateway API")
    } else {
        Line::warning(
            format!("no CRD {}", missing.join(", ")),
            "needed where a gateway runs or ParentMode is used: install Gateway API, standard channel",
        )
    });
    lines
}

fn release(definition: &Definition) -> String {
    let bundle = definition.bundle.as_ref();
    bundle.map_or_else(String::new, |bundle| format!(" ({bundle})"))
}

/// `join` applies them too, where it accepts the name.
fn apply_rights(facts: &Facts, name: &str, context: &str) -> String {
    if facts.is_held(name) {
        format!("kubectl --context {context} apply --server-side -f config/rbac/member.yaml")
    } else {
        facts.join(name)
    }
}

fn rights(inside: &Inside, again: impl FnOnce() -> String) -> Line {
    let (subject, denied) = match &inside.denied {
        None => {
            return Line::warning(
                "it is not known by which account the controller comes: its rights were not checked",
                "see what the controller says of it: it names what it lacks",
            );
        }
        Some(Err(problem)) => return Line::unknown(problem),
        Some(Ok(Denied { subject, rights })) => (subject, rights),
    };
    if denied.is_empty() {
        return Line::good("the controller has all rights of config/rbac/member.yaml");
    }
    let text = |right: &Right| format!("{} {}", right.verb, right.object());
    let mut named: Vec<String> = denied.iter().take(MAX_NAMED).map(text).collect();
    if denied.len() > MAX_NAMED {
        named.push(format!("{} more", denied.len() - MAX_NAMED));
    }
    let rights = MemberRights::read();
    let is_ours = rights.is_ok_and(|rights| rights.account.subject().user == subject.user);
    Line::bad(
        format!("the controller may not: {}", named.join(", ")),
        if is_ours {
            format!("apply the rights again: {}", again())
        } else {
            format!(
                "grant {} the rights of config/rbac/member.yaml",
                subject.user
            )
        },
    )
}

/// A cluster may do without a gateway of ours: it then only exports, or routes by another's.
fn gateway(inside: &Inside, context: &str) -> Vec<Line> {
    let mut lines = Vec::new();
    match &inside.gateway_class {
        Err(problem) => lines.push(Line::unknown(problem)),
        Ok(None) => {}
        Ok(Some(class)) => lines.push(match class.accepted {
            Some(true) => Line::good(format!("GatewayClass {} is accepted", class.name)),
            Some(false) => Line::bad(
                format!("GatewayClass {} is not accepted: {}", class.name, class.message),
                format!("kubectl --context {context} describe gatewayclass {}", class.name),
            ),
            None => Line::bad(
                format!("no gateway has looked at GatewayClass {}", class.name),
                "does the gateway run? The chart isthmus with gateway.enabled=true, or config/gateway.yaml",
            ),
        }),
    }
    match &inside.gateway {
        Err(problem) => lines.push(Line::unknown(problem)),
        Ok(None) => {}
        Ok(Some(deployment)) => lines.extend(workload(
            "the gateway",
            deployment,
            format!("kubectl --context {context} -n isthmus-system describe deployment,pods"),
        )),
    }
    lines
}
