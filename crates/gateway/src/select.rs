//! Which exporting clusters of an import may be sent to, and how requests are shared among them (pure).
//!
//! An entry is remote input: its addresses pass a deny list, its picks later Envoy's own filter.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use crd::annotations::POD_CIDRS;
use crd::networks::{Cidr, covering};

use crate::model::{
    EndpointMode, Epp, EppAddresses, Imported, Metrics, Mode, NotSecured, Policed, Readiness,
    Settings,
};
use crate::text::{is_label, quoted};
use crate::world::{ImportedCluster, Key, MetricsPort, RemotePicker};

mod address;
mod health;
pub(crate) mod inputs;
mod parent;
mod policy;
mod publish;
mod selection;
mod smooth;
mod state;
mod target;

pub(crate) use address::{ClusterCidr, denied, is_allowed};
pub(crate) use policy::{HealthRule, MetricsRule, OrderRule, Policy, Strategy};
pub(crate) use selection::{Assigned, Health, Selection, is_used, summary};
pub(crate) use state::{ClusterId, Fact, Selector};
pub(crate) use target::PoolLoad;

/// The reason of a condition Ready that is False because the export ends.
const DRAINING: &str = "Draining";

/// More than the CRD lets an entry have: whoever else writes entries may have another CRD.
const MAX_ADDRESSES: usize = 128;

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
    #[error("it names no endpoint picker")]
    EndpointPickerMissing,
    #[error("neither an endpoint picker nor a Gateway of it has an address and port")]
    AddressNotAssigned,
    #[error(
        "its Gateways listen for HTTPS and name no host without a wildcard, so there is none by which their certificates can always be verified: give the listener or the HTTPRoute there such a hostname"
    )]
    HostnameUnknown,
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
    #[error("it is not connected to: {0}")]
    NotSecured(NotSecured),
}

impl Ineligible {
    /// What conditions say; of an entry that is not ready, its own reason.
    pub(crate) fn reason(&self) -> &str {
        match self {
            Self::NotReady(reason) => reason,
            _ => self.label(),
        }
    }

    /// Whether something of the entry is only missing yet. All else is a refusal, in one cluster or the other.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::NotReady(_)
            | Self::EndpointPickerMissing
            | Self::AddressNotAssigned
            | Self::HostnameUnknown => true,
            Self::InvalidName
            | Self::NotAccepted
            | Self::AddressDenied(_)
            | Self::NetworksDenied
            | Self::NetworksUnknown(_)
            | Self::NotSecured(_) => false,
        }
    }

    /// Stable: what metrics say.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::InvalidName => "InvalidName",
            Self::NotAccepted => "NotAccepted",
            Self::NotReady(_) => "NotReady",
            Self::EndpointPickerMissing => "EndpointPickerRefMissing",
            Self::AddressNotAssigned => "AddressNotAssigned",
            Self::HostnameUnknown => "HostnameUnknown",
            Self::AddressDenied(_) | Self::NetworksDenied | Self::NetworksUnknown(_) => {
                "AddressDenied"
            }
            Self::NotSecured(_) => "InvalidTLSPolicy",
        }
    }
}

/// The entry as requests can use it. `own` are the networks of this cluster that nothing remote may name, and `policy` is how
/// its endpoint picker and its Gateways are verified.
pub(crate) fn imported(
    import: &Key,
    entry: &ImportedCluster,
    settings: &Settings,
    own: &[Cidr],
    policy: Option<Policed>,
) -> Imported {
    let picker = entry.picker.as_ref();
    Imported {
        name: entry.name.clone(),
        mode: mode(entry, settings, own, policy),
        readiness: readiness(entry),
        http2: crate::model::is_h2c(entry.app_protocol.as_deref()),
        fail_open: picker.is_some_and(|picker| picker.fail_open),
        metrics: picker.and_then(|picker| metrics(import, picker, settings, own)),
    }
}

fn readiness(entry: &ImportedCluster) -> Readiness {
    let parents = &entry.parents;
    let has_parents = !parents.is_empty() && entry.parent_mode;
    match (&entry.not_ready, entry.drain_until) {
        (None, None) if has_parents && parents.iter().all(|one| one.unprogrammed) => {
            Readiness::NotReady("ParentNotProgrammed".to_owned())
        }
        (None, None) => Readiness::Ready,
        (Some(reason), None) if reason != DRAINING => Readiness::NotReady(reason.clone()),
        (_, until) => Readiness::Draining { until },
    }
}

fn mode(
    entry: &ImportedCluster,
    settings: &Settings,
    own: &[Cidr],
    policy: Option<Policed>,
) -> Result<Mode, Ineligible> {
    // Names of Envoy's resources are made of it, and `@pool` would be that of a local pool's hop.
    if !is_label(&entry.name) {
        return Err(Ineligible::InvalidName);
    }
    if !entry.accepted {
        return Err(Ineligible::NotAccepted);
    }
    if entry.parent_mode {
        return parent::mode(entry, settings, own, policy).map(Mode::Parent);
    }
    endpoint_mode(entry, settings, own, policy).map(Mode::Endpoint)
}

fn endpoint_mode(
    entry: &ImportedCluster,
    settings: &Settings,
    own: &[Cidr],
    policy: Option<Policed>,
) -> Result<EndpointMode, Ineligible> {
    let picker = entry
        .picker
        .as_ref()
        .ok_or(Ineligible::EndpointPickerMissing)?;
    let given = settings.pod_cidrs.get(&entry.name);
    let stated = Some(&entry.pod_cidrs).filter(|stated| !stated.is_empty());
    let cidrs = given
        .or(stated)
        .or_else(|| settings.pod_cidrs.get("*"))
        .ok_or_else(|| Ineligible::NetworksUnknown(entry.name.clone()))?;
    // what is elsewhere is not reached anyway, and would be one rule more for each request
    let denied = settings.deny_cidrs.iter().chain(own);
    let denied = denied.filter(|denied| cidrs.iter().any(|cidr| cidr.overlaps(denied)));
    let denied = covering(denied.copied(), MAX_DENIED);
    let is_open = |cidr: &Cidr| !denied.iter().any(|denied| denied.covers(cidr));
    if !cidrs.iter().any(is_open) {
        return Err(Ineligible::NetworksDenied);
    }
    Ok(EndpointMode {
        epp: epp(&entry.name, picker, settings, own, policy)?,
        denied,
        cidrs: cidrs.clone(),
        ports: entry.target_ports.clone(),
    })
}

/// What an entry says of metrics, at the addresses that are allowed. One that names a Secret of another namespace has none.
fn metrics(
    import: &Key,
    picker: &RemotePicker,
    settings: &Settings,
    own: &[Cidr],
) -> Option<Metrics> {
    let MetricsPort { port, secret } = picker.metrics.as_ref()?;
    let secret = match secret {
        Some(secret)
            if secret
                .namespace
                .as_ref()
                .is_some_and(|ns| *ns != import.namespace) =>
        {
            return None;
        }
        Some(secret) => Some(Key::new(&import.namespace, &secret.name)),
        None => None,
    };
    let Addresses { ips, names } = addresses(picker.given(), settings, own).ok()?;
    let ips = ips.iter().map(ToString::to_string);
    Some(Metrics {
        addresses: ips.chain(names).map(|host| (host, *port)).collect(),
        secret,
    })
}

/// Where another cluster says that something of it is reached, as far as that is allowed; not empty.
struct Addresses {
    /// Sorted, each once.
    ips: Vec<IpAddr>,
    names: Vec<String>,
}

/// All of them denied is a denial. Where a host name leads to is not known here: it is denied where networks are given.
fn addresses<'a>(
    given: impl IntoIterator<Item = &'a String>,
    settings: &Settings,
    own: &[Cidr],
) -> Result<Addresses, Ineligible> {
    let mut ips = BTreeSet::new();
    let mut names = Vec::new();
    let mut denied = None;
    let remote = &settings.remote_cidrs;
    let is_within = |ip| remote.is_empty() || remote.iter().any(|cidr| cidr.contains(ip));
    for text in given.into_iter().take(MAX_ADDRESSES) {
        match text.parse::<IpAddr>() {
            Ok(ip) if is_within(ip) && address::is_allowed(ip, &settings.deny_cidrs, own) => {
                ips.insert(ip);
            }
            Err(_) if remote.is_empty() && address::is_hostname(text) => names.push(text.clone()),
            _ => denied = denied.or_else(|| Some(quoted(text))),
        }
    }
    if ips.is_empty() && names.is_empty() {
        return Err(denied.map_or(Ineligible::AddressNotAssigned, Ineligible::AddressDenied));
    }
    Ok(Addresses {
        ips: ips.into_iter().collect(),
        names,
    })
}

/// The EPP at the addresses that are allowed; all of them denied is a denial. But for its addresses it is the same
/// whichever they are: a cluster that Envoy makes anew ends all streams of the one before.
fn epp(
    cluster: &str,
    picker: &RemotePicker,
    settings: &Settings,
    own: &[Cidr],
    policy: Option<Policed>,
) -> Result<Epp, Ineligible> {
    let port = picker.port.ok_or(Ineligible::AddressNotAssigned)?;
    let Addresses { ips, names } = addresses(picker.given(), settings, own)?;
    let authority = names.first().map_or_else(
        || authority(cluster, &picker.name),
        |name| format!("{name}:{port}"),
    );
    // STRICT_DNS takes names and addresses alike, EDS addresses only.
    let addresses = if names.is_empty() {
        let ips = ips.into_iter().map(|ip| SocketAddr::new(ip, port));
        EppAddresses::Ips {
            addresses: ips.collect(),
            health: picker.health_port,
        }
    } else {
        let all = ips.iter().map(ToString::to_string).chain(names);
        EppAddresses::Dns {
            hosts: all.map(|host| (host, port)).collect(),
            health: picker.health_port,
        }
    };
    let app_protocol = picker.app_protocol.as_deref();
    let security = crate::model::security(settings, app_protocol, policy);
    Ok(Epp {
        authority,
        security: security.map_err(Ineligible::NotSecured)?,
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

#[cfg(test)]
mod tests;
