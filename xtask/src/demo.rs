//! `cargo xtask demo`: builds what the demo needs and hands over to it.

use std::process::Command;

use anyhow::Result;
use clap::ValueEnum;

use crate::{
    command::{become_it, cargo, run},
    tools, workspace,
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

/// Those that the demos without Kubernetes run.
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
    /// Two clusters, an exported pool, and requests from one cluster to the other
    Clusters,
    /// An endpoint picker, Envoy and simulated model servers, without Kubernetes
    Epp,
    /// Three endpoint pickers that share load and prompt caches through a Metadata-Center and Redis, without Kubernetes
    Llm,
    /// An endpoint picker that asks a Processor for token ids and a Router for a worker, without Kubernetes
    Dynamo,
}

pub(crate) fn run_demo(args: &Args) -> Result<()> {
    println!("Preparing (the first time takes some minutes)");
    let testbed = ["--package", "testbed", "--profile", "quick-release"];
    let mut demo = match args.demo {
        Demo::Clusters => {
            let tools = tools::ensure()?;
            run(&mut programs(&testbed))?;
            let mut demo = Command::new(workspace::quick_release().join("demo"));
            tools.tell(&mut demo)?;
            demo
        }
        Demo::Epp => {
            let envoy = tools::envoy()?;
            run(&mut build(&STANDALONE, &testbed))?;
            let mut demo = Command::new(workspace::quick_release().join("demo"));
            demo.arg("epp").env("ENVOY_BIN", envoy);
            demo
        }
        Demo::Llm => {
            let (envoy, redis) = (tools::envoy()?, tools::redis()?);
            run(&mut build(&LLM, &testbed))?;
            let mut demo = Command::new(workspace::quick_release().join("demo"));
            demo.arg("llm")
                .env("ENVOY_BIN", envoy)
                .env("REDIS_SERVER_BIN", redis);
            demo
        }
        Demo::Dynamo => {
            let envoy = tools::envoy()?;
            run(&mut build(&DYNAMO, &testbed))?;
            let mut demo = Command::new(workspace::quick_release().join("demo"));
            demo.arg("dynamo").env("ENVOY_BIN", envoy);
            demo
        }
    };
    demo.env("ISTHMUS_BIN_DIR", workspace::quick_release());
    if args.keep {
        demo.arg("--keep");
    }
    become_it(&mut demo)
}

/// `cargo build` of what the end-to-end tests and the demo with clusters run, with these flags besides.
pub(crate) fn programs(flags: &[&str]) -> Command {
    let mut command = build(&PROGRAMS, flags);
    command.args(["--package", PLUGIN]);
    command
}

fn build(programs: &[&str], flags: &[&str]) -> Command {
    let mut command = cargo(&["build", "--locked"]);
    for program in programs {
        command.args(["--package", program]);
    }
    command.args(flags);
    command
}
