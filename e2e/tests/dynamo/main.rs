//! An endpoint picker with a Processor, a Router and a token cache in a real Redis, behind a real Envoy, in front of
//! simulated workers that take ids and publish KV events: the programs of `cargo xtask demo dynamo`, there with the cache in the
//! Processor.
#![cfg(test)]

mod faults;
mod stand;
mod ways;

use std::process::ExitCode;

use e2e::{Test, programs, tests};

use crate::stand::Stand;

/// In order: what works first, then what is broken on purpose.
const TESTS: &[Test<Stand>] = &tests![
    ways::ids_by_key_leave_the_body_as_it_is,
    ways::ids_in_the_body_stand_behind_the_text,
    ways::without_route_the_router_is_not_asked,
    ways::the_switch_asks_for_a_route_where_the_client_does_not,
    ways::a_repeated_prompt_goes_where_kv_events_say_it_is,
    ways::the_rank_that_has_a_prompt_cached_is_named_to_its_server,
    ways::ids_and_keys_of_clients_reach_no_worker,
    faults::bookings_are_gone_once_all_requests_have_ended,
    faults::a_killed_part_costs_no_request_and_is_used_again,
    faults::a_frozen_part_costs_no_request_and_is_used_again,
];

fn main() -> ExitCode {
    programs::main(TESTS)
}
