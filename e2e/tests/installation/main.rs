//! The commands of `docs/installation.md`, from the first to the last, as they stand there, on two clusters that have
//! nothing of ours yet.
#![cfg(test)]

use std::{ffi::OsString, path::Path, process::ExitCode, time::Duration};

use anyhow::{Context, Result, ensure};
use k8s_openapi::{
    api::{apps::v1::Deployment, rbac::v1::ClusterRole},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{Api, ResourceExt, api::ListParams};
use libtest_mimic::{Arguments, Trial};
use testbed::{Inside, Manifests, Testbed, isthmus};
use tokio::process::Command;

const PAGE: &str = include_str!("../../../docs/installation.md");
const NAME: &str = "the_page_installs_upgrades_and_uninstalls_by_helm_and_by_hand";
/// All waits of the page are shorter.
const LIMIT: Duration = Duration::from_mins(6);

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    if arguments.list || !e2e::is_chosen(&arguments, NAME) {
        return libtest_mimic::run(&arguments, vec![Trial::test(NAME, || Ok(()))]).exit_code();
    }
    let outcome = testbed::enter()
        .context("entering namespaces")
        .and_then(|inside| run(&inside, &arguments));
    outcome.unwrap_or_else(|error| {
        eprintln!("the clusters did not start: {error:#}");
        ExitCode::FAILURE
    })
}

fn run(inside: &Inside, arguments: &Arguments) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let testbed = runtime.block_on(start(inside))?;
    let handle = runtime.handle().clone();
    let trial = Trial::test(NAME, move || {
        let logs = testbed.logs_dir();
        let outcome = handle.block_on(follow(&testbed));
        handle.block_on(testbed.stop());
        outcome.map_err(|error| format!("{error:#}\nlogs: {}", logs.display()).into())
    });
    Ok(libtest_mimic::run(arguments, vec![trial]).exit_code())
}

/// What the page expects to be there: clusters with the CRDs of others.
async fn start(inside: &Inside) -> Result<Testbed> {
    let manifests = Manifests::find().await?;
    let mut builder = isthmus::with_programs(Testbed::builder(inside))?
        .cluster("east")
        .cluster("west")
        .without_definitions()
        .manifest(manifests.inference_pool);
    for definition in manifests.gateway_api {
        builder = builder.manifest(definition);
    }
    Ok(builder.start(|_| {}).await?)
}

async fn follow(testbed: &Testbed) -> Result<()> {
    let mut kubeconfigs = Vec::new();
    for cluster in testbed.clusters() {
        kubeconfigs.push(cluster.kubeconfig_path().to_owned());
    }
    let kubectl = testbed.tools().kubectl.parent().map(Path::to_owned);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let helm = e2e::tools::helm()?.parent().map(Path::to_owned);
    let ours = kubectl.into_iter().chain(helm);
    let path: OsString = std::env::join_paths(ours.chain(std::env::split_paths(&path)))?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    let mut bash = Command::new("bash");
    bash.args(["-eEuo", "pipefail", "-c", &script()])
        .env("KUBECONFIG", std::env::join_paths(kubeconfigs)?)
        .env("PATH", path)
        .envs(["CACHE", "CONFIG", "DATA"].map(|home| {
            let directory = testbed.logs_dir().join("helm").join(home);
            (format!("HELM_{home}_HOME"), directory)
        }))
        .current_dir(root.context("the workspace")?)
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true);
    let output = tokio::time::timeout(LIMIT, bash.output())
        .await
        .with_context(|| format!("the page's commands: no end after {LIMIT:?}"))??;
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    ensure!(output.status.success(), "{}\n{out}\n{err}", output.status);
    ensure!(out.contains("exported to 1/1"), "{out}\n{err}");
    for cluster in testbed.clusters() {
        let name = cluster.name();
        let definitions: Api<CustomResourceDefinition> = Api::all(cluster.client());
        let ours = definitions
            .get_opt("inferencepoolimports.inference.networking.x-k8s.io")
            .await?;
        ensure!(
            ours.is_none_or(|ours| ours.metadata.deletion_timestamp.is_some()),
            "the CRD is still in {name}"
        );
        let roles: Api<ClusterRole> = Api::all(cluster.client());
        let roles = roles.list(&ListParams::default()).await?;
        let left = roles.iter().map(ResourceExt::name_any);
        let left: Vec<String> = left.filter(|name| name.starts_with("isthmus")).collect();
        ensure!(left.is_empty(), "left in {name}: {left:?}");
        let deployments: Api<Deployment> = Api::namespaced(cluster.client(), isthmus::NAMESPACE);
        let deployments = deployments.list(&ListParams::default()).await?;
        ensure!(
            deployments.items.is_empty(),
            "the controller is still in {name}"
        );
    }
    Ok(())
}

/// The page's blocks of shell commands, in order.
fn script() -> String {
    // not -x: kubeconfigs and tokens go through these commands
    let mut script = String::from("trap 'echo \"failed: $BASH_COMMAND\" >&2' ERR\n");
    let mut inside = false;
    for line in PAGE.lines() {
        match line {
            "```sh" => inside = true,
            "```" => inside = false,
            _ if inside => {
                script.push_str(line);
                script.push('\n');
            }
            _ => {}
        }
    }
    script
}
