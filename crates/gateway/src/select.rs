//! Which exporting clusters of an import may be sent to, and their shares (pure).
//!
//! An entry is remote input: its addresses pass a deny list, its picks later Envoy's own filter.

use std::net::{IpAddr, SocketAddr};

use crd::annotations::POD_CIDRS;
use crd::networks::{Cidr, covering};

use crate::model::{Epp, EppAddresses, Import, Settings, Usable};
use crate::text::quoted;
use crate::world::{ImportedCluster, RemotePicker};

mod address;
mod health;
mod policy;
mod publish;
mod selection;
mod smooth;
mod state;
mod target;

pub(crate) use address::{ClusterCidr, denied};
pub(crate) use policy::{HealthRule, MetricsRule, OrderRule, Policy, Strategy};

/// Shares of an import's clusters add up to about this.
pub(crate) const WHOLE: u32 = 1000;

/// Most networks of a family that are denied within those of one cluster: Envoy compares each with where a request goes, and
/// has them once for each import. Merged, the nodes of a cluster and the ranges of their pods are seldom more than some dozens.
const MAX_DENIED: usize = 128;

/// Why an entry gets no requests.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Ineligible {
    #[error(
        "its name is none of a cluster: expected 1 to 63 lower case letters, digits and '-', not at the ends"
    )]
    InvalidName,
    #[error("the exporting side does not accept it")]
    NotAccepted,
    #[error("not ready: {0}")]
    NotReady(String),
    #[error("ParentMode is not supported yet")]
    ParentModeUnsupported,
    #[error("it names no endpoint picker")]
    EndpointPickerMissing,
    #[error("its endpoint picker has no address and port")]
    AddressNotAssigned,
    #[error("address {0} is not allowed")]
    AddressDenied(String),
    #[error(
        "all networks of its pods are denied here: they are those of this cluster's Services, nodes or pods, or of --deny-cidr"
    )]
    NetworksDenied,
    #[error(
        "the networks of its pods are not known: say {POD_CIDRS} of {0} at home (kubectl mci check says where), upgrade the CRD of InferencePoolImport here if it is of an earlier release, or give the gateway --pod-cidr {0}=CIDR"
    )]
    NetworksUnknown(String),
}

impl Ineligible {
    /// What conditions say; of an entry that is not ready, its own reason.
    pub(crate) fn reason(&self) -> &str {
        match self {
            Self::NotReady(reason) => reason,
            _ => self.label(),
        }
    }

    /// Stable: what metrics say.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::InvalidName => "InvalidName",
            Self::NotAccepted => "NotAccepted",
            Self::NotReady(_) => "NotReady",
            Self::ParentModeUnsupported => "ParentModeUnsupported",
            Self::EndpointPickerMissing => "EndpointPickerRefMissing",
            Self::AddressNotAssigned => "AddressNotAssigned",
            Self::AddressDenied(_) | Self::NetworksDenied | Self::NetworksUnknown(_) => {
                "AddressDenied"
            }
        }
    }
}

/// Whether requests can go to the entry, and how. `own` are the networks of this cluster that nothing remote may name.
pub(crate) fn usable(
    cluster: &ImportedCluster,
    settings: &Settings,
    own: &[Cidr],
) -> Result<Usable, Ineligible> {
    if !cluster.accepted {
        return Err(Ineligible::NotAccepted);
    }
    let draining = cluster.not_ready.as_deref() == Some("Draining");
    if let Some(reason) = cluster.not_ready.as_ref().filter(|_| !draining) {
        return Err(Ineligible::NotReady(reason.clone()));
    }
    if cluster.parent_mode {
        return Err(Ineligible::ParentModeUnsupported);
    }
    let picker = cluster
        .picker
        .as_ref()
        .ok_or(Ineligible::EndpointPickerMissing)?;
    let given = settings.pod_cidrs.get(&cluster.name);
    let stated = Some(&cluster.pod_cidrs).filter(|stated| !stated.is_empty());
    let cidrs = given
        .or(stated)
        .or_else(|| settings.pod_cidrs.get("*"))
        .ok_or_else(|| Ineligible::NetworksUnknown(cluster.name.clone()))?;
    // what is elsewhere is not reached anyway, and would be one rule more for each request
    let denied = settings.deny_cidrs.iter().chain(own);
    let denied = denied.filter(|denied| cidrs.iter().any(|cidr| cidr.overlaps(denied)));
    let denied = covering(denied.copied(), MAX_DENIED);
    let is_open = |cidr: &Cidr| !denied.iter().any(|denied| denied.covers(cidr));
    if !cidrs.iter().any(is_open) {
        return Err(Ineligible::NetworksDenied);
    }
    Ok(Usable {
        epp: epp(&cluster.name, picker, settings, own)?,
        http2: crate::model::is_h2c(cluster.app_protocol.as_deref()),
        denied,
        cidrs: cidrs.clone(),
        ports: cluster.target_ports.clone(),
        draining,
    })
}

/// The EPP at the addresses that are allowed; all of them denied is a denial. But for its addresses it is the same
/// whichever they are: a cluster that Envoy makes anew ends all streams of the one before.
fn epp(
    cluster: &str,
    picker: &RemotePicker,
    settings: &Settings,
    own: &[Cidr],
) -> Result<Epp, Ineligible> {
    let port = picker.port.ok_or(Ineligible::AddressNotAssigned)?;
    let given = if picker.endpoints.is_empty() {
        &picker.addresses
    } else {
        &picker.endpoints
    };
    let mut ips = Vec::new();
    let mut names = Vec::new();
    let mut denied = None;
    for text in given {
        match text.parse::<IpAddr>() {
            Ok(ip) if address::is_allowed(ip, &settings.deny_cidrs, own) => ips.push(ip),
            Err(_) if address::is_hostname(text) => names.push(text.clone()),
            _ => denied = denied.or_else(|| Some(quoted(text))),
        }
    }
    if ips.is_empty() && names.is_empty() {
        return Err(denied.map_or(Ineligible::AddressNotAssigned, Ineligible::AddressDenied));
    }
    let authority = names.first().map_or_else(
        || authority(cluster, &picker.name),
        |name| format!("{name}:{port}"),
    );
    // STRICT_DNS takes names and addresses alike, EDS addresses only.
    let addresses = if names.is_empty() {
        let mut addresses: Vec<_> = ips.iter().map(|ip| SocketAddr::new(*ip, port)).collect();
        addresses.sort_unstable();
        addresses.dedup();
        EppAddresses::Ips {
            addresses,
            health: picker.health_port,
        }
    } else {
        let all = ips.iter().map(ToString::to_string).chain(names);
        EppAddresses::Dns {
            hosts: all.map(|host| (host, port)).collect(),
            health: picker.health_port,
        }
    };
    Ok(Epp {
        authority,
        tls: crate::model::wants_tls(settings, picker.app_protocol.as_deref()),
        grpc_health: picker.health_port.is_some(),
        addresses,
    })
}

/// A name for an EPP that has addresses only: its Service's and its cluster's, as far as they are labels. Nobody resolves it.
fn authority(cluster: &str, service: &str) -> String {
    let labels = [service, cluster]
        .into_iter()
        .filter(|name| address::is_label(name));
    let labels: Vec<_> = labels.collect();
    if labels.is_empty() {
        "epp".to_owned()
    } else {
        labels.join(".")
    }
}

/// Share of each cluster that gets new requests, in the import's order: equal ones. A cluster that
/// drains has none.
pub(crate) fn shares(import: &Import) -> Vec<(&str, &Usable, Option<u32>)> {
    let usable = import
        .clusters
        .iter()
        .filter_map(|cluster| Some((cluster.name.as_str(), cluster.state.as_ref().ok()?)));
    let usable: Vec<_> = usable.collect();
    let active = usable.iter().filter(|(_, one)| !one.draining).count();
    // At most 256 clusters in an import, so each share is 3 or more.
    let share = u32::try_from(active)
        .ok()
        .and_then(|n| WHOLE.checked_div(n));
    usable
        .into_iter()
        .map(|(name, one)| (name, one, share.filter(|_| !one.draining)))
        .collect()
}

/// For people: `east 500, south 500; north NotReady`.
pub(crate) fn summary(import: &Import) -> String {
    let shares = shares(import);
    let used = shares.iter().map(|(name, _, share)| match share {
        Some(share) => format!("{name} {share}"),
        None => format!("{name} Draining"),
    });
    let used: Vec<_> = used.collect();
    let unused = import.clusters.iter().filter_map(|cluster| {
        let why = cluster.state.as_ref().err()?;
        let (name, reason) = (&cluster.name, why.reason());
        Some(match why {
            Ineligible::InvalidName => format!("{} {reason}", quoted(name)),
            Ineligible::AddressDenied(_)
            | Ineligible::NetworksDenied
            | Ineligible::NetworksUnknown(_) => {
                format!("{name} {reason} ({why})")
            }
            _ => format!("{name} {reason}"),
        })
    });
    let unused: Vec<_> = unused.collect();
    match (used.is_empty(), unused.is_empty()) {
        (_, true) => used.join(", "),
        (true, false) => unused.join(", "),
        (false, false) => format!("{}; {}", used.join(", "), unused.join(", ")),
    }
}
