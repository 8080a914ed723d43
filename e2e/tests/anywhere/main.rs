//! What Isthmus promises on any clusters, seen by a kubeconfig and the URL of a gateway alone.
//!
//! Given a kubeconfig, the tests run against the clusters of its contexts `east` and `west`, where Isthmus is already installed;
//! given none, two clusters of the testbed are set up first as `kind/install.sh` sets up any, and then handed over in the
//! same way. What has to break clusters with the testbed's own hands is in `tests/suite`. See `e2e/README.md`.
#![cfg(test)]

mod bad_input;
mod export;
mod replacement;
mod requests;
mod testbed_clusters;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use anyhow::{Context, Result};
use clap::Parser;
use e2e::pair::Pair;
use libtest_mimic::Arguments;
use testbed::{Cluster, Inside, isthmus};
use tokio::runtime::{Handle, Runtime};

/// In order: what works first, then what is replaced.
const TESTS: &[e2e::Test<Pair>] = &e2e::tests![
    export::an_export_appears_in_the_other_cluster_with_its_exact_status,
    export::kubectl_shows_the_import_with_its_columns,
    export::a_users_edit_of_the_import_is_reverted,
    requests::a_json_request_is_answered_by_the_exporting_cluster,
    requests::tokens_arrive_one_by_one,
    requests::equal_weights_split_requests_and_each_picker_sees_its_share,
    requests::a_client_cannot_steer_the_pick,
    export::a_withdrawn_export_takes_the_import_and_the_route_answers_500,
    bad_input::a_malformed_body_is_refused_with_400,
    bad_input::a_huge_header_is_refused_and_the_gateway_goes_on,
    bad_input::an_unknown_model_is_refused_with_404,
    bad_input::a_wrong_export_value_exports_nothing_and_says_so,
    replacement::no_request_fails_while_a_model_server_is_replaced,
    replacement::requests_are_answered_again_once_killed_endpoint_pickers_are_replaced,
];

/// What is handed over of clusters, whoever runs them.
#[derive(Clone, Debug, clap::Args)]
struct Target {
    /// Clusters with Isthmus, as `kind/install.sh` leaves them: a kubeconfig with the contexts east and west. Without this, two
    /// clusters of the testbed
    #[arg(long, env = "ISTHMUS_E2E_KUBECONFIG", value_name = "PATH")]
    kubeconfig: Option<PathBuf>,

    /// How west's gateway is reached from here: scheme, host and port [default: the address in the status of the Gateway
    /// llm/inference]
    #[arg(
        long,
        env = "ISTHMUS_E2E_GATEWAY",
        value_name = "URL",
        requires = "kubeconfig"
    )]
    gateway: Option<String>,
}

#[derive(Debug, Parser)]
#[command(name = "anywhere")]
struct Flags {
    #[command(flatten)]
    target: Target,

    #[command(flatten)]
    tests: Arguments,
}

fn main() -> ExitCode {
    let flags = Flags::try_parse().unwrap_or_else(|error| error.exit());
    let Flags { target, tests } = flags;
    let arguments = match e2e::chosen(tests, TESTS) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let outcome = match target.kubeconfig {
        Some(kubeconfig) => runtime().and_then(|runtime| {
            let gateway = target.gateway.as_deref();
            run(&arguments, &kubeconfig, gateway, runtime.handle(), "")
        }),
        None => testbed::enter()
            .context("entering namespaces")
            .and_then(|inside| on_testbed(&inside, &arguments)),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("no test could run: {error:#}");
        ExitCode::FAILURE
    })
}

fn runtime() -> Result<Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    Ok(builder.enable_all().build()?)
}

/// Brings clusters up, hands them over, ends them.
fn on_testbed(inside: &Inside, arguments: &Arguments) -> Result<ExitCode> {
    let runtime = runtime()?;
    let logs = format!("\nlogs: {}", inside.logs_dir().display());
    let testbed = runtime.block_on(testbed_clusters::start(inside))?;
    let outcome = runtime
        .block_on(testbed_clusters::install(&testbed))
        .with_context(|| format!("setting them up{logs}"))
        .and_then(|kubeconfig| run(arguments, &kubeconfig, None, runtime.handle(), &logs));
    runtime.block_on(testbed.stop());
    outcome
}

/// Runs the tests on clusters that are up.
fn run(
    arguments: &Arguments,
    kubeconfig: &Path,
    gateway: Option<&str>,
    handle: &Handle,
    hint: &str,
) -> Result<ExitCode> {
    let pair = Arc::new(handle.block_on(connect(kubeconfig, gateway))?);
    Ok(e2e::run(arguments, TESTS, &pair, handle, hint).exit_code())
}

async fn connect(kubeconfig: &Path, gateway: Option<&str>) -> Result<Pair> {
    let kubectl = testbed::find_kubectl()?;
    let east = Cluster::from_context("east", kubeconfig, &kubectl).await?;
    let west = Cluster::from_context("west", kubeconfig, &kubectl).await?;
    let url = match gateway {
        Some(url) => url.to_owned(),
        None => isthmus::gateway_url(&west, isthmus::POOL_NAMESPACE, "inference").await?,
    };
    Ok(Pair::new(east, west, &url))
}
