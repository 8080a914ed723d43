//! `kubectl mci`, as a user types it, on two clusters: from nothing to a request that another cluster answers, and back.
//!
//! The tests run one after another; the first sees clusters with nothing of ours, the others what they need.
#![cfg(test)]

mod failing;
mod membership;
mod missing;
mod stand;
mod whole;

use std::process::ExitCode;

use crate::stand::Stand;

const TESTS: &[e2e::Test<Stand>] = &e2e::tests![
    missing::check_names_the_next_step_where_nothing_is_installed,
    whole::two_clusters_are_joined_and_a_request_is_answered_by_the_other,
    membership::what_join_and_leave_refuse_changes_nothing,
    failing::check_and_status_name_what_is_wrong,
    failing::who_may_not_read_secrets_looks_at_pools_all_the_same,
    membership::rights_stay_where_no_controller_lets_the_member_go,
    whole::a_cluster_that_leaves_is_clean_but_for_what_is_named,
    membership::a_release_is_upgraded_after_its_cluster_was_joined,
];

fn main() -> ExitCode {
    e2e::programs::main(TESTS)
}
