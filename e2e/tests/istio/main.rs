//! The endpoint picker behind real Istio: istiod against the testbed's API server, and stock Envoys as its gateways. What is
//! installed is what `docs/istio.md` says: its manifests, and the chart with its values.
//!
//! Optional: `cargo xtask test --only istio`.
#![cfg(test)]

mod dump;
mod filter;
mod import;
mod limits;
mod page;
mod picks;
mod pool;
mod stand;

use std::process::ExitCode;

use e2e::{
    Test,
    programs::{Alone, main_beside},
    tests,
};

use crate::stand::Stand;

const OFFLINE: &[Alone] = &[(
    "dump::the_fixture_is_read_as_a_dump_is",
    dump::the_fixture_is_read_as_a_dump_is,
)];

/// In order: each installs what it needs over what the one before it has left.
const TESTS: &[Test<Stand>] = &tests![
    stand::an_api_server_with_istios_kinds_takes_each_case_of_the_chart,
    pool::what_istiod_makes_is_the_fixture,
    pool::forced_picks_are_served,
    limits::a_rule_with_two_pools_asks_the_picker_of_one,
    limits::a_cors_filter_drops_the_picker,
    import::an_import_is_served_as_a_pool_without_pods,
    filter::forced_picks_are_served_by_a_gateway_of_gateway_api,
    filter::forced_picks_are_served_by_a_classic_gateway,
    filter::the_rules_of_an_llm_filter_hold,
];

fn main() -> ExitCode {
    main_beside(OFFLINE, TESTS)
}
