//! Gateways and HTTPRoutes are watched on demand, and a member without them is not lost.

use super::{bench::start_with, *};
use crate::index::{interest::Interest, update::ParentKind};

impl Bench {
    fn want_parents(&self, parents: bool) {
        self.control.send_modify(|control| {
            control.interest = Some(Interest {
                parents,
                ..Interest::default()
            });
        });
    }

    /// Asserts that for so long nothing fits.
    async fn quiet(&mut self, time: Duration, fits: impl Fn(&Update) -> bool) {
        let seen = timeout(time, async {
            while let Some((update, _)) = self.updates.recv().await {
                if fits(&update) {
                    return Some(update);
                }
            }
            None
        });
        match seen.await {
            Err(_) => {}
            Ok(update) => panic!("{update:?}"),
        }
    }

    async fn until_listed(&mut self) {
        let mut gateways = false;
        let mut routes = false;
        while !(gateways && routes) {
            let seen = self.until(is_listed).await;
            let last = seen.last().expect("one");
            gateways |= matches!(last, Update::Gateways(_));
            routes |= matches!(last, Update::Routes(_));
        }
    }
}

fn is_listed(update: &Update) -> bool {
    matches!(
        update,
        Update::Gateways(Change::Listed(_)) | Update::Routes(Change::Listed(_))
    )
}

fn is_unwatched(update: &Update) -> bool {
    matches!(update, Update::ParentsUnwatched)
}

fn calls(script: &Script) -> usize {
    script.gateway_calls.load(Ordering::SeqCst)
}

#[tokio::test(start_paused = true)]
async fn gateways_are_asked_for_only_while_something_is_exported_in_parent_mode() {
    let script = Arc::new(Script::default());
    let mut bench = start(script.clone());
    bench.until(|update| matches!(update, Update::Live)).await;
    bench.quiet(Duration::from_mins(5), is_listed).await;
    assert_eq!(calls(&script), 0);
    bench.want_parents(true);
    bench.until_listed().await;
    bench.quiet(Duration::from_mins(5), is_unwatched).await;
    bench.want_parents(false);
    bench.until(is_unwatched).await;
    let before = calls(&script);
    bench.quiet(Duration::from_mins(5), is_listed).await;
    assert_eq!(calls(&script), before);
}

#[tokio::test(start_paused = true)]
async fn an_export_that_comes_back_at_once_costs_no_list() {
    let script = Arc::new(Script::default());
    let mut bench = start(script.clone());
    bench.want_parents(true);
    bench.until_listed().await;
    for _ in 0..3 {
        bench.want_parents(false);
        let listed = |update: &Update| is_listed(update) || is_unwatched(update);
        bench.quiet(Duration::from_secs(20), listed).await;
        bench.want_parents(true);
        bench.quiet(Duration::from_secs(20), listed).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_begins_by_forgetting_gateways_that_are_of_no_interest() {
    let mut bench = start(Arc::default());
    let seen = bench.until(is_unwatched).await;
    assert!(!seen.iter().any(is_listed));
    let mut bench = start_with(Arc::default(), |mut context| async move {
        one_session(&mut context).await
    });
    bench.want_parents(true);
    let seen = bench.until(is_listed).await;
    assert!(!seen.iter().any(is_unwatched));
}

async fn degrades(status: usize) {
    let script = Arc::new(Script::default());
    script.gateway_api.store(status, Ordering::SeqCst);
    let mut bench = start(script.clone());
    bench.want_parents(true);
    let hidden = |kind: ParentKind| move |update: &Update| matches!(update, Update::ParentsHidden(found) if *found == kind);
    bench.until(hidden(ParentKind::Gateways)).await;
    bench.until(hidden(ParentKind::Routes)).await;
    let lost = |update: &Update| matches!(update, Update::Lost(_) | Update::Suspect);
    bench.quiet(Duration::from_mins(3), lost).await;
    assert!(bench.end.try_join_next().is_none(), "the session goes on");
    // two kinds, each half a minute
    let asked = calls(&script);
    assert!((10..=16).contains(&asked), "{asked} requests in 3 minutes");
    script.gateway_api.store(0, Ordering::SeqCst);
    bench.until_listed().await;
}

#[tokio::test(start_paused = true)]
async fn a_member_without_gateway_api_stays_and_is_asked_again() {
    degrades(404).await;
}

#[tokio::test(start_paused = true)]
async fn a_member_that_denies_gateways_stays_and_is_asked_again() {
    degrades(403).await;
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_server_hides_nothing() {
    let script = Arc::new(Script::default());
    script.gateway_api.store(500, Ordering::SeqCst);
    let mut bench = start(script.clone());
    bench.want_parents(true);
    let changes = |update: &Update| {
        is_listed(update) || matches!(update, Update::ParentsHidden(_) | Update::Lost(_))
    };
    bench.quiet(Duration::from_mins(3), changes).await;
    script.gateway_api.store(0, Ordering::SeqCst);
    bench.until_listed().await;
}
