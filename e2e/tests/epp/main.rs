//! The endpoint picker behind a real Envoy, without Kubernetes: the programs and files of `cargo xtask demo epp`, in a
//! namespace of their own.
#![cfg(test)]

mod answers;
mod bodies;
mod client;
mod fallback;
mod faults;
mod istio;
mod load;
mod mtls;
mod stand;
mod transcoding;

use std::process::ExitCode;

use e2e::{Test, programs, tests};

use crate::stand::Stand;

/// In order: what works first, then what is broken on purpose.
const TESTS: &[Test<Stand>] = &tests![
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
    istio::a_pick_is_served_behind_istio_over_tls,
    istio::a_pick_is_served_behind_istio_in_plaintext,
    istio::without_a_server_name_istio_is_refused_with_an_advice,
    load::a_thousand_aborts_leave_nothing_and_hurt_nobody,
    load::a_mixed_load_has_no_wrong_answer_and_leaves_no_memory,
    faults::without_an_endpoint_picker_the_failure_mode_decides,
    faults::an_endpoint_picker_that_dies_before_its_pick_costs_that_request_alone,
    faults::an_endpoint_picker_that_dies_after_its_pick_costs_that_request_alone,
    faults::events_are_cut_by_the_death_of_the_endpoint_picker,
];

fn main() -> ExitCode {
    programs::main(TESTS)
}
