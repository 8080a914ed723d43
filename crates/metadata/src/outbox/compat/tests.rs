use std::{collections::BTreeMap, time::Duration};

use moment::Moment;
use proptest::{collection::vec, prelude::*};

use super::*;
use crate::{Center, Limits, Now};

fn mk_outbox(max_waiting: usize) -> CompatOutbox {
    CompatOutbox::new("c".parse().unwrap(), 1, max_waiting)
}

fn id(number: u8) -> RequestId {
    format!("r{number}").parse().unwrap()
}

fn ip(last: u8) -> Address {
    format!("10.0.0.{last}").parse().unwrap()
}

fn length(length: i64) -> PromptLength {
    length.try_into().unwrap()
}

fn add(number: u8, endpoint: u8, prefill: i64) -> Write {
    Write::Add(Add {
        cluster: "c".parse().unwrap(),
        request_id: id(number),
        ip: ip(endpoint),
        prompt_length: length(prefill),
    })
}

fn of(number: u8) -> Drop {
    let request_id = id(number);
    Drop { request_id }
}

/// What is sent, one after the other, until there is nothing more.
fn send_all(outbox: &CompatOutbox) -> Vec<Write> {
    let send = || {
        let write = outbox.take(0)?;
        outbox.settle(0, true);
        Some(write)
    };
    std::iter::from_fn(send).collect()
}

fn sum(requests: i64, prefill: i64) -> Sum {
    Sum { requests, prefill }
}

#[test]
fn a_request_is_added_lowered_moved_and_deleted() {
    let outbox = mk_outbox(10);
    outbox.put(id(1), ip(1), length(5));
    assert_eq!(send_all(&outbox), [add(1, 1, 5)]);
    outbox.prompt_done(&id(1));
    assert_eq!(send_all(&outbox), [Write::PromptDone(of(1))]);
    outbox.put(id(1), ip(2), length(0));
    assert_eq!(send_all(&outbox), [Write::Delete(of(1)), add(1, 2, 0)]);
    outbox.delete(&id(1));
    assert_eq!(send_all(&outbox), [Write::Delete(of(1))]);
    assert_eq!(outbox.charged(&[ip(1), ip(2)]), [sum(0, 0); 2]);
}

#[test]
fn what_cancels_out_is_not_sent() {
    let outbox = mk_outbox(10);
    outbox.put(id(1), ip(1), length(5));
    outbox.delete(&id(1));
    outbox.put(id(2), ip(1), length(5));
    assert_eq!(send_all(&outbox), [add(2, 1, 5)]);
    outbox.put(id(2), ip(2), length(5));
    outbox.put(id(2), ip(1), length(5));
    assert_eq!((send_all(&outbox), outbox.waiting()), (vec![], 0));
}

#[test]
fn a_write_without_reply_is_sent_again_and_what_changed_follows() {
    let outbox = mk_outbox(10);
    outbox.put(id(1), ip(1), length(5));
    assert_eq!(outbox.take(0), Some(add(1, 1, 5)));
    outbox.delete(&id(1));
    assert_eq!(send_all(&outbox), [add(1, 1, 5), Write::Delete(of(1))]);
}

#[test]
fn a_charge_that_is_refused_stays_here_alone() {
    let outbox = mk_outbox(10);
    outbox.put(id(1), ip(1), length(5));
    outbox.take(0).unwrap();
    outbox.settle(0, false);
    assert_eq!(outbox.take(0), None);
    let sums = (outbox.charged(&[ip(1)]), outbox.acknowledged(&[ip(1)]));
    assert_eq!(sums, (vec![sum(1, 5)], vec![sum(0, 0)]));
    outbox.delete(&id(1));
    assert_eq!(outbox.take(0), None);
}

#[test]
fn a_delete_that_is_refused_is_done() {
    let outbox = mk_outbox(10);
    outbox.put(id(1), ip(1), length(5));
    send_all(&outbox);
    outbox.put(id(1), ip(2), length(5));
    assert_eq!(outbox.take(0), Some(Write::Delete(of(1))));
    outbox.settle(0, false);
    assert_eq!(send_all(&outbox), [add(1, 2, 5)]);
}

#[test]
fn too_many_changes_drop_adds_but_no_deletes() {
    let outbox = mk_outbox(2);
    for number in 1..=2 {
        outbox.put(id(number), ip(1), length(1));
    }
    send_all(&outbox);
    for number in 3..=6 {
        outbox.put(id(number), ip(1), length(1));
    }
    assert_eq!((outbox.waiting(), outbox.overflows()), (2, 2));
    for number in 1..=2 {
        outbox.delete(&id(number));
    }
    let sent = send_all(&outbox);
    let deletes = [Write::Delete(of(1)), Write::Delete(of(2))];
    assert_eq!(sent, [&[add(3, 1, 1), add(4, 1, 1)], &deletes[..]].concat());
    assert_eq!(outbox.charged(&[ip(1)]), [sum(4, 4)]);
    assert_eq!(outbox.acknowledged(&[ip(1)]), [sum(2, 2)]);
}

#[test]
fn own_charges_are_seen_as_they_are_now() {
    let (remote, acknowledged) = (sum(5, 100), sum(2, 60));
    assert_eq!(Sum::seen(remote, acknowledged, sum(3, 30)), sum(6, 70));
    assert_eq!(Sum::seen(sum(1, 10), acknowledged, sum(0, 0)), sum(0, 0));
}

#[derive(Clone, Debug)]
enum Step {
    Put(u8, u8, i64),
    PromptDone(u8),
    Delete(u8),
    /// Whether the write arrives, and its reply.
    Send(bool, bool),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (0..8u8, 1..4u8, 0..3i64).prop_map(|(id, ip, length)| Step::Put(id, ip, length)),
        2 => (0..8u8).prop_map(Step::PromptDone),
        4 => (0..8u8).prop_map(Step::Delete),
        6 => any::<(bool, bool)>().prop_map(|(write, reply)| Step::Send(write, reply)),
    ]
}

/// To our own service, which takes single writes too. Each waits until a delete that came twice is forgotten.
fn send(outbox: &CompatOutbox, center: &Center, arrives: bool, reply: bool, now: &mut Now) -> bool {
    now.at = now.at + Duration::from_secs(2);
    let Some(write) = outbox.take(0) else {
        return false;
    };
    if arrives {
        match write {
            Write::Add(add) => center.add(add, false, *now),
            Write::PromptDone(of) => center.prompt_done(&of.request_id, false, *now),
            Write::Delete(of) => center.remove(&of.request_id, false, *now),
        }
        .unwrap();
        if reply {
            outbox.settle(0, true);
        }
    }
    true
}

proptest! {
    #[test]
    fn the_service_has_what_was_acknowledged_and_all_in_the_end(steps in vec(any_step(), 1..80)) {
        const IPS: std::ops::Range<u8> = 1..4;

        let outbox = mk_outbox(1000);
        let center = Center::new(Limits { cache_max_bytes: 1 << 20, ..Limits::default() });
        let ips: Vec<_> = IPS.map(ip).collect();
        let mut now = Now { at: Moment::START, unix_ns: 0 };
        let mut live = BTreeMap::new();
        for step in steps {
            match step {
                Step::Put(number, endpoint, prefill) => {
                    outbox.put(id(number), ip(endpoint), length(prefill));
                    live.insert(number, (ip(endpoint), prefill));
                }
                Step::PromptDone(number) => {
                    outbox.prompt_done(&id(number));
                    live.entry(number).and_modify(|it| it.1 = 0);
                }
                Step::Delete(number) => {
                    outbox.delete(&id(number));
                    live.remove(&number);
                }
                Step::Send(arrives, reply) => {
                    send(&outbox, &center, arrives, reply, &mut now);
                }
            }
        }
        while send(&outbox, &center, true, true, &mut now) {}
        let expected: Vec<_> = ips
            .iter()
            .map(|ip| {
                let mine = live.values().filter(|it| it.0 == *ip);
                mine.fold(sum(0, 0), |all, it| sum(all.requests + 1, all.prefill + it.1))
            })
            .collect();
        let loads = center.loads(&"c".parse().unwrap()).unwrap_or_default();
        let remote = |ip: &Address| {
            let load = loads.iter().find(|it| it.ip == *ip);
            load.map_or(sum(0, 0), |it| sum(it.queued_req_num.into(), it.prompt_length.into()))
        };
        prop_assert_eq!(&ips.iter().map(remote).collect::<Vec<_>>(), &expected);
        prop_assert_eq!(&outbox.charged(&ips), &expected);
        prop_assert_eq!(&outbox.acknowledged(&ips), &expected);
        prop_assert_eq!(outbox.waiting(), 0);
    }
}
