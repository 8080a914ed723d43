use super::*;
use crate::{events::pool, fixtures::mk_key};

const A: EventReason = "Exported";
const B: EventReason = "ClusterUnreachable";

/// One object, and where its events wait.
#[derive(Default)]
struct Bench {
    reported: Reported,
    queue: EventQueue,
}

impl Bench {
    /// Observes these members by reason; gives what is sent.
    fn observe(&mut self, seconds: u64, stands: &[(EventReason, &[&str])]) -> Vec<String> {
        self.observe_with(seconds, stands, true, |_| false);
        self.sent()
    }

    fn observe_with(
        &mut self,
        seconds: u64,
        stands: &[(EventReason, &[&str])],
        leading: bool,
        is_known: impl Fn(EventReason) -> bool,
    ) {
        let mut found = Observations::default();
        for (reason, members) in stands {
            found.add(reason, members.iter().copied(), &members.join(","));
        }
        let time = (Moment::from_millis(seconds * 1000), Timestamp::UNIX_EPOCH);
        let regarding = pool(&mk_key("llm"), "u1");
        let queue = leading.then_some(&self.queue);
        self.reported
            .observe(&regarding, found, is_known, queue, time);
    }

    fn sent(&self) -> Vec<String> {
        let sent = self.queue.drain().into_iter();
        sent.map(|(reason, note)| format!("{reason} {note}"))
            .collect()
    }
}

#[test]
fn one_reason_of_one_object_is_reported_once_in_five_minutes() {
    let mut bench = Bench::default();
    assert_eq!(bench.observe(0, &[(A, &["x"])]), ["Exported x"]);
    assert!(bench.observe(1, &[]).is_empty());
    assert!(bench.observe(299, &[(A, &["x"])]).is_empty());
    // another reason does not wait
    let both: &[(_, &[_])] = &[(A, &["x"]), (B, &["y"])];
    assert_eq!(bench.observe(299, both), ["ClusterUnreachable y"]);
    assert_eq!(bench.observe(300, both), ["Exported x"]);
}

#[test]
fn what_stands_is_reported_once_and_again_after_it_was_over() {
    let mut bench = Bench::default();
    assert_eq!(bench.observe(0, &[(A, &["x"])]).len(), 1);
    assert!(bench.observe(1_000, &[(A, &["x"])]).is_empty());
    assert!(bench.observe(2_000, &[]).is_empty());
    assert!(bench.reported.is_empty());
    assert_eq!(bench.observe(2_001, &[(A, &["x"])]).len(), 1);
}

#[test]
fn what_came_too_soon_is_dropped_where_it_is_over_by_then() {
    let mut bench = Bench::default();
    bench.observe(0, &[(B, &["x"])]);
    assert!(bench.observe(1, &[(B, &["x", "y"])]).is_empty());
    assert!(bench.observe(300, &[(B, &["x"])]).is_empty());
}

#[test]
fn a_set_that_grows_is_reported_in_full_and_one_that_shrinks_is_not() {
    let mut bench = Bench::default();
    bench.observe(0, &[(B, &["x"])]);
    let more = bench.observe(400, &[(B, &["x", "y"])]);
    assert_eq!(more, ["ClusterUnreachable x,y"]);
    assert!(bench.observe(800, &[(B, &["y"])]).is_empty());
    // one that comes back is one more
    assert_eq!(bench.observe(1_200, &[(B, &["x", "y"])]).len(), 1);
}

#[test]
fn observations_of_one_reason_are_one_event() {
    let mut bench = Bench::default();
    let two: &[(_, &[_])] = &[(B, &["x"]), (B, &["y"])];
    assert_eq!(bench.observe(0, two), ["ClusterUnreachable x; y"]);
    assert!(bench.observe(400, two).is_empty());
}

#[test]
fn what_a_full_queue_refuses_is_reported_at_the_next_observation() {
    let mut bench = Bench::default();
    bench.queue.fill();
    bench.observe_with(0, &[(A, &["x"])], true, |_| false);
    assert!(!bench.sent().contains(&"Exported x".to_owned()));
    assert_eq!(bench.observe(1, &[(A, &["x"])]), ["Exported x"]);
}

#[test]
fn nothing_is_sent_while_another_leads_and_what_still_stands_is_new_afterwards() {
    let mut bench = Bench::default();
    bench.observe_with(0, &[(A, &["x"]), (B, &["y"])], false, |_| false);
    bench.observe_with(1, &[(A, &["x"])], false, |_| false);
    assert!(bench.sent().is_empty());
    assert_eq!(bench.observe(2, &[(A, &["x"])]), ["Exported x"]);
}

#[test]
fn what_somebody_is_known_to_have_reported_is_not_new() {
    let mut bench = Bench::default();
    bench.observe_with(0, &[(A, &["x"]), (B, &["y"])], true, |reason| reason == A);
    assert_eq!(bench.sent(), ["ClusterUnreachable y"]);
    assert!(bench.observe(1, &[(A, &["x"]), (B, &["y"])]).is_empty());
}
