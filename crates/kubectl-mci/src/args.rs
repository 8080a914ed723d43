//! The command line.

use std::{path::PathBuf, str::FromStr};

use clap::{Parser, Subcommand, builder::TypedValueParser as _};
use clap_complete::Shell;
use crd::{
    RoutingMode,
    networks::{Cidr, parse_pod_cidrs},
};
use mci_model::{
    index::grant::ExportNamespaces,
    name::{is_label, is_subdomain},
};
use process::Span;

mod before;

pub(crate) use self::before::BeforeArgs;
use crate::output::Format;

/// Where the charts have the controller.
pub(crate) const HOME_NAMESPACE: &str = "isthmus-system";
/// The controller's default too.
pub(crate) const CLUSTERSET: &str = "default";

/// Join clusters to a ClusterSet, export their pools of model servers, and see what is missing.
///
/// The home cluster is the one that the ClusterSet controller runs in: that of the current context, or of --home-context.
/// The members are those that home has Secrets of; each is looked at through the context that has its name, or else leads to
/// its API server. No other context of the kubeconfig is touched. Commands for one cluster use the current context, or
/// --context. --context, --home-context, --home-namespace and --clusterset may stand before the command, too.
#[derive(Clone, Debug, Parser)]
#[command(name = "kubectl-mci", bin_name = "kubectl mci", version)]
pub struct Args {
    /// The kubeconfig [default: the files in KUBECONFIG, else ~/.kube/config]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) before: BeforeArgs,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Command {
    Check(CheckArgs),
    Join(JoinArgs),
    Leave(LeaveArgs),
    Export(ExportArgs),
    Unexport(UnexportArgs),
    Status(StatusArgs),
    Explain(ExplainArgs),
    Route(RouteArgs),
    Completion(CompletionArgs),
    /// What kubectl asks for, through kubectl_complete-mci
    #[command(name = "__complete", hide = true)]
    Complete {
        /// The words so far, the last one unfinished
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
}

/// Look for what is missing or wrong in each cluster, before and after installing
///
/// One line each, with what to do. Exit code 0: nothing is wrong; 1: something is; 2: nothing that was seen is wrong, and not
/// all could be seen. Where no cluster is a member yet, name them: --contexts east,west.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) fleet: FleetArgs,
}

/// Make a cluster a member: the controller's rights and a token in it, and a Secret with its kubeconfig at home
///
/// Again for a member: its token is replaced, and the controller misses nothing. What is there already stays as it is.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct JoinArgs {
    /// Name of the member, which stands in the imports of all others: choose it for good
    pub(crate) cluster: String,

    /// Context that leads to the cluster [default: the context of the member's name]
    #[arg(long, value_name = "CONTEXT")]
    pub(crate) context: Option<String>,

    #[command(flatten)]
    pub(crate) home: HomeArgs,

    /// Where the controller reaches the cluster's API server, https://HOST:PORT [default: as the member's Secret has it, else the context]
    #[arg(long, value_name = "URL")]
    pub(crate) server: Option<String>,

    /// Network of the cluster's pods, repeatable: other clusters send requests nowhere else that its endpoint pickers say
    /// [default: as the member's Secret has it, else around the podCIDRs of its nodes, which is printed, and on a terminal asked
    /// about; where pods have addresses outside of these, nothing is done without this flag]
    #[arg(long, value_name = "CIDR", value_delimiter = ',', value_parser = pod_cidr)]
    pub(crate) pod_cidr: Vec<Cidr>,

    /// Namespaces that the cluster may export: names, beginnings such as team-*, or * for all but those of the system, which
    /// have to be named in full [default: as the member's Secret has it, else *]
    #[arg(long, value_name = "NAME,…")]
    pub(crate) namespaces: Option<ExportNamespaces>,

    /// How long the token is to live, 10m to 8760h; an API server may shorten it
    #[arg(long, default_value = "8760h", value_name = "DURATION", value_parser = token_lifetime)]
    pub(crate) token_lifetime: Span,

    /// Take over fields of these objects that another tool wrote otherwise
    #[arg(long)]
    pub(crate) force_conflicts: bool,

    /// Print what would be applied, with TOKEN in place of the token, and change nothing. Home is not looked at: the server is that
    /// of --server or the context, where a Secret that is there would keep its own, and its networks and namespaces
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// End a membership: the Secret at home goes first, then, once the controller has let the cluster go, its rights there
///
/// Run it again if it was stopped in between. It changes nothing where the member is not defined by a Secret, and keeps the
/// rights in the cluster while a controller may still use them.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct LeaveArgs {
    /// Name of the member
    pub(crate) cluster: String,

    /// Context that leads to the cluster [default: the context of the member's name]
    #[arg(long, value_name = "CONTEXT")]
    pub(crate) context: Option<String>,

    #[command(flatten)]
    pub(crate) home: HomeArgs,

    /// How long to wait for the controller to let the cluster go
    #[arg(long, default_value = "90s", value_name = "DURATION")]
    pub(crate) timeout: Span,

    /// Take the rights away even where it was not seen that the controller has let the cluster go; of a cluster that cannot be
    /// reached, delete the Secret at home alone
    #[arg(long)]
    pub(crate) force: bool,

    /// Say what would be deleted, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Export a pool to all members of the ClusterSet
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    pub(crate) pool: PoolArgs,

    /// How other clusters reach it: EndpointMode asks its endpoint picker, ParentMode goes through its Gateway [default: as
    /// the pool's annotation has it, else the controller's default]
    #[arg(long, value_name = "MODE", value_parser = clap::builder::PossibleValuesParser::new(["EndpointMode", "ParentMode"]).map(|mode| mode_of(&mode)))]
    pub(crate) mode: Option<RoutingMode>,

    /// With --wait: contexts of the clusters to look at for whether they can use it; MEMBER=CONTEXT where a member has another
    /// name [default: home's members]
    #[arg(long, value_name = "[MEMBER=]CONTEXT,…", value_delimiter = ',')]
    pub(crate) contexts: Vec<NamedContext>,

    #[command(flatten)]
    pub(crate) home: HomeArgs,

    #[command(flatten)]
    pub(crate) wait: WaitArgs,
}

/// Stop exporting a pool
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct UnexportArgs {
    #[command(flatten)]
    pub(crate) pool: PoolArgs,

    #[command(flatten)]
    pub(crate) wait: WaitArgs,
}

/// Show which cluster exports and imports which pool, and why one does not
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct StatusArgs {
    /// Pools of this namespace alone [default: of all]
    #[arg(short, long, value_name = "NAME")]
    pub(crate) namespace: Option<String>,

    #[command(flatten)]
    pub(crate) fleet: FleetArgs,
}

/// Explain why each member has or lacks one pool, as the controller sees it
///
/// It is asked through the API server of the home cluster, which takes the right to get pods/proxy there; where that is not
/// possible, the conditions of the objects are shown.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ExplainArgs {
    /// The pool, NAME or NAMESPACE/NAME
    #[arg(value_name = "POOL")]
    pub(crate) pool: PoolName,

    /// Its namespace [default: that of the home context]
    #[arg(short, long, value_name = "NAME")]
    pub(crate) namespace: Option<String>,

    #[command(flatten)]
    pub(crate) fleet: FleetArgs,
}

/// Print an HTTPRoute to a pool of other clusters, to start from
///
/// With a Gateway, where the cluster has none of ours. To use it: kubectl mci route llama -n llm | kubectl apply -f -
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RouteArgs {
    #[command(flatten)]
    pub(crate) pool: PoolArgs,

    /// Gateway to attach to, NAME or NAMESPACE/NAME [default: one of ours, of the pool's namespace first]
    #[arg(long, value_name = "GATEWAY")]
    pub(crate) gateway: Option<PoolName>,

    /// Host name of the requests [default: any]
    #[arg(long, value_name = "HOST")]
    pub(crate) hostname: Option<String>,
}

/// Print the completion of a shell
///
/// kubectl completes its plugins with an executable named kubectl_complete-mci on PATH:
/// `kubectl mci completion kubectl > ~/.local/bin/kubectl_complete-mci; chmod +x ~/.local/bin/kubectl_complete-mci`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct CompletionArgs {
    /// kubectl for `kubectl mci`, or a shell for kubectl-mci on its own
    #[arg(value_name = "SHELL", value_parser = ["kubectl", "bash", "elvish", "fish", "powershell", "zsh"])]
    pub(crate) shell: String,
}

/// A pool in one cluster.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PoolArgs {
    /// The pool, NAME or NAMESPACE/NAME
    #[arg(value_name = "POOL")]
    pub(crate) pool: PoolName,

    /// Its namespace [default: that of the context]
    #[arg(short, long, value_name = "NAME")]
    pub(crate) namespace: Option<String>,

    /// Context that leads to its cluster [default: the current context]
    #[arg(long, value_name = "CONTEXT")]
    pub(crate) context: Option<String>,
}

/// Where the controller is.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct HomeArgs {
    /// Context that leads to the home cluster [default: the current context]
    #[arg(long, value_name = "CONTEXT")]
    pub(crate) home_context: Option<String>,

    /// Namespace of the controller and of the members' Secrets
    #[arg(long, default_value = HOME_NAMESPACE, value_name = "NAME")]
    pub(crate) home_namespace: String,

    /// Name of the ClusterSet, as the controller's --clusterset has it
    #[arg(long, default_value = CLUSTERSET, value_name = "NAME")]
    pub(crate) clusterset: String,
}

/// Which clusters are looked at.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct FleetArgs {
    /// Contexts of the clusters to look at, whether they are members or not; MEMBER=CONTEXT where a member has another name
    /// [default: home's members]
    #[arg(long, value_name = "[MEMBER=]CONTEXT,…", value_delimiter = ',')]
    pub(crate) contexts: Vec<NamedContext>,

    /// The same as --home-context, as kubectl has it: the context in place of the current one
    #[arg(long, value_name = "CONTEXT", conflicts_with = "home_context")]
    pub(crate) context: Option<String>,

    #[command(flatten)]
    pub(crate) home: HomeArgs,

    /// What to print
    #[arg(short, long, default_value = "text", value_name = "FORMAT")]
    pub(crate) output: Format,
}

// === impl FleetArgs ===

impl FleetArgs {
    /// Context that leads to home, where one was named.
    pub(crate) fn home_context(&self) -> Option<&str> {
        let named = self.home.home_context.as_ref();
        named.or(self.context.as_ref()).map(String::as_str)
    }
}

/// Whether to wait for the controller.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct WaitArgs {
    /// Wait until the controller has done it in every cluster, and until those that are looked at can use an export
    #[arg(long)]
    pub(crate) wait: bool,

    /// How long to wait
    #[arg(
        long,
        default_value = "60s",
        value_name = "DURATION",
        requires = "wait"
    )]
    pub(crate) timeout: Span,
}

/// `NAME` or `NAMESPACE/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PoolName {
    namespace: Option<String>,
    name: String,
}

/// `CONTEXT` or `MEMBER=CONTEXT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamedContext {
    pub(crate) member: Option<String>,
    pub(crate) context: String,
}

/// The API server makes no shorter ones.
const SHORTEST_TOKEN: std::time::Duration = std::time::Duration::from_mins(10);

// === impl PoolArgs ===

impl PoolArgs {
    /// Namespace and name; `default` is the context's namespace.
    pub(crate) fn name(&self, default: &str) -> (String, String) {
        self.pool.of(self.namespace.as_deref(), default)
    }
}

// === impl PoolName ===

impl PoolName {
    /// Namespace and name: what it says itself goes before what a flag says.
    pub(crate) fn of(&self, flag: Option<&str>, default: &str) -> (String, String) {
        let namespace = self.namespace.as_deref().or(flag).unwrap_or(default);
        (namespace.to_owned(), self.name.clone())
    }
}

impl FromStr for PoolName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (namespace, name) = match text.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, text),
        };
        if namespace.is_none_or(is_label) && is_subdomain(name) {
            Ok(Self {
                namespace: namespace.map(ToOwned::to_owned),
                name: name.to_owned(),
            })
        } else {
            Err("expected the name of a pool, such as llama or llm/llama".to_owned())
        }
    }
}

// === impl NamedContext ===

impl FromStr for NamedContext {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // a context's name may hold anything, a member's may not
        let named = text.split_once('=').filter(|(member, _)| is_label(member));
        let (member, context) = named.map_or((None, text), |(member, context)| {
            (Some(member.to_owned()), context)
        });
        if context.is_empty() {
            return Err("expected CONTEXT or MEMBER=CONTEXT".to_owned());
        }
        Ok(Self {
            member,
            context: context.to_owned(),
        })
    }
}

fn mode_of(text: &str) -> RoutingMode {
    match text {
        "ParentMode" => RoutingMode::ParentMode,
        _ => RoutingMode::EndpointMode,
    }
}

fn pod_cidr(text: &str) -> Result<Cidr, String> {
    parse_pod_cidrs(text).map_err(|error| error.to_string())?;
    text.parse::<Cidr>()
        .map(Cidr::masked)
        .map_err(|error| error.to_string())
}

fn token_lifetime(text: &str) -> Result<Span, String> {
    let span: Span = text.parse()?;
    if span.0 < SHORTEST_TOKEN {
        return Err("an API server makes no token for less than 10m".to_owned());
    }
    Ok(span)
}

/// The shell of this name; none for `kubectl`.
pub(crate) fn shell_of(name: &str) -> Option<Shell> {
    name.parse().ok()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use rstest::rstest;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Args::command().debug_assert();
    }

    fn parse(line: &str) -> Result<Args, clap::Error> {
        Args::try_parse_from(line.split_whitespace())
    }

    #[rstest]
    #[case("kubectl-mci export llama", "team", ("team", "llama"))]
    #[case("kubectl-mci export llama -n llm", "team", ("llm", "llama"))]
    #[case("kubectl-mci export llm/llama", "team", ("llm", "llama"))]
    fn a_pool_is_in_the_namespace_that_was_named_last(
        #[case] line: &str,
        #[case] of_context: &str,
        #[case] expected: (&str, &str),
    ) {
        let Command::Export(args) = parse(line).expect("parses").command else {
            panic!("another command");
        };
        let (namespace, name) = args.pool.name(of_context);
        assert_eq!((namespace.as_str(), name.as_str()), expected);
    }

    #[rstest]
    #[case("kubectl-mci export a/b/c", "expected the name of a pool")]
    #[case("kubectl-mci export Llama", "expected the name of a pool")]
    #[case(
        "kubectl-mci export llama --mode endpointmode",
        "possible values: EndpointMode, ParentMode"
    )]
    #[case("kubectl-mci export llama --timeout 5s", "not provided:\n  --wait")]
    #[case(
        "kubectl-mci join east --token-lifetime 9m",
        "no token for less than 10m"
    )]
    #[case(
        "kubectl-mci status --contexts a,b=",
        "expected CONTEXT or MEMBER=CONTEXT"
    )]
    fn what_cannot_be_meant_is_refused_with_its_reason(#[case] line: &str, #[case] why: &str) {
        let error = parse(line).expect_err("refused").to_string();
        assert!(error.contains(why), "{error}");
    }

    #[rstest]
    #[case("east", None, "east")]
    #[case("east=kind-east", Some("east"), "kind-east")]
    #[case("arn:aws:eks/Prod=1", None, "arn:aws:eks/Prod=1")]
    fn a_context_may_have_a_members_name(
        #[case] text: &str,
        #[case] member: Option<&str>,
        #[case] context: &str,
    ) {
        let named: NamedContext = text.parse().expect("parses");
        assert_eq!(named.member.as_deref(), member);
        assert_eq!(named.context, context);
    }
}
