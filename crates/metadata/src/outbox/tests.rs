use std::collections::{BTreeMap, BTreeSet};

use proptest::{collection::vec, prelude::*};

use super::*;
use crate::{Bound, Center, Fault, Limits, Now};

const SHARDS: u32 = 2;

fn mk_outbox(max_waiting: usize) -> Outbox {
    let reporting = Reporting {
        shards: SHARDS,
        max_waiting,
        lease_ms: 15_000,
    };
    let (cluster, instance) = ("c".parse().unwrap(), "epp-0".parse().unwrap());
    Outbox::new(cluster, instance, 1, reporting)
}

fn id(number: u8) -> RequestId {
    format!("r{number}").parse().unwrap()
}

fn ip(last: u8) -> Address {
    format!("10.0.0.{last}:8000").parse().unwrap()
}

fn length(length: i64) -> PromptLength {
    length.try_into().unwrap()
}

fn at(second: u64) -> Moment {
    Moment::from_millis(second * 1000)
}

fn applied(resync: bool) -> Reply {
    Reply::Applied(Applied {
        resync,
        lease_ms: 15_000,
    })
}

fn refused(fault: Fault) -> Reply {
    Reply::Refused(Refusal::from(&fault))
}

/// An outbox whose leases have begun, and the shard of request 1.
fn mk_begun(max_waiting: usize) -> (Outbox, u32) {
    let outbox = mk_outbox(max_waiting);
    for shard in 0..SHARDS {
        assert!(outbox.take(shard, at(0)).unwrap().full);
        outbox.settle(shard, &applied(false), at(0));
    }
    let shard = outbox.shard_of(&id(1));
    (outbox, shard)
}

#[test]
fn a_request_that_ends_before_it_was_sent_is_not_sent() {
    let (outbox, shard) = mk_begun(10);
    outbox.put(id(1), ip(1), length(5), false);
    outbox.prompt_done(&id(1));
    outbox.delete(&id(1), false);
    assert_eq!(outbox.take(shard, at(1)), None);
    assert_eq!(outbox.waiting(), 0);
    // But the service may have a reservation.
    outbox.put(id(1), ip(1), length(5), true);
    outbox.delete(&id(1), false);
    let batch = outbox.take(shard, at(1)).unwrap();
    assert_eq!(
        (&batch.puts[..], &batch.deletes[..]),
        (&[][..], &[id(1)][..])
    );
    assert_eq!((batch.live, batch.prompt_sum), (0, 0));
}

#[test]
fn changes_of_one_request_fall_together() {
    let (outbox, shard) = mk_begun(10);
    outbox.put(id(1), ip(1), length(5), false);
    outbox.put(id(1), ip(2), length(5), false);
    outbox.prompt_done(&id(1));
    let batch = outbox.take(shard, at(1)).unwrap();
    let now = put(2, 0);
    assert_eq!((&batch.puts[..], batch.full), (&[now][..], false));
    outbox.settle(shard, &applied(false), at(1));
    assert_eq!(outbox.take(shard, at(1)), None);
}

fn put(endpoint: u8, prefill: i64) -> crate::wire::batch::Put {
    crate::wire::batch::Put {
        request_id: id(1),
        ip: ip(endpoint),
        prompt_length: length(prefill),
    }
}

#[test]
fn a_batch_without_reply_is_sent_again_as_it_was() {
    let (outbox, shard) = mk_begun(10);
    outbox.put(id(1), ip(1), length(5), false);
    let batch = outbox.take(shard, at(1)).unwrap();
    outbox.delete(&id(1), false);
    assert_eq!(outbox.take(shard, at(2)), Some(Arc::clone(&batch)));
    let known = Fault::StaleSeq {
        last: batch.seq,
        applied: true,
    };
    outbox.settle(shard, &refused(known), at(2));
    let next = outbox.take(shard, at(2)).unwrap();
    assert_eq!((next.seq, next.full), (batch.seq + 1, false));
    assert_eq!(next.deletes, [id(1)]);
}

#[test]
fn the_lease_is_renewed_after_a_batch_that_was_applied_long_ago() {
    let (outbox, shard) = mk_begun(10);
    outbox.put(id(1), ip(1), length(5), false);
    let batch = outbox.take(shard, at(1)).unwrap();
    let known = Fault::StaleSeq {
        last: batch.seq,
        applied: true,
    };
    outbox.settle(shard, &refused(known), at(15));
    let next = outbox.take(shard, at(15)).unwrap();
    assert_eq!((next.seq, next.puts.len()), (batch.seq + 1, 0));
}

#[test]
fn a_third_of_the_lease_is_waited_for_changes() {
    let (outbox, shard) = mk_begun(10);
    assert_eq!(outbox.due(shard), at(5));
    assert_eq!(outbox.take(shard, at(4)), None);
    let batch = outbox.take(shard, at(5)).unwrap();
    assert!(batch.puts.is_empty() && !batch.full);
}

#[test]
fn what_the_service_lost_is_sent_in_full() {
    let (outbox, shard) = mk_begun(10);
    outbox.put(id(1), ip(1), length(5), false);
    let is_full = |reply: Reply| {
        outbox.take(shard, at(10)).unwrap();
        outbox.settle(shard, &reply, at(10));
        let batch = outbox.take(shard, at(10)).unwrap();
        outbox.settle(shard, &applied(false), at(0));
        (batch.full, batch.puts.len(), batch.epoch)
    };
    assert_eq!(is_full(applied(true)), (true, 1, 1));
    assert_eq!(is_full(refused(Fault::LeaseLost)), (true, 1, 1));
    let epoch = Fault::StaleEpoch { current: 7 };
    assert_eq!(is_full(refused(epoch)), (true, 1, 8));
    outbox.reset();
    assert!(outbox.take(shard, at(10)).unwrap().full);
}

#[test]
fn what_is_refused_again_and_again_is_not_sent_hot() {
    let (outbox, shard) = mk_begun(10);
    let mut now = at(10);
    let mut waits = |reply: fn() -> Reply| {
        let wait = |_| {
            assert!(outbox.take(shard, now).is_some(), "at {now:?}");
            outbox.settle(shard, &reply(), now);
            let due = outbox.due(shard).max(now);
            let early = now + due.since(now).saturating_sub(Duration::from_nanos(1));
            assert!(due == now || outbox.take(shard, early).is_none());
            let wait = due.since(now);
            now = due;
            wait.as_millis()
        };
        (0..9).map(wait).collect::<Vec<_>>()
    };
    let in_halves = |waits: Vec<u128>, halves: [u128; 9]| {
        let is = |(wait, most): (&u128, u128)| (most / 2..=most).contains(wait);
        assert!(waits.iter().zip(halves).all(is), "{waits:?}");
    };
    let limit = || refused(Fault::Limit(Bound::Requests));
    let most = [50, 100, 200, 400, 800, 1600, 2000, 2000, 2000];
    in_halves(waits(limit), most);
    waits(|| applied(false));
    let most = [0, 50, 100, 200, 400, 800, 1600, 2000, 2000];
    in_halves(waits(|| applied(true)), most);
    waits(|| applied(false));
    in_halves(waits(|| refused(Fault::LeaseLost)), most);
}

#[test]
fn a_batch_is_due_at_once_when_there_is_something_to_send() {
    let (outbox, shard) = mk_begun(10);
    let due = || outbox.due(shard);
    assert_eq!(due(), at(5));
    outbox.put(id(1), ip(1), length(5), false);
    assert_eq!(due(), Moment::START, "a change waits");
    outbox.take(shard, at(1)).unwrap();
    assert_eq!(due(), Moment::START, "its batch is under way");
    outbox.settle(shard, &applied(false), at(1));
    assert_eq!(due(), at(6));
    outbox.reset();
    assert_eq!(due(), Moment::START, "the next one is full");
    outbox.take(shard, at(1)).unwrap();
    let epoch = Fault::StaleEpoch { current: 7 };
    outbox.settle(shard, &refused(epoch), at(1));
    outbox.take(shard, at(1)).unwrap();
    outbox.settle(shard, &applied(false), at(1));
    let other = (0..SHARDS).find(|it| *it != shard).unwrap();
    assert_eq!(
        (due(), outbox.due(other)),
        (at(6), Moment::START),
        "its epoch is over"
    );
}

#[test]
fn changes_that_cancel_out_do_not_hide_others() {
    let (outbox, shard) = mk_begun(10_000);
    let ids = |numbers: std::ops::Range<u32>| {
        let ids = numbers.map(|it| format!("x{it}").parse().unwrap());
        ids.filter(|it| outbox.shard_of(it) == shard)
            .collect::<Vec<_>>()
    };
    for id in ids(0..3000) {
        outbox.put(id.clone(), ip(1), length(5), false);
        outbox.delete(&id, false);
    }
    outbox.put(id(1), ip(1), length(5), false);
    assert!(outbox.waiting() > 4 * MAX_CHANGES);
    assert_eq!(outbox.take(shard, at(1)).unwrap().puts, [put(1, 5)]);
    outbox.settle(shard, &applied(false), at(1));
    // What is as it was sent says nothing either.
    outbox.put(id(1), ip(2), length(5), false);
    outbox.put(id(1), ip(1), length(5), false);
    assert_eq!(outbox.take(shard, at(1)), None);
    for id in ids(0..2000) {
        outbox.put(id, ip(1), length(5), false);
    }
    assert_eq!(outbox.take(shard, at(1)).unwrap().puts.len(), MAX_CHANGES);
}

#[test]
fn a_full_batch_ends_some_reservations_and_names_nothing_else_that_ended() {
    let (outbox, shard) = mk_begun(10_000);
    let names = (0..1000).map(|it| format!("x{it}").parse::<RequestId>().unwrap());
    let mut names = names.filter(|it| outbox.shard_of(it) == shard);
    let never_sent = names.next().unwrap();
    outbox.put(never_sent.clone(), ip(1), length(5), false);
    outbox.delete(&never_sent, false);
    for name in names {
        outbox.delete(&name, true);
    }
    assert!(outbox.waiting() > MAX_CHANGES + 1);
    outbox.reset();
    let batch = outbox.take(shard, at(1)).unwrap();
    assert_eq!((batch.full, batch.deletes.len()), (true, MAX_CHANGES));
    assert!(!batch.deletes.contains(&never_sent));
    assert_eq!(outbox.waiting(), 0);
}

#[test]
fn refused_owners_come_back_at_different_times() {
    let reporting = Reporting {
        shards: MAX_SHARDS,
        max_waiting: 0,
        lease_ms: 15_000,
    };
    let wait = |instance: &str, shard| {
        let (cluster, instance) = ("c".parse().unwrap(), instance.parse().unwrap());
        let outbox = Outbox::new(cluster, instance, 1, reporting);
        outbox.take(shard, at(1)).unwrap();
        let limit = refused(Fault::Limit(Bound::Requests));
        outbox.settle(shard, &limit, at(1));
        outbox.due(shard).since(at(1)).as_micros()
    };
    let waits: BTreeSet<_> = (0..MAX_SHARDS).map(|it| wait("epp-0", it)).collect();
    let (first, last) = (*waits.first().unwrap(), *waits.last().unwrap());
    assert!(
        waits.len() > 50 && first < 27_000 && last > 48_000,
        "{waits:?}"
    );
    assert_ne!(wait("epp-1", 0), wait("epp-0", 0));
}

#[test]
fn another_program_of_this_name_is_outbid() {
    let (outbox, shard) = mk_begun(10);
    outbox.put(id(1), ip(1), length(5), false);
    let seq = outbox.take(shard, at(1)).unwrap().seq;
    let further = Fault::StaleSeq {
        last: u64::MAX,
        applied: false,
    };
    outbox.settle(shard, &refused(further), at(1));
    let next = outbox.take(shard, at(1)).unwrap();
    assert_eq!((next.epoch, next.seq, next.full), (2, seq + 1, true));
    let higher = Refusal::StaleEpoch { current: None };
    outbox.settle(shard, &Reply::Refused(higher), at(1));
    assert_eq!((outbox.due(shard) > at(1), outbox.epoch()), (true, 3));
}

/// So many that a full batch has no room for them, of ids as long as they may be.
#[test]
fn charges_that_one_batch_does_not_hold_follow_in_others() {
    const COUNT: usize = 2 * MAX_PUTS + 1000;

    let reporting = Reporting {
        shards: 1,
        max_waiting: 100,
        lease_ms: 15_000,
    };
    let (cluster, instance) = ("c".parse().unwrap(), "epp-0".parse().unwrap());
    let outbox = Outbox::new(cluster, instance, 1, reporting);
    let center = Center::new(Limits {
        cache_max_bytes: 1 << 20,
        ..Limits::default()
    });
    let ip = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff0]:65535"
        .parse()
        .unwrap();
    let name = |number: usize| format!("{number:0128}").parse::<RequestId>().unwrap();
    for number in 0..COUNT {
        outbox.put(name(number), ip, length(i32::MAX.into()), false);
    }
    let send = || {
        let batch = outbox.take(0, at(1))?;
        let now = Now {
            at: at(1),
            unix_ns: 0,
        };
        assert!(serde_json::to_string(&*batch).unwrap().len() < 4 << 20);
        let applied = center.batch(Batch::clone(&batch), now).unwrap();
        assert!(!applied.resync, "the totals are those of what was sent");
        outbox.settle(0, &Reply::Applied(applied), at(1));
        Some((batch.full, batch.puts.len() + batch.deletes.len()))
    };
    assert_eq!(send(), Some((true, MAX_PUTS)));
    assert_eq!(outbox.due(0), Moment::START, "the rest waits");
    // Requests change meanwhile, some of which were sent.
    for number in 0..50 {
        outbox.delete(&name(number), false);
        outbox.prompt_done(&name(50 + number));
    }
    let rest: Vec<_> = std::iter::from_fn(send).collect();
    assert_eq!((rest.len(), rest[0]), (2, (false, MAX_PUTS)), "{rest:?}");
    let load = center.sizes().by_cluster.remove(0);
    let live = i64::try_from(COUNT - 50).unwrap();
    let prefill = (live - 50) * i64::from(i32::MAX);
    assert_eq!((load.requests, load.prefill), (live, prefill));
    // The same from the beginning.
    outbox.reset();
    assert_eq!(send(), Some((true, MAX_PUTS)));
    assert_eq!(std::iter::from_fn(send).count(), 2);
    let load = center.sizes().by_cluster.remove(0);
    assert_eq!((load.requests, load.prefill), (live, prefill));
}

#[derive(Clone, Debug)]
enum Step {
    Put(u8, u8, i64),
    PromptDone(u8),
    Delete(u8),
    /// Of a shard; what becomes of the batch and of its reply.
    Send(u32, Fate),
    Restart,
    Wait(u64),
}

#[derive(Clone, Copy, Debug)]
enum Fate {
    Arrives,
    ReplyLost,
    Lost,
}

fn any_step() -> impl Strategy<Value = Step> {
    let fate =
        prop_oneof![3 => Just(Fate::Arrives), 1 => Just(Fate::ReplyLost), 1 => Just(Fate::Lost)];
    prop_oneof![
        6 => (0..20u8, 1..4u8, 0..3i64).prop_map(|(id, ip, length)| Step::Put(id, ip, length)),
        2 => (0..20u8).prop_map(Step::PromptDone),
        5 => (0..20u8).prop_map(Step::Delete),
        4 => (0..SHARDS, fate).prop_map(|(shard, fate)| Step::Send(shard, fate)),
        1 => prop_oneof![4 => (0..20u64).prop_map(Step::Wait), 1 => Just(Step::Restart)],
    ]
}

fn send(outbox: &Outbox, center: &Center, shard: u32, fate: Fate, second: u64) {
    let Some(batch) = outbox.take(shard, at(second)) else {
        return;
    };
    let now = Now {
        at: at(second),
        unix_ns: 0,
    };
    if matches!(fate, Fate::Lost) {
        return;
    }
    let applied = center.batch(Batch::clone(&batch), now);
    if matches!(fate, Fate::Arrives) {
        let reply = applied.map_or_else(refused, Reply::Applied);
        outbox.settle(shard, &reply, at(second));
    }
}

/// Requests and prefill by endpoint.
fn loads(center: &Center) -> BTreeMap<Address, (i32, i32)> {
    let loads = center.loads(&"c".parse().unwrap()).unwrap_or_default();
    let loads = loads.into_iter().filter(|it| it.queued_req_num > 0);
    loads
        .map(|it| (it.ip, (it.queued_req_num, it.prompt_length)))
        .collect()
}

proptest! {
    /// Few changes may wait, so that they overflow often, and the service may have room for few of the requests.
    #[test]
    fn the_service_learns_all_in_the_end(
        steps in vec(any_step(), 1..120),
        max_waiting in 0..12usize,
        requests in 10..30usize,
    ) {
        let outbox = mk_outbox(max_waiting);
        let limits = Limits { requests, cache_max_bytes: 1 << 20, ..Limits::default() };
        let mut center = Center::new(limits);
        let mut second = 0;
        let mut live = BTreeMap::new();
        for step in steps {
            match step {
                Step::Put(number, endpoint, prefill) => {
                    outbox.put(id(number), ip(endpoint), length(prefill), false);
                    live.insert(number, (ip(endpoint), i32::try_from(prefill).unwrap()));
                }
                Step::PromptDone(number) => {
                    outbox.prompt_done(&id(number));
                    live.entry(number).and_modify(|it| it.1 = 0);
                }
                Step::Delete(number) => {
                    outbox.delete(&id(number), false);
                    live.remove(&number);
                }
                Step::Send(shard, fate) => send(&outbox, &center, shard, fate, second),
                Step::Restart => center = Center::new(limits),
                Step::Wait(seconds) => {
                    second += seconds;
                    center.sweep(Now { at: at(second), unix_ns: 0 });
                }
            }
            prop_assert!(outbox.waiting() <= max_waiting);
        }
        // As many as the service has room for.
        while live.len() > requests
            && let Some((number, _)) = live.pop_first()
        {
            outbox.delete(&id(number), false);
        }
        // A renewal finds what was lost, one more batch mends it, and one after that what had no room before.
        for _ in 0..3 {
            second += 5;
            for shard in 0..SHARDS {
                send(&outbox, &center, shard, Fate::Arrives, second);
                send(&outbox, &center, shard, Fate::Arrives, second);
            }
        }
        let mut expected = BTreeMap::new();
        for (ip, prefill) in live.into_values() {
            let load: &mut (i32, i32) = expected.entry(ip).or_default();
            *load = (load.0 + 1, load.1 + prefill);
        }
        prop_assert_eq!(loads(&center), expected);
        prop_assert_eq!(outbox.waiting(), 0);
    }
}

#[test]
fn changes_that_are_too_many_make_the_next_batch_full() {
    let (outbox, shard) = mk_begun(3);
    for number in 0..20 {
        outbox.put(id(number), ip(1), length(1), false);
    }
    assert_eq!((outbox.waiting(), outbox.overflows() > 0), (3, true));
    let mine = (0..20)
        .filter(|it| outbox.shard_of(&id(*it)) == shard)
        .count();
    let batch = outbox.take(shard, at(1)).unwrap();
    assert_eq!(
        (batch.full, batch.puts.len(), batch.live),
        (true, mine, mine as u64)
    );
}
