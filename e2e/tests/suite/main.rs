//! Each promise to a user, on real clusters: two API servers with their controllers, real Envoy, our programs as pods. Here
//! are requests, exports, and programs that crash; `tests/members` has the members of the ClusterSet.
//!
//! The tests run one after another on one pair of clusters, since several of them break it on purpose. Each begins with
//! [`Environment::settle`](e2e::environment::Environment::settle), which puts the pair into its known state, so none
//! depends on another or on their order.
#![cfg(test)]

mod alerts;
mod bad_input;
mod faults;
mod gateway;
mod gateway_leader;
mod leader;
mod objects;
mod parent_mode;
mod picker_leader;
mod rolling;

use std::process::ExitCode;

/// In order: what works first, then what is broken on purpose.
const TESTS: &[e2e::Test] = &e2e::tests![
    alerts::no_alert_fires_while_all_is_well,
    parent_mode::a_pool_is_imported_with_the_gateways_that_lead_to_it,
    parent_mode::a_mode_switch_replaces_the_entry_in_place_and_costs_no_request,
    parent_mode::each_exporter_chooses_its_mode,
    bad_input::a_garbage_kubeconfig_leaves_the_other_members_alone,
    objects::they_count_once_their_crds_are_installed_and_outlive_them,
    faults::traffic_goes_on_without_the_controller,
    objects::no_request_fails_while_the_api_server_of_the_pool_stands_still,
    faults::no_request_fails_once_a_killed_model_server_is_unready,
    faults::traffic_resumes_after_the_endpoint_picker_restarts,
    rolling::no_request_is_lost_while_an_endpoint_picker_behind_one_address_is_rolled,
    rolling::no_request_is_lost_while_a_headless_endpoint_picker_is_rolled,
    picker_leader::another_picker_leads_within_17_s_of_a_crash_and_3_s_of_the_leaders_end,
    faults::a_cut_link_is_an_error_in_bounded_time_and_heals,
    gateway::a_pool_with_an_illegal_selector_stops_nobody_else,
    gateway::no_request_fails_while_the_import_crd_goes_and_returns,
    gateway_leader::another_gateway_writes_within_17_s_of_a_crash_and_3_s_of_a_clean_end,
    leader::a_standby_takes_over_within_17_s_of_a_crash_and_3_s_of_a_clean_end,
    leader::a_leader_that_was_stopped_writes_nothing_once_another_leads,
    faults::the_controller_asked_for_nothing_that_it_may_not,
];

fn main() -> ExitCode {
    e2e::main(TESTS)
}
