//! The endpoint picker behind a real Envoy, without Kubernetes: the programs and files of `cargo xtask demo epp`, in a
//! namespace of their own.
//!
//! The tests run one after another on one set of programs, since several of them break it on purpose; each leaves it as it
//! found it.
#![cfg(test)]

mod answers;
mod bodies;
mod client;
mod fallback;
mod faults;
mod load;
mod mtls;
mod stand;
mod transcoding;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use futures::future::LocalBoxFuture;
use libtest_mimic::{Arguments, Trial};
use testbed::Inside;

use crate::stand::Stand;

struct Test {
    name: &'static str,
    run: for<'a> fn(&'a Stand) -> LocalBoxFuture<'a, Result<()>>,
}

macro_rules! tests {
    ($($module:ident :: $name:ident),* $(,)?) => {
        [$(Test {
            name: concat!(stringify!($module), "::", stringify!($name)),
            run: |stand| Box::pin($module::$name(stand)),
        }),*]
    };
}

/// In order: what works first, then what is broken on purpose.
const TESTS: &[Test] = &tests![
    bodies::full_duplex_streamed,
    bodies::streamed,
    bodies::streamed_ahead_of_the_answer_to_the_headers,
    bodies::buffered,
    bodies::buffered_partial,
    bodies::none,
    bodies::a_body_over_the_limit_is_answered_413,
    answers::a_model_that_nobody_lists_is_answered_404,
    answers::a_request_of_low_priority_is_shed_with_429,
    answers::a_pool_without_endpoints_is_answered_503,
    answers::a_servers_own_error_is_passed_on,
    answers::headers_of_a_client_reach_neither_the_pick_nor_the_server,
    transcoding::a_server_in_triton_is_asked_by_another_path_and_the_same_route,
    transcoding::events_of_a_server_in_triton_come_one_by_one,
    transcoding::without_the_bodies_nothing_is_sent_to_triton,
    fallback::a_server_that_envoy_does_not_know_is_reached,
    fallback::an_endpoint_that_refuses_is_passed_over_and_counted,
    mtls::a_gateway_without_the_right_certificate_gets_no_pick,
    mtls::certificates_and_cas_are_rotated_under_load_without_a_failed_request,
    load::a_thousand_aborts_leave_nothing_and_hurt_nobody,
    load::a_mixed_load_has_no_wrong_answer_and_leaves_no_memory,
    faults::without_an_endpoint_picker_the_failure_mode_decides,
    faults::an_endpoint_picker_that_dies_before_its_pick_costs_that_request_alone,
    faults::an_endpoint_picker_that_dies_after_its_pick_costs_that_request_alone,
    faults::events_are_cut_by_the_death_of_the_endpoint_picker,
];

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let chosen = TESTS
        .iter()
        .any(|test| e2e::is_chosen(&arguments, test.name));
    if arguments.list || !chosen {
        let trials = TESTS.iter().map(|test| Trial::test(test.name, || Ok(())));
        return libtest_mimic::run(&arguments, trials.collect()).exit_code();
    }
    let outcome = testbed::enter()
        .context("entering namespaces")
        .and_then(|inside| run(&inside, &arguments));
    outcome.unwrap_or_else(|error| {
        eprintln!("the programs did not start: {error:#}");
        ExitCode::FAILURE
    })
}

fn run(inside: &Inside, arguments: &Arguments) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let stand = Arc::new(runtime.block_on(Stand::start(inside))?);
    let logs = inside.logs_dir().display().to_string();
    let handle = runtime.handle();
    let trials = TESTS.iter().map(|test| {
        let (stand, handle, logs) = (stand.clone(), handle.clone(), logs.clone());
        Trial::test(test.name, move || {
            handle
                .block_on((test.run)(&stand))
                .map_err(|error| format!("{error:#}\nlogs: {logs}").into())
        })
    });
    let conclusion = libtest_mimic::run(arguments, trials.collect());
    let stand = Arc::into_inner(stand).context("a test kept the programs")?;
    runtime.block_on(stand.standalone.stop());
    Ok(conclusion.exit_code())
}
