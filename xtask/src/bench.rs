//! `cargo xtask bench` and `cargo xtask soak`: the controller as a process, under load from another.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::{
    command::{become_it, cargo, run},
    tools, workspace,
};

/// The one that needs etcd and kube-apiserver.
const REAL: &str = "real";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What to measure: propagation10, propagation100, propagation1000, restart, large, failover, real; default: all
    names: Vec<String>,
    /// Of propagation, only the cases with this in their names, such as '50 exporters, TLS'
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Write the figures to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SoakArgs {
    /// How long members die and things change, in minutes
    #[arg(long, default_value_t = 5)]
    minutes: u64,
    /// How many clusters
    #[arg(long, default_value_t = 200)]
    members: usize,
    /// Of what is random, as an earlier run printed it
    #[arg(long)]
    seed: Option<u64>,
}

pub(crate) fn run_bench(args: &Args) -> Result<()> {
    let mut bench = built("bench", true)?;
    if args.names.is_empty() || args.names.iter().any(|name| name == REAL) {
        tools::ensure()?.tell(&mut bench)?;
    }
    bench.args(&args.names);
    if let Some(only) = &args.only {
        bench.args(["--only", only]);
    }
    if let Some(file) = &args.json {
        bench.arg("--json").arg(std::path::absolute(file)?);
    }
    become_it(&mut bench)
}

pub(crate) fn run_soak(args: &SoakArgs) -> Result<()> {
    let mut soak = built("soak", true)?;
    soak.args(["--seconds", &(args.minutes * 60).to_string()]);
    soak.args(["--members", &args.members.to_string()]);
    if let Some(seed) = args.seed {
        soak.args(["--seed", &seed.to_string()]);
    }
    become_it(&mut soak)
}

/// The soak as a test: the programs as the other tests build them, fewer clusters and less time.
pub(crate) fn short_soak() -> Result<Command> {
    let mut soak = built("soak", false)?;
    soak.args(["--seconds", "60", "--members", "30"]);
    Ok(soak)
}

/// Builds the controller and a program of `bench`, and names one to the other.
fn built(program: &str, release: bool) -> Result<Command> {
    let mut build = cargo(&[
        "build",
        "--locked",
        "--package",
        "mci-controller",
        "--package",
        "bench",
    ]);
    let directory = if release {
        build.arg("--release");
        "release"
    } else {
        "debug"
    };
    run(&mut build)?;
    let directory = workspace::target().join(directory);
    let mut command = Command::new(directory.join(program));
    command
        .arg("--controller")
        .arg(directory.join("mci-controller"));
    command.arg("--logs").arg(logs(program)?);
    Ok(command)
}

fn logs(program: &str) -> Result<PathBuf> {
    let logs: PathBuf = Path::new(&workspace::target()).join("logs").join(program);
    std::fs::create_dir_all(&logs).with_context(|| format!("creating {}", logs.display()))?;
    Ok(logs)
}
