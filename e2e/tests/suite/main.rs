//! Each promise to a user, on real clusters: two API servers with their controllers, real Envoy, our programs as pods.
//!
//! The tests run one after another on one pair of clusters, since several of them break it on purpose. Each begins with
//! [`Environment::settle`], which puts the pair into its known state, so none depends on another or on their order.
#![cfg(test)]

mod apart;
mod bad_input;
mod environment;
mod export;
mod faults;
mod gateway;
mod leader;
mod members;
mod parent_mode;
mod requests;
mod rights;
mod rules;
mod sources;

use std::process::ExitCode;

use anyhow::Result;
use futures::future::LocalBoxFuture;
use libtest_mimic::{Arguments, Failed, Trial};

use crate::environment::Environment;

/// A test: what it promises, and how to see it.
struct Test {
    name: &'static str,
    run: for<'a> fn(&'a Environment) -> LocalBoxFuture<'a, Result<()>>,
}

macro_rules! tests {
    ($($module:ident :: $name:ident),* $(,)?) => {
        [$(Test {
            name: concat!(stringify!($module), "::", stringify!($name)),
            run: |environment| Box::pin($module::$name(environment)),
        }),*]
    };
}

/// In order: what works first, then what is broken on purpose.
const TESTS: &[Test] = &tests![
    export::an_export_appears_in_the_other_cluster_with_its_exact_status,
    export::a_missing_namespace_holds_the_import_until_it_appears,
    export::kubectl_shows_the_import_with_its_columns,
    export::a_users_edit_of_the_import_is_reverted,
    requests::a_json_request_is_answered_by_the_exporting_cluster,
    requests::tokens_arrive_one_by_one,
    requests::equal_weights_split_requests_and_each_picker_sees_its_share,
    requests::a_client_cannot_steer_the_pick,
    export::a_withdrawn_export_takes_the_import_and_the_route_answers_500,
    parent_mode::a_pool_is_imported_with_the_gateways_that_lead_to_it,
    parent_mode::a_mode_switch_replaces_the_entry_in_place,
    parent_mode::each_exporter_chooses_its_mode,
    bad_input::a_malformed_body_is_refused_with_400,
    bad_input::a_huge_header_is_refused_and_the_gateway_goes_on,
    bad_input::an_unknown_model_is_refused_with_404,
    bad_input::a_wrong_export_value_exports_nothing_and_says_so,
    bad_input::a_garbage_kubeconfig_leaves_the_other_members_alone,
    faults::traffic_goes_on_without_the_controller,
    faults::no_request_fails_once_a_killed_model_server_is_unready,
    faults::traffic_resumes_after_the_endpoint_picker_restarts,
    faults::a_restarted_controller_keeps_the_import_of_an_unreachable_cluster,
    faults::a_cut_link_is_an_error_in_bounded_time_and_heals,
    gateway::a_pool_with_an_illegal_selector_stops_nobody_else,
    gateway::no_request_fails_while_the_import_crd_goes_and_returns,
    rights::the_controller_has_the_rights_of_the_manifests_and_no_other,
    rights::every_right_of_the_manifests_is_used,
    members::a_restarted_controller_writes_nothing_that_is_already_so,
    members::what_happens_behind_a_cut_link_is_made_good_after_it,
    members::a_namespace_that_ends_is_left_alone_and_a_new_one_is_served,
    members::a_rotated_token_costs_no_event,
    members::a_killed_api_server_takes_no_entry_with_it,
    members::a_deleted_crd_of_pools_withdraws_nothing,
    members::upstreams_crd_takes_the_entries_and_ours_brings_them_back,
    sources::a_labelled_secret_is_a_member_until_it_is_deleted,
    sources::a_secrets_new_token_is_tried_before_it_takes_over,
    sources::a_cluster_profile_is_a_member_by_its_plugins_credentials,
    sources::home_is_a_member_by_its_own_account,
    sources::a_member_that_is_another_cluster_now_waits_to_be_accepted,
    leader::a_standby_takes_over_within_17_s_of_a_crash_and_3_s_of_a_clean_end,
    leader::a_leader_that_was_stopped_writes_nothing_once_another_leads,
    rights::a_right_that_is_taken_away_is_named,
];

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // one pair of clusters serves all: one test at a time
    arguments.test_threads = Some(1);
    let mut names = TESTS.iter().map(|test| test.name);
    if arguments.list || !names.any(|name| e2e::is_chosen(&arguments, name)) {
        let trials = TESTS
            .iter()
            .map(|test| Trial::test(test.name, || Ok(())))
            .collect();
        return libtest_mimic::run(&arguments, trials).exit_code();
    }
    environment::main(arguments, TESTS)
}

/// What a runner shows of a failure.
fn failed(error: &anyhow::Error, logs: &str) -> Failed {
    format!("{error:#}\nlogs: {logs}").into()
}
