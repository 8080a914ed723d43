//! `cargo xtask bench` and `cargo xtask soak`: the controller, the EPP and the gateway as processes, under load from another.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use crate::{
    command::{become_it, cargo, output, run},
    signals::Running,
    tools, workspace,
};

/// The one-minute form of the soak.
const SHORT: [&str; 4] = ["--seconds", "60", "--members", "30"];
/// The controller with bugs to be switched on, and their names as it has them.
const SEEDED: &str = "mci-controller-seeded";
const BUGS: [&str; 4] = [
    "lost-watch-is-empty-list",
    "deleted-without-crd-check",
    "carried-entries-dropped",
    "removal-ignores-guard",
];
/// How the soak names a loss.
const LOSS: &str = "without evidence";
/// The one that needs etcd and kube-apiserver.
const REAL: &str = "real";
/// The one that needs the EPP and model servers, and no controller.
const EPP: &str = "epp";
/// The one that needs the Metadata-Center beside them, and a Redis.
const METADATA: &str = "metadata";
/// The one that needs Processor and Router beside them.
const DYNAMO: &str = "dynamo";
/// The one that needs the gateway.
const GATEWAY: &str = "gateway";
/// The one that needs the gateway, the EPP and an Envoy.
const DATAPATH: &str = "datapath";
/// Those that need no controller.
const WITHOUT_CONTROLLER: [&str; 7] = [
    EPP,
    "epp-quality",
    METADATA,
    "router",
    DYNAMO,
    GATEWAY,
    DATAPATH,
];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What to measure: propagation10, propagation100, propagation1000, restart, large, failover, real, epp, epp-quality, metadata, router, dynamo, gateway, datapath, nothing; default: all
    names: Vec<String>,
    /// Of propagation, epp, epp-quality, metadata, router, dynamo, gateway and datapath, only the cases with this in their names, such as '50 exporters, TLS'
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Of epp, metadata, dynamo, gateway and datapath, a twentieth of the requests, to see that all works: such figures say nothing
    #[arg(long, conflicts_with = "write_docs")]
    quick: bool,
    /// Of router, a trace to replay beside the generated prompts
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// How it is written: mooncake or bailian
    #[arg(long, value_name = "FORMAT", default_value = "mooncake")]
    trace_format: String,
    /// Write the figures to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the figures into the table of docs/figures.md, with the commit that they are of
    #[arg(long)]
    write_docs: bool,
    /// Exit with 1 if a figure misses its goal; otherwise a missed goal is only reported
    #[arg(long)]
    strict: bool,
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
    /// Instead, give the controller one bug after the other and check that the one-minute form finds each
    #[arg(long, conflicts_with_all = ["minutes", "members"])]
    prove: bool,
}

pub(crate) fn run_bench(args: &Args) -> Result<()> {
    let state = if args.write_docs {
        Some(committed()?)
    } else {
        None
    };
    let needs = |part: &str| args.names.is_empty() || args.names.iter().any(|name| name == part);
    let mut packages: Vec<&str> = Vec::new();
    let alone = |name: &String| WITHOUT_CONTROLLER.contains(&name.as_str());
    if args.names.is_empty() || !args.names.iter().all(alone) {
        packages.push("mci-controller");
    }
    if needs(EPP) || needs(METADATA) || needs(DYNAMO) {
        packages.extend(["epp", "model-server-sim"]);
    }
    if needs(METADATA) {
        packages.push("metadata-center");
    }
    if needs(DYNAMO) {
        packages.extend(["processor", "router"]);
    }
    if needs(GATEWAY) {
        packages.push(GATEWAY);
    }
    if needs(DATAPATH) {
        packages.extend([GATEWAY, EPP]);
    }
    let mut bench = built("bench", &packages)?;
    if needs(REAL) {
        tools::ensure()?.tell(&mut bench)?;
    }
    if needs(METADATA) {
        bench.env("REDIS_SERVER_BIN", tools::redis()?);
    }
    if needs(DATAPATH) {
        bench.env("ENVOY_BIN", tools::envoy()?);
    }
    bench.args(&args.names);
    if let Some(only) = &args.only {
        bench.args(["--only", only]);
    }
    if args.quick {
        bench.arg("--quick");
    }
    if args.strict {
        bench.arg("--strict");
    }
    if let Some(file) = &args.trace {
        bench.arg("--trace").arg(std::path::absolute(file)?);
        bench.args(["--trace-format", &args.trace_format]);
    }
    if let Some(file) = &args.json {
        bench.arg("--json").arg(std::path::absolute(file)?);
    }
    if let Some(state) = state {
        let document = workspace::root().join("docs/figures.md");
        bench.arg("--document").arg(document);
        bench.args(["--state", &state]);
    }
    become_it(&mut bench)
}

/// The commit that is checked out.
///
/// # Errors
/// Where files differ from it, other than the document that figures are written into: such figures are of no commit.
fn committed() -> Result<String> {
    let git = |args: &[&str]| -> Result<String> {
        let text = output(
            Command::new("git")
                .args(args)
                .current_dir(workspace::root()),
        )?;
        Ok(String::from_utf8_lossy(&text).trim().to_owned())
    };
    let changed = git(&[
        "status",
        "--porcelain",
        "--untracked-files=all",
        "--",
        ".",
        ":!docs/figures.md",
    ])?;
    refuse_changes(&changed)?;
    git(&["rev-parse", "--short", "HEAD"])
}

/// Rejects changes that `git status --porcelain` reports.
fn refuse_changes(changed: &str) -> Result<()> {
    let count = changed.lines().count();
    let Some(first) = changed.lines().next() else {
        return Ok(());
    };
    bail!(
        "{count} files differ from the commit, the first is {:?}: commit them before --write-docs, so that figures name the code that they are of",
        first.trim()
    )
}

pub(crate) fn run_soak(args: &SoakArgs) -> Result<()> {
    if args.prove {
        return prove(args.seed);
    }
    let mut soak = built("soak", &["mci-controller"])?;
    soak.args(["--seconds", &(args.minutes * 60).to_string()]);
    soak.args(["--members", &args.members.to_string()]);
    if let Some(seed) = args.seed {
        soak.args(["--seed", &seed.to_string()]);
    }
    become_it(&mut soak)
}

/// Runs the soak on a controller with each of the bugs.
fn prove(seed: Option<u64>) -> Result<()> {
    let controller = built_controller()?;
    refuses_bugs(&controller)?;
    run(&mut cargo(&[
        "build",
        "--locked",
        "--package",
        "mci-controller",
        "--package",
        "bench",
        "--features",
        "mci-controller/seeded-faults",
        "--bin",
        SEEDED,
        "--bin",
        "soak",
    ]))?;
    for bug in BUGS {
        println!("{bug}: {}", caught(bug, seed)?);
    }
    println!("each of {} bugs was found", BUGS.len());
    Ok(())
}

/// What the soak says of a bug.
fn caught(bug: &str, seed: Option<u64>) -> Result<String> {
    let directory = workspace::target().join("debug");
    let mut soak = Command::new(directory.join("soak"));
    soak.arg("--controller").arg(directory.join(SEEDED));
    soak.arg("--logs").arg(logs(bug)?);
    soak.args(SHORT).args(["--seeded-fault", bug]);
    if let Some(seed) = seed {
        soak.args(["--seed", &seed.to_string()]);
    }
    let child = soak
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("starting the soak")?;
    let running = Running::new(&child);
    let output = child.wait_with_output().context("waiting for the soak")?;
    drop(running);
    let said = String::from_utf8_lossy(&output.stderr);
    let loss = said.lines().find(|line| line.contains(LOSS));
    match loss {
        Some(loss) if !output.status.success() => Ok(loss.to_owned()),
        _ => bail!(
            "the soak did not find the bug {bug}: it ended with {}\n{}{said}",
            output.status,
            String::from_utf8_lossy(&output.stdout)
        ),
    }
}

/// The program as it is released can be given none.
fn refuses_bugs(controller: &Path) -> Result<()> {
    let flag = format!("--seeded-fault={}", BUGS[0]);
    let mut command = Command::new(controller);
    command.args(["--kubeconfig-dir", "/", &flag]);
    let output = command.output().context("starting the controller")?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() || !said.contains("unexpected argument '--seeded-fault") {
        bail!("mci-controller takes {flag}: {}\n{said}", output.status);
    }
    Ok(())
}

/// Builds the controller and the programs of `bench`, as the other tests build them.
fn built_controller() -> Result<PathBuf> {
    build(&["mci-controller"], false)?;
    Ok(workspace::target().join("debug").join("mci-controller"))
}

fn build(packages: &[&str], release: bool) -> Result<&'static str> {
    let mut build = cargo(&["build", "--locked", "--package", "bench"]);
    for package in packages {
        build.args(["--package", package]);
    }
    let directory = if release {
        build.arg("--release");
        "release"
    } else {
        "debug"
    };
    run(&mut build)?;
    Ok(directory)
}

/// Builds what a program of `bench` measures and the program, in release mode, and names the controller to it.
fn built(program: &str, packages: &[&str]) -> Result<Command> {
    let directory = build(packages, true)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_files_that_are_not_committed_are_not_written() {
        refuse_changes("").unwrap();
        let error = refuse_changes(" M crates/epp/src/lib.rs\n?? new.rs").unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("2 files differ"), "{text}");
        assert!(text.contains("\"M crates/epp/src/lib.rs\""), "{text}");
    }
}
