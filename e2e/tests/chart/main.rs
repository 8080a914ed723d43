//! The charts: their values and what they make of them, by real helm; then releases of them on clusters, installed, changed,
//! taken back and removed.
#![cfg(test)]

mod cases;
mod dynamo;
mod helm;
mod missing;
mod programs;
mod refusals;
mod release;
mod renders;
mod rights;
mod router_leader;
mod stand;
mod system;
mod values;

use std::process::ExitCode;

use e2e::{
    Test,
    programs::{Alone, main_beside},
    tests,
};

use crate::{helm::Helm, stand::Stand};

/// A list of tests that need no cluster, from the paths of their functions.
macro_rules! offline {
    ($($module:ident :: $name:ident),* $(,)?) => {
        [$((concat!(stringify!($module), "::", stringify!($name)), || $module::$name(&Helm::find()?))),*]
    };
}

const OFFLINE: &[Alone] = &offline![
    values::each_readme_has_a_row_for_each_value,
    values::each_value_is_in_the_schema_and_has_a_default,
    missing::each_value_that_is_null_is_named,
    missing::what_is_null_in_a_free_map_is_left_out,
    missing::what_is_null_in_a_list_is_named,
    missing::the_values_of_older_charts_are_enough_or_what_they_lack_is_named,
    renders::helm_has_nothing_to_complain_of,
    renders::each_case_renders_as_it_is_kept,
    renders::each_template_is_in_a_golden,
    renders::each_pod_is_confined,
    renders::a_number_that_is_shared_is_the_same_everywhere,
    refusals::combinations_that_cannot_work_are_refused_with_their_reason,
    refusals::images_need_no_registry_where_nodes_pull_none_of_that_name,
    refusals::values_of_another_kind_are_refused_by_the_schema,
    programs::each_flag_and_variable_is_known_to_its_program,
];

/// In order: the last one takes most time.
const TESTS: &[Test<Stand>] = &tests![
    release::an_api_server_takes_each_case,
    system::a_crd_of_a_newer_bundle_is_left_as_it_is,
    system::a_crd_of_others_is_taken_over_when_asked,
    rights::the_endpoint_picker_has_the_rights_that_it_uses_and_no_other,
    rights::the_router_has_the_rights_that_it_uses_and_no_other,
    dynamo::ids_reach_a_worker_by_key_and_the_router_chooses_it,
    router_leader::the_leader_changes_under_load_and_the_next_one_knows_the_caches,
    system::a_pool_is_reached_from_another_cluster_and_outlives_the_release_there,
    release::a_release_is_installed_upgraded_rolled_back_and_uninstalled,
];

fn main() -> ExitCode {
    main_beside(OFFLINE, TESTS)
}
