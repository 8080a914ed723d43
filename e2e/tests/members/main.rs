//! The members of the ClusterSet: where they come from, what the controller may do there, and what it does when one of them
//! fails. On real clusters as `tests/suite`, whose order and known state are as here.
#![cfg(test)]

mod entries;
mod evidence;
mod rights;
mod rules;
mod sources;

use std::process::ExitCode;

/// The controller runs by its manifest at first, then [impatient](e2e::environment::Way::Impatient), and then
/// [quick](e2e::environment::Way::Quick); a change takes seconds.
const TESTS: &[e2e::Test] = &e2e::tests![
    rights::the_controller_has_the_rights_of_the_manifests_and_no_other,
    rights::every_right_of_the_manifests_is_used,
    evidence::a_restarted_controller_writes_nothing_that_is_already_so,
    evidence::a_namespace_that_ends_is_left_alone_and_a_new_one_is_served,
    evidence::a_rotated_token_costs_no_event,
    sources::home_is_a_member_by_its_own_account,
    evidence::upstreams_crd_takes_the_entries_and_ours_brings_them_back,
    evidence::what_happens_behind_a_cut_link_is_made_good_after_it,
    evidence::a_deleted_crd_of_pools_withdraws_nothing,
    evidence::a_killed_api_server_takes_no_entry_with_it,
    sources::a_labelled_secret_is_a_member_until_it_is_deleted,
    sources::a_secrets_new_token_is_tried_before_it_takes_over,
    sources::a_cluster_profile_is_a_member_by_its_plugins_credentials,
    sources::a_member_that_is_another_cluster_now_waits_to_be_accepted,
    rights::a_right_that_is_taken_away_is_named,
];

fn main() -> ExitCode {
    e2e::main(TESTS)
}
