//! What every ClusterSet controller for `InferencePoolImport` must do, on real API servers.
//!
//! Given kubeconfigs, the suite runs against whatever controller already serves those clusters; given none, it brings up
//! three clusters with ours. The tests use nothing but the Kubernetes API, those of `gateway::…` the URL of a gateway as well, and assume
//! nothing that the proposal leaves open; what goes beyond it is ours alone, and named `isthmus::…` or `policy::…`. See `e2e/README.md`.
#![cfg(test)]

mod absence;
mod always;
mod arguments;
mod content;
mod exported;
mod exports;
mod failover;
mod gateway;
mod isthmus;
mod mixed;
mod parent;
mod policy;
mod scene;
mod stand;
mod subject;

use std::{process::ExitCode, sync::Arc};

use anyhow::Result;
use futures::future::LocalBoxFuture;
use libtest_mimic::{Arguments, Trial};
use tokio::{runtime::Handle, sync::OnceCell};

use crate::{
    arguments::{Args, Target},
    scene::Stage,
    subject::{Subject, Way},
};

/// A test: what it promises, what it needs, and how to see it.
struct Test {
    name: &'static str,
    needs: Needs,
    run: for<'a> fn(&'a Stage) -> LocalBoxFuture<'a, Result<()>>,
}

/// What a test needs of those that it looks at; where that is not given it is skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    /// Any controller.
    Any,
    /// At least three clusters.
    Three,
    /// A gateway whose route leads to an import; any will do.
    Gateway,
    /// Our controller.
    Isthmus,
    /// Our controller, started by the suite: the test changes how it runs.
    Testbed,
}

macro_rules! tests {
    ($($needs:ident $module:ident :: $name:ident),* $(,)?) => {
        &[$(Test {
            name: concat!(stringify!($module), "::", stringify!($name)),
            needs: Needs::$needs,
            run: |stage| Box::pin($module::$name(stage)),
        }),*]
    };
}

/// Under whatever way the controller runs; ours with its defaults.
const AS_IT_IS: &[Test] = tests![
    Any exports::a01_an_export_appears_in_every_other_cluster_and_goes_with_its_annotation,
    Any exports::a02_of_two_exporters_the_one_that_leaves_takes_its_entry_alone,
    Any exports::a03_a_pool_that_is_not_exported_adds_no_entry_beside_one_that_is,
    Any absence::a04_a_pool_that_is_not_exported_has_no_import,
    Any absence::a05_an_external_name_is_never_passed_on,
    Any content::a07_pools_with_other_target_ports_are_both_kept,
    Any content::a08_nothing_of_the_pools_metadata_is_passed_on,
    Any exports::a10_a_namespace_that_comes_later_gets_its_import,
    Any content::a11_a_recreated_pool_starts_afresh,
    Any exported::a12_the_pool_says_whether_it_is_exported,
    Any exported::a12_an_unknown_value_exports_nothing,
    Any parent::an_entry_names_the_gateway_that_serves_the_pool,
    Any parent::another_address_of_a_gateway_reaches_the_imports,
    Any parent::a_change_of_mode_replaces_the_entry_there_and_back,
    Three mixed::entries_of_both_modes_stand_in_one_import,
    Isthmus isthmus::an_export_without_a_mode_is_in_endpoint_mode,
    Isthmus isthmus::a01_an_entry_holds_all_that_is_known_of_the_picker,
    Isthmus isthmus::a05_an_external_name_is_named_as_the_reason,
    Isthmus isthmus::a07_other_target_ports_are_told_as_inconsistent,
    Isthmus isthmus::a09_imports_bear_the_labels_of_their_owner,
    Isthmus isthmus::a10_a_missing_namespace_is_named,
    Isthmus isthmus::a12_the_message_counts_the_clusters,
];

/// Tests that run one after another: each changes the inventory under all, or breaks a cluster.
const ALONE: &[Test] = tests![
    Gateway gateway::an_import_is_answered_in_each_mode,
    Gateway gateway::an_import_without_exporters_answers_an_error,
    Testbed isthmus::a06_of_one_cluster_under_two_names_the_first_is_a_member,
    Testbed failover::an_endpoint_picker_that_is_gone_costs_no_request,
    Testbed failover::model_servers_that_are_gone_cost_no_request,
    Testbed failover::an_api_server_that_stands_still_costs_no_request,
    Testbed failover::a_cluster_that_cannot_be_reached_costs_no_request,
    Testbed policy::an_order_holds_but_while_its_first_cluster_fails_and_some_time_after,
    Testbed policy::the_share_of_a_saturated_cluster_falls_within_10_s_without_new_routes,
];

/// With our controller keeping an import in a sole exporter too.
const ALWAYS: &[Test] = tests![
    Testbed always::a01_an_export_appears_in_every_cluster_and_goes_with_its_annotation,
    Testbed always::a02_of_two_exporters_the_one_that_leaves_takes_its_entry_alone,
    Testbed always::a12_the_pool_says_whether_it_is_exported,
];

fn main() -> ExitCode {
    let args = match arguments::parse() {
        Ok(args) => args,
        Err(error) => error.exit(),
    };
    let all = [AS_IT_IS, ALONE, ALWAYS].into_iter().flatten();
    if args.tests.list
        || !all
            .into_iter()
            .any(|test| e2e::is_chosen(&args.tests, test.name))
    {
        return list(&args.tests);
    }
    run(args).unwrap_or_else(|error| {
        eprintln!("the suite did not start: {error:#}");
        ExitCode::FAILURE
    })
}

fn list(arguments: &Arguments) -> ExitCode {
    let all = [AS_IT_IS, ALONE, ALWAYS].into_iter().flatten();
    let trials = all.map(|test| Trial::test(test.name, || Ok(())));
    libtest_mimic::run(arguments, trials.collect()).exit_code()
}

fn run(args: Args) -> Result<ExitCode> {
    let Args { target, mut tests } = args;
    // nearly all the time of a test is waiting
    tests
        .test_threads
        .get_or_insert(AS_IT_IS.len() + ALWAYS.len());
    let inside = match target {
        Target::Testbed => Some(testbed::enter()?),
        Target::Clusters(_) => None,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let subject = Arc::new(runtime.block_on(Subject::start(target, inside.as_ref()))?);
    let mut failed = false;
    for (way, group) in [
        (Way::AsItIs, AS_IT_IS),
        // a change of the way takes seconds
        (Way::AsItIs, ALONE),
        (Way::Always, ALWAYS),
    ] {
        let trials = trials(group, way, &subject, runtime.handle());
        let chosen: Vec<Trial> = trials
            .into_iter()
            .filter(|trial| e2e::is_chosen(&tests, trial.name()))
            .collect();
        if !chosen.is_empty() {
            let mut tests = tests.clone();
            if std::ptr::eq(group, ALONE) {
                tests.test_threads = Some(1);
            }
            failed |= libtest_mimic::run(&tests, chosen).has_failed();
        }
    }
    if let Some(subject) = Arc::into_inner(subject) {
        runtime.block_on(subject.stop());
    }
    Ok(ExitCode::from(u8::from(failed)))
}

fn trials(group: &'static [Test], way: Way, subject: &Arc<Subject>, handle: &Handle) -> Vec<Trial> {
    // the first test of the group that runs sets the controller up for all of them
    let ready = Arc::new(OnceCell::new());
    let trial = |test: &'static Test| {
        let (subject, handle, ready) = (subject.clone(), handle.clone(), ready.clone());
        let skipped = !subject.meets(test.needs);
        let body = move || {
            let outcome = handle.block_on(async {
                let set_up = ready.get_or_try_init(|| subject.set_up(way)).await;
                set_up?;
                let stage = subject.stage(way);
                (test.run)(&stage).await
            });
            let told = |error: anyhow::Error| format!("{error:#}{}", subject.hint());
            outcome.map_err(|error| told(error).into())
        };
        Trial::test(test.name, body).with_ignored_flag(skipped)
    };
    group.iter().map(trial).collect()
}
