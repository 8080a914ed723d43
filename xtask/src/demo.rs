//! `cargo xtask demo`: builds what the demo needs and hands over to it.

use std::process::Command;

use anyhow::Result;
use clap::ValueEnum;

use crate::{
    command::{become_it, cargo, run_as_step},
    tools::{self, Preparing},
    workspace,
};

/// Programs that run in clusters, as packages.
pub(crate) const PROGRAMS: [&str; 7] = [
    "epp",
    "gateway",
    "mci-controller",
    "metadata-center",
    "model-server-sim",
    "processor",
    "router",
];

/// Runs beside kubectl: for whoever looks at the clusters.
pub(crate) const PLUGIN: &str = "kubectl-mci";

/// The programs that a demo with clusters runs.
const CLUSTERS: [&str; 4] = ["epp", "gateway", "mci-controller", "model-server-sim"];
const STANDALONE: [&str; 2] = ["epp", "model-server-sim"];
const DYNAMO: [&str; 4] = ["epp", "model-server-sim", "processor", "router"];
const LLM: [&str; 3] = ["epp", "metadata-center", "model-server-sim"];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What to show
    #[arg(value_name = "DEMO", default_value = "clusters")]
    demo: Demo,
    /// Leave everything up until Ctrl-C, and print addresses (and kubeconfigs, where there are clusters)
    #[arg(long)]
    keep: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Demo {
    /// Three clusters, an exported pool, requests from one cluster to the others, and what faults and load change
    Clusters,
    /// An endpoint picker, Envoy and simulated model servers, without Kubernetes
    Epp,
    /// Three endpoint pickers that share load and prompt caches through a Metadata-Center and Redis, without Kubernetes
    Llm,
    /// An endpoint picker that asks a Processor for token ids and a Router for a worker, without Kubernetes
    Dynamo,
}

pub(crate) fn run_demo(args: &Args) -> Result<()> {
    let directory = workspace::target().join("debug");
    let mut demo = Command::new(directory.join("demo"));
    let kind = args.demo;
    match kind {
        Demo::Clusters => {
            println!(
                "Preparing: Kubernetes' programs and ours are built, on two cores for some 9 minutes the first time"
            );
            // both take minutes from nothing, and neither keeps two cores busy all the time
            let kubernetes = Preparing::begin(|| tools::ensure().map(|_| ()));
            build(&CLUSTERS)?;
            kubernetes.finish()?;
            tools::ensure()?.tell(&mut demo)?;
        }
        Demo::Epp => {
            prepare(kind, &STANDALONE, &mut demo)?;
        }
        Demo::Llm => {
            prepare(kind, &LLM, &mut demo)?;
            demo.env("REDIS_SERVER_BIN", tools::redis()?);
        }
        Demo::Dynamo => {
            prepare(kind, &DYNAMO, &mut demo)?;
        }
    }
    demo.env("ISTHMUS_BIN_DIR", directory);
    if args.keep {
        demo.arg("--keep");
    }
    become_it(&mut demo)
}

/// What a demo without clusters needs.
fn prepare(demo: Demo, programs: &[&str], command: &mut Command) -> Result<()> {
    println!("Preparing: our programs are built, on two cores for some 5 minutes the first time");
    let envoy = tools::envoy()?;
    build(programs)?;
    if let Some(name) = demo.to_possible_value() {
        command.arg(name.get_name());
    }
    command.env("ENVOY_BIN", envoy);
    Ok(())
}

/// Builds these programs and the one that shows them, with the workspace's features, as the tests build them.
fn build(programs: &[&str]) -> Result<()> {
    let mut command = cargo(&["build", "--workspace", "--locked", "--bin", "demo"]);
    for program in programs {
        command.args(["--bin", program]);
    }
    run_as_step("building our programs", &mut command)
}
