//! `cargo xtask …`: the one command runner of Isthmus.
//!
//! It starts cargo, Go and our own programs, and links none of our crates, so its first build takes seconds.
#![allow(clippy::print_stdout, reason = "a terminal program")]

mod bench;
mod command;
mod conformance;
mod crds;
mod demo;
mod docs;
mod images;
mod lock;
mod manifests;
mod mutants;
mod progress;
mod release;
mod signals;
mod test;
mod tools;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Builds, shows and tests Isthmus
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version)]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Bring up two real clusters and send requests from one to the other; or, without Kubernetes, an endpoint picker
    Demo(demo::Args),
    /// Run all checks: format, lints, unit tests, docs, end-to-end tests
    Test(test::Args),
    /// Run the official conformance suites of Gateway API and of its Inference Extension against our gateway
    Conformance(conformance::Args),
    /// Build docs/ as a site into target/site; broken links fail
    Docs(docs::Args),
    /// Find, build or fetch etcd, kube-apiserver, kube-controller-manager, kubectl, Envoy, helm, crane and Redis
    Tools(tools::Args),
    /// Measure the controller on scripted API servers, in release mode
    Bench(bench::Args),
    /// Let members of a large ClusterSet die at random and check that nothing is withdrawn without evidence
    Soak(bench::SoakArgs),
    /// Break the code that decides, one place at a time, and show what no test notices
    Mutants(mutants::Args),
    /// Make a container image of each program, without a container daemon
    Images(images::Args),
    /// Put all that a version consists of into one folder, with checksums
    Release(release::Args),
    /// Write config/crd, charts/isthmus-crds and the Rust types of foreign CRDs anew
    Crds,
    /// Render config/ from the charts
    Manifests(manifests::Args),
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Err(error) = signals::pass_on() {
        eprintln!("error: {error:#}");
        return ExitCode::FAILURE;
    }
    let result = match args.task {
        Task::Demo(args) => demo::run_demo(&args),
        // its last line counts what passed and failed: nothing comes after
        Task::Test(args) => return test::run_tests(&args),
        Task::Conformance(args) => return conformance::run_conformance(&args),
        Task::Docs(args) => docs::run_docs(&args),
        Task::Tools(args) => tools::find_all(&args).map(|tools| print!("{tools}")),
        Task::Bench(args) => bench::run_bench(&args),
        Task::Soak(args) => bench::run_soak(&args),
        Task::Mutants(args) => mutants::run_mutants(&args),
        Task::Images(args) => images::make_images(&args),
        Task::Release(args) => release::make_release(&args),
        Task::Crds => crds::run_all(),
        Task::Manifests(args) => manifests::run_all(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
