//! What a real API server does with our CRD, on which the controller and the gateways rely.
//!
//! Each fact stands in the specification of the data model; an API server that behaves otherwise breaks this file
//! before it breaks a user. One cluster without any program of ours.
#![cfg(test)]

mod facts;
mod rights;
mod server;
mod swaps;

use std::{process::ExitCode, sync::Arc};

use anyhow::{Context, Result};
use futures::future::LocalBoxFuture;
use libtest_mimic::{Arguments, Trial};
use testbed::Inside;

use crate::server::Server;

struct Fact {
    name: &'static str,
    check: for<'a> fn(&'a Server) -> LocalBoxFuture<'a, Result<()>>,
}

macro_rules! facts {
    ($($room:ident::$name:ident),* $(,)?) => {
        [$(Fact { name: stringify!($name), check: |server| Box::pin($room::$name(server)) }),*]
    };
}

const FACTS: &[Fact] = &facts![
    facts::two_managers_share_the_status,
    facts::a_shorter_apply_takes_only_its_own_entries,
    facts::an_apply_that_changes_nothing_keeps_the_resource_version,
    facts::an_empty_list_reads_back_absent,
    facts::an_apply_over_foreign_fields_is_a_conflict,
    facts::status_of_a_missing_import_is_404_and_the_main_resource_creates_it,
    facts::a_missing_namespace_is_404_and_a_terminating_one_403,
    facts::values_outside_the_schema_are_refused,
    facts::columns_show_readiness_and_summary,
    rights::an_apply_that_creates_needs_create_and_patch,
    rights::a_crd_is_read_by_its_name_alone,
    swaps::upstreams_crd_prunes_our_fields_and_ours_brings_them_back,
    swaps::a_crd_that_is_deleted_takes_its_objects_first,
];

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1); // the last facts change the CRD under all
    let mut names = FACTS.iter().map(|fact| fact.name);
    if arguments.list || !names.any(|name| e2e::is_chosen(&arguments, name)) {
        let trials = FACTS
            .iter()
            .map(|fact| Trial::test(fact.name, || Ok(())))
            .collect();
        return libtest_mimic::run(&arguments, trials).exit_code();
    }
    let outcome = testbed::enter()
        .context("entering namespaces")
        .and_then(|inside| run(&inside, &arguments));
    outcome.unwrap_or_else(|error| {
        eprintln!("the cluster did not start: {error:#}");
        ExitCode::FAILURE
    })
}

fn run(inside: &Inside, arguments: &Arguments) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let server = Arc::new(runtime.block_on(Server::start(inside))?);
    let handle = runtime.handle();
    let trials = FACTS.iter().map(|fact| {
        let (server, handle) = (server.clone(), handle.clone());
        Trial::test(fact.name, move || {
            let outcome = handle.block_on((fact.check)(&server));
            outcome.map_err(|error| format!("{error:#}\nlogs: {}", server.logs().display()).into())
        })
    });
    let conclusion = libtest_mimic::run(arguments, trials.collect());
    let server = Arc::into_inner(server).context("a test kept the server")?;
    runtime.block_on(server.stop());
    Ok(conclusion.exit_code())
}
