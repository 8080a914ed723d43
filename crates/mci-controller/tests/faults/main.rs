//! The controller under faults: a real one in this process, in real time, on scripted API servers.
//!
//! The name of each test starts with the number of its row in the specification's table of faults. Tests mostly wait, so
//! many run at once, each in a runtime of its own.
#![cfg(test)]

mod bed;
mod contact;
mod counted;
mod hostile;
mod inventory;
mod objects;
mod observed;
mod promises;
mod restart;
mod stalled;
mod start;
mod writes;

use std::process::ExitCode;

use futures::future::LocalBoxFuture;
use libtest_mimic::{Arguments, Trial};

struct Test {
    name: &'static str,
    run: fn() -> LocalBoxFuture<'static, anyhow::Result<()>>,
}

macro_rules! tests {
    ($($module:ident::$name:ident),* $(,)?) => {
        [$(Test { name: stringify!($name), run: || Box::pin($module::$name()) }),*]
    };
}

/// The longest first.
const TESTS: &[Test] = &tests![
    inventory::t20_and_t21_an_unreachable_member_is_forgotten_and_adopted_again,
    stalled::an_export_behind_a_watch_that_hangs_is_seen_while_all_else_answers,
    contact::t05_a_member_that_never_answers_is_marked_and_holds_nobody_up_for_a_deadline,
    objects::t01_deleting_the_pools_crd_withdraws_nothing,
    stalled::a_list_that_hangs_or_breaks_off_is_made_again_and_withdraws_nothing,
    inventory::t25_members_that_vanish_together_are_held,
    promises::most_members_silent_at_once_are_held_by_the_guard,
    promises::a_silent_member_is_withdrawn_after_the_time_that_the_operator_set,
    promises::a_leader_that_loses_home_writes_nothing_until_it_is_back,
    promises::a_withdrawn_entry_drains_for_as_long_as_asked,
    contact::t06_half_open_connections_are_noticed_and_nothing_flaps,
    writes::t09_our_entry_and_a_busy_gateways_persist,
    restart::t02_a_start_without_a_member_keeps_its_entries,
    restart::t27_a_forged_import_fools_only_its_owner,
    hostile::a_fight_over_an_import_is_a_conflict_and_nobody_spins,
    hostile::t22_hostile_addresses_are_sanitised,
    hostile::t23_clocks_an_hour_apart_change_nothing,
    objects::t19_imports_follow_a_namespace,
    writes::t10_retry_after_is_obeyed,
    writes::t11_events_during_a_slow_write_are_one_write,
    objects::t01_a_pools_crd_that_goes_unseen_withdraws_nothing,
    objects::t18_upstreams_crd_takes_our_fields_and_ours_brings_them_back,
    start::r35_a_dry_run_decides_everything_and_writes_nothing,
    contact::t08_few_lists_run_at_once_after_410_from_all,
    contact::t12_a_rotated_token_costs_at_most_two_rebuilds_and_no_event,
    contact::t07_a_watch_that_is_cut_as_soon_as_it_began_is_waited_for,
    contact::t07_a_watch_cut_inside_an_event_deletes_nothing,
    inventory::t16_one_cluster_under_two_names_is_active_once,
    restart::t03_an_orphan_is_deleted_once,
    restart::t04_imports_of_others_are_left_alone,
    observed::an_export_is_reported_once_where_describe_finds_it_and_explained,
    observed::a_bad_annotation_is_reported_with_what_to_do,
    promises::an_import_crd_that_is_missing_pauses_its_member_alone,
    promises::a_missing_namespace_counts_where_the_operator_is_strict,
    promises::an_endpoint_pickers_service_may_go_and_return,
    promises::an_import_without_labels_is_adopted_in_place,
    counted::what_is_written_and_withdrawn_is_counted,
    counted::kinds_that_only_parent_mode_needs_are_counted_where_they_are_missing,
    start::a_start_that_cannot_work_ends_with_64_before_a_port_is_bound,
    hostile::t26_edits_by_users_are_reverted_and_parents_kept,
];

/// They wait more than they work; the start of each is work, though.
const AT_ONCE: usize = 8;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = arguments.test_threads.or(Some(AT_ONCE));
    let trials = TESTS.iter().map(|test| {
        Trial::test(test.name, || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            let outcome = runtime.block_on((test.run)());
            runtime.shutdown_background();
            outcome.map_err(|error| format!("{error:#}").into())
        })
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}
