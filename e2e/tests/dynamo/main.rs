//! An endpoint picker with a Processor, a Router and a token cache in a real Redis, behind a real Envoy, in front of
//! simulated workers that take ids and publish KV events: the programs of `cargo xtask demo dynamo`.
#![cfg(test)]

mod faults;
mod stand;
mod ways;

use std::process::ExitCode;

use e2e::{Test, programs, tests};

use crate::stand::Stand;

/// In order: what works first, then what is broken on purpose.
const TESTS: &[Test<Stand>] = &tests![
    ways::ids_by_key_leave_the_body_and_name_the_key,
    ways::ids_in_the_body_stand_beside_the_text,
    ways::without_route_the_endpoint_picker_chooses,
    ways::a_repeated_prompt_goes_where_kv_events_say_it_is,
    ways::what_a_client_sends_of_ids_and_keys_reaches_no_worker,
    faults::a_killed_part_costs_no_request_and_is_used_again,
    faults::a_frozen_part_costs_no_request_and_is_used_again,
    faults::bookings_are_gone_once_all_requests_have_ended,
];

fn main() -> ExitCode {
    programs::main(TESTS)
}
