//! `cargo xtask demo`: builds what the demo needs and hands over to it.

use std::process::Command;

use anyhow::Result;

use crate::{
    command::{become_it, cargo, run},
    tools, workspace,
};

/// Programs that run in clusters, as packages.
const PROGRAMS: [&str; 4] = ["epp", "gateway", "mci-controller", "model-server-sim"];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Leave the clusters up until Ctrl-C, and print kubeconfigs and addresses
    #[arg(long)]
    keep: bool,
}

pub(crate) fn run_demo(args: &Args) -> Result<()> {
    println!("Preparing (the first time takes some minutes)");
    let tools = tools::ensure()?;
    run(&mut programs(&[
        "--package",
        "testbed",
        "--profile",
        "quick-release",
    ]))?;
    let mut demo = Command::new(workspace::quick_release().join("demo"));
    tools.tell(&mut demo)?;
    demo.env("ISTHMUS_BIN_DIR", workspace::quick_release());
    if args.keep {
        demo.arg("--keep");
    }
    become_it(&mut demo)
}

/// `cargo build` of the programs that run in clusters, with these flags besides.
pub(crate) fn programs(flags: &[&str]) -> Command {
    let mut command = cargo(&["build", "--locked"]);
    for program in PROGRAMS {
        command.args(["--package", program]);
    }
    command.args(flags);
    command
}
