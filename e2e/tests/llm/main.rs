//! Three endpoint pickers of one pool behind a real Envoy, which share load and prompt caches through a Metadata-Center and
//! a real Redis: the programs of `cargo xtask demo llm`.
#![cfg(test)]

mod compat;
mod faults;
mod responses;
mod shared;
mod stand;

use std::process::ExitCode;

use e2e::{Test, programs, tests};

use crate::stand::Stand;

/// In order: what works first, then what is broken on purpose.
const TESTS: &[Test<Stand>] = &tests![
    shared::a_repeated_prompt_goes_where_it_is_cached_whichever_picker_has_it,
    shared::requests_of_three_pickers_at_once_spread_over_idle_servers,
    shared::the_sum_of_charges_is_that_of_live_requests,
    compat::the_calls_of_the_former_service_serve_over_tls_with_a_token,
    responses::a_response_is_found_by_its_session_token_whichever_picker_has_the_request,
    faults::a_killed_metadata_center_costs_no_request_and_counts_right_in_5_s,
    faults::an_empty_redis_costs_no_request_and_counts_right_in_5_s,
    faults::what_a_killed_picker_had_is_gone_in_16_s,
    faults::a_picker_that_was_frozen_past_its_lease_is_right_again_in_5_s,
];

fn main() -> ExitCode {
    programs::main(TESTS)
}
