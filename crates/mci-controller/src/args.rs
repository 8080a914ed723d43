//! Flags, and the settings made from them.

use std::{net::SocketAddr, str::FromStr, time::Duration};

use clap::{Parser, Subcommand, ValueEnum};
use crd::{RoutingMode, annotations::MCI_CONTROLLER};
use process::{ConfigError, LogArgs, Program};

use self::{caution::CautionArgs, home::HomeArgs, inventory::InventoryArgs};
use crate::{
    clusterset,
    explain::ExplainArgs,
    grid::DocsUrl,
    index::rules::Rules,
    name::{is_label, is_subdomain},
    plan::Policy,
};
use mci_inventory::Sources;

mod caution;
mod home;
mod inventory;

pub(crate) use self::{home::HomeSettings, inventory::check_sources};

/// The ClusterSet controller of Isthmus.
///
/// Watches every InferencePool of all member clusters. A pool annotated
/// inference.networking.x-k8s.io/export=ClusterSet appears in every other member that has its namespace, as an
/// InferencePoolImport of the same name. No request passes through this program: while it is stopped, traffic goes on
/// and only changes are late. A member that cannot be reached never leads to a deletion.
///
/// Members are kubeconfig files in one directory, named `MEMBER.yaml`; labelled Secrets and ClusterProfiles in the home
/// cluster; and the home cluster itself. A kubeconfig's current context must hold its credentials as data (token or
/// certificates): exec plugins, file paths and insecure connections are refused.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "mci-controller",
    version,
    max_term_width = 100,
    subcommand_negates_reqs = true
)]
pub struct Args {
    #[command(flatten)]
    inventory: InventoryArgs,

    #[command(flatten)]
    home: HomeArgs,

    /// Name of the ClusterSet: imports have it as a label, and those of any other ClusterSet are left alone. Default: the
    /// one of the home cluster, from the label multicluster.x-k8s.io/clusterset of the ClusterProfiles' namespace or from
    /// ClusterProperty clusterset.k8s.io; else `default`.
    #[arg(long, env = "CLUSTERSET", value_name = "NAME")]
    clusterset: Option<String>,

    /// Name of this controller's instance: imports have it as a label, and imports of other instances are left alone.
    /// Two controllers of one ClusterSet must not run at once. Default: the uid of the home cluster's kube-system
    /// namespace; without a home, the name of the ClusterSet.
    #[arg(long, env = "INSTANCE_ID", value_name = "NAME")]
    instance_id: Option<String>,

    /// Name under which this controller writes status, a domain and a path.
    #[arg(long, env = "CONTROLLER_NAME", default_value = MCI_CONTROLLER, value_name = "DOMAIN/PATH")]
    controller_name: String,

    /// Count members without the pool's namespace as missing in the pool's condition Exported.
    #[arg(long, env = "STRICT_EXPORTED")]
    strict_exported: bool,

    /// How importing gateways reach pools whose annotations do not set it: by their endpoint picker, or through the
    /// Gateways of the exporting cluster.
    #[arg(
        long,
        env = "DEFAULT_EXPORT_MODE",
        value_enum,
        default_value = "EndpointMode",
        value_name = "MODE"
    )]
    default_export_mode: ExportMode,

    /// Silence of a member after which what it exports has unknown readiness; it is never withdrawn for silence, unless
    /// --withdraw-after is set.
    #[arg(
        long,
        env = "STALE_AFTER",
        default_value = "60s",
        value_name = "DURATION"
    )]
    stale_after: Span,

    #[command(flatten)]
    caution: CautionArgs,

    /// How long a start waits for all members before it writes; what members not seen by then export is kept as
    /// it is.
    #[arg(
        long,
        env = "INITIAL_SYNC_TIMEOUT",
        default_value = "30s",
        value_name = "DURATION"
    )]
    initial_sync_timeout: Span,

    /// Deadline of each write.
    #[arg(
        long,
        env = "WRITE_TIMEOUT",
        default_value = "5s",
        value_name = "DURATION"
    )]
    write_timeout: Span,

    /// How long writes in flight may take to finish after the first SIGTERM; a second one ends at once.
    #[arg(
        long,
        env = "DRAIN_TIMEOUT",
        default_value = "10s",
        value_name = "DURATION"
    )]
    drain_timeout: Span,

    /// How long members are kept that vanished from the inventory together with most others, two or more: the inventory may
    /// be at fault, not they.
    #[arg(
        long,
        env = "REMOVAL_HOLD",
        default_value = "5m",
        value_name = "DURATION"
    )]
    removal_hold: Span,

    /// Decide everything and write nothing, neither imports nor status nor events: each write is logged with what it
    /// would change.
    #[arg(long, env = "DRY_RUN")]
    dry_run: bool,

    /// Where to serve the page at /, /metrics, /healthz, /readyz, /debug/clusters and /debug/explain/NAMESPACE/NAME; [::] is
    /// every address of IPv6 and IPv4.
    #[arg(
        long,
        env = "ADMIN_ADDRESS",
        default_value = "[::]:8080",
        value_name = "IP:PORT"
    )]
    admin_address: SocketAddr,

    /// Where the documentation is published as a site, to which the page at / then links its reasons. Default: it names the
    /// pages and headings.
    #[arg(long, env = "DOCS_URL", value_name = "URL")]
    docs_url: Option<DocsUrl>,

    /// A bug to have.
    #[cfg(feature = "seeded-faults")]
    #[arg(long, hide = true)]
    pub(crate) seeded_fault: Option<crate::seeded::SeededFault>,

    #[command(flatten)]
    log: LogArgs,

    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// Other commands.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Command {
    Explain(ExplainArgs),
}

/// A mode, spelled as in the annotation `export-mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
enum ExportMode {
    EndpointMode,
    ParentMode,
}

/// A duration in a flag: `500ms`, `30s`, `5m`, `1h30m`; above zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span(Duration);

/// Validated flags.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) sources: Sources,
    pub(crate) home: HomeSettings,
    pub(crate) policy: Policy,
    /// Without `--instance-id`, and with a home cluster: its uid is the instance.
    pub(crate) instance_from_home: bool,
    /// Without `--clusterset`, and with a home cluster: the name is read there.
    pub(crate) clusterset_from_home: bool,
    pub(crate) rules: Rules,
    pub(crate) initial_sync_timeout: Duration,
    pub(crate) write_timeout: Duration,
    pub(crate) drain_timeout: Duration,
    pub(crate) dry_run: bool,
    pub(crate) admin_address: SocketAddr,
    pub(crate) docs_url: Option<DocsUrl>,
}

// === impl Args ===

impl Program for Args {
    fn log(&self) -> &LogArgs {
        &self.log
    }

    fn is_service(&self) -> bool {
        self.command.is_none()
    }
}

// === impl ExportMode ===

impl From<ExportMode> for RoutingMode {
    fn from(mode: ExportMode) -> Self {
        match mode {
            ExportMode::EndpointMode => Self::EndpointMode,
            ExportMode::ParentMode => Self::ParentMode,
        }
    }
}

// === impl Span ===

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let expected = || format!("{text:?} is no duration above zero: use 500ms, 30s, 5m or 1h");
        let span: jiff::SignedDuration = text.parse().map_err(|_| expected())?;
        let duration = Duration::try_from(span).map_err(|_| expected())?;
        if duration.is_zero() {
            return Err(expected());
        }
        Ok(Self(duration))
    }
}

// === impl Settings ===

impl TryFrom<Args> for Settings {
    type Error = ConfigError;

    fn try_from(args: Args) -> Result<Self, Self::Error> {
        let Args {
            inventory,
            home,
            clusterset,
            instance_id,
            controller_name,
            strict_exported,
            default_export_mode,
            stale_after,
            caution,
            initial_sync_timeout,
            write_timeout,
            drain_timeout,
            removal_hold,
            dry_run,
            admin_address,
            docs_url,
            #[cfg(feature = "seeded-faults")]
                seeded_fault: _,
            log: _,
            command: _,
        } = args;
        let sources = inventory.validate()?;
        let clusterset_from_home = clusterset.is_none();
        let clusterset = clusterset.unwrap_or_else(|| clusterset::DEFAULT.to_owned());
        let instance_from_home = instance_id.is_none();
        let instance = instance_id.unwrap_or_else(|| clusterset.clone());
        for (flag, value) in [("--clusterset", &clusterset), ("--instance-id", &instance)] {
            if !is_label(value) {
                return Err(ConfigError::new(
                    format!("{flag} {value}"),
                    "at most 63 of a-z, 0-9 and '-', beginning and ending with a letter or digit",
                    format!("{flag} prod"),
                ));
            }
        }
        let well_formed = controller_name
            .split_once('/')
            .is_some_and(|(domain, path)| {
                let good = |c: char| c.is_ascii_alphanumeric() || "-._~%!$&'()*+,;=:/".contains(c);
                is_subdomain(domain) && !path.is_empty() && path.chars().all(good)
            });
        if !well_formed || controller_name.len() > 253 {
            return Err(ConfigError::new(
                format!("--controller-name {controller_name}"),
                "a domain, a slash and a path",
                format!("--controller-name {MCI_CONTROLLER}"),
            ));
        }
        let home = home.validate()?;
        Ok(Self {
            sources,
            policy: Policy {
                clusterset,
                instance,
                controller_name,
                strict_exported,
                default_mode: default_export_mode.into(),
                import_in_exporter: caution.import_in_exporter,
                epp_endpoints: caution.epp_endpoints,
                own_namespace: own_namespace(home.namespace.as_deref()),
            },
            home,
            instance_from_home,
            clusterset_from_home,
            rules: caution.rules(stale_after.0, removal_hold.0)?,
            initial_sync_timeout: initial_sync_timeout.0,
            write_timeout: write_timeout.0,
            drain_timeout: drain_timeout.0,
            dry_run,
            admin_address,
            docs_url,
        })
    }
}

/// The controller's own namespace, until the home cluster reports another one.
fn own_namespace(flag: Option<&str>) -> String {
    flag.unwrap_or("isthmus-system").to_owned()
}

impl Settings {
    /// Whether the writer is elected by a Lease; a dry run needs none.
    pub(crate) fn needs_lease(&self) -> bool {
        self.home.leader_elect && !self.dry_run
    }
}

#[cfg(test)]
mod tests;
