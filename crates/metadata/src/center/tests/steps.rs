//! Random calls, and a run of them: each is answered as the model answers, and after each all sums agree.

use proptest::{collection::vec, prelude::*};

use super::{
    model::{Answer, Call, Engine, Model},
    *,
};

/// A call, and how long after the one before it, in seconds.
pub(super) type Step = (Call, u64);

pub(super) const CLUSTERS: [&str; 2] = ["c", "d"];

pub(super) fn run(
    steps: Vec<Step>,
    engine: &mut impl Engine,
    limits: Limits,
) -> Result<(), TestCaseError> {
    let mut model = Model::new(limits);
    let mut second = 1000;
    for (call, wait) in steps {
        second += wait;
        let now = at_ms(second * 1000);
        let answer = engine.run(&call, now);
        let picked = match answer {
            Answer::Picked(ip, _) => Some(ip),
            _ => None,
        };
        let expected = model.run(&call, picked, now);
        prop_assert_eq!(answer, expected, "at {} of {:?}", second, &call);
        let is = (engine.loads(), engine.sums(), engine.sizes());
        let expected = (model.loads(), model.sums(), model.sizes());
        prop_assert_eq!(is, expected, "at {} after {:?}", second, &call);
    }
    Ok(())
}

fn any_cluster() -> impl Strategy<Value = Cluster> {
    prop_oneof![5 => Just("c"), 1 => Just("d")].prop_map(cluster)
}

fn any_id() -> impl Strategy<Value = RequestId> {
    (0..10u8).prop_map(|it| id(&format!("r{it}")))
}

fn any_put() -> impl Strategy<Value = Put> {
    (any_id(), 1..5u8, 0..3i64).prop_map(|(request_id, endpoint, prefill)| Put {
        request_id,
        ip: ip(endpoint),
        prompt_length: length(prefill),
    })
}

fn any_add() -> impl Strategy<Value = Call> {
    let add = (any_cluster(), any_put(), any::<bool>());
    add.prop_map(|(cluster, put, strict)| {
        let add = Add {
            cluster,
            request_id: put.request_id,
            ip: put.ip,
            prompt_length: put.prompt_length,
        };
        Call::Add(add, strict)
    })
}

/// `seq` and `epoch` are how far it is behind; [`in_order`] makes numbers of them that rise.
fn any_batch() -> impl Strategy<Value = Call> {
    let who = (any_cluster(), 0..2u8, 0..2u32);
    let behind = (
        prop_oneof![6 => Just(0u64), 2 => 1..4u64],
        prop_oneof![9 => Just(0u64), 1 => Just(1)],
    );
    let totals = (0..4u64, 0..4i64);
    let what = (
        any::<bool>(),
        1000..20_000u32,
        vec(any_put(), 0..4),
        vec(any_id(), 0..3),
    );
    (who, behind, totals, what).prop_map(|(who, behind, totals, what)| {
        let (cluster, instance, shard) = who;
        let (full, lease_ms, mut puts, mut deletes) = what;
        let mut ids = std::collections::BTreeSet::new();
        puts.retain(|it| ids.insert(it.request_id.clone()));
        deletes.retain(|it| ids.insert(it.clone()));
        Call::Batch(Batch {
            cluster,
            instance: format!("epp-{instance}").parse().unwrap(),
            epoch: behind.1,
            shard,
            seq: behind.0,
            full,
            lease_ms: lease_ms / 1000 * 1000,
            puts,
            deletes,
            live: totals.0,
            prompt_sum: totals.1,
        })
    })
}

fn any_pick() -> impl Strategy<Value = Call> {
    let pick = (any_cluster(), any_id(), 1..5u8, 0..3i64, 1..20u32);
    pick.prop_map(|(cluster, request_id, candidates, prefill, seconds)| {
        Call::Pick(Pick {
            cluster,
            request_id,
            prompt_length: length(prefill),
            reserve_ms: seconds * 1000,
            ..mk_pick("-", candidates)
        })
    })
}

fn any_call() -> impl Strategy<Value = Call> {
    prop_oneof![
        3 => any_add(),
        1 => (any_id(), any::<bool>()).prop_map(|(id, strict)| Call::PromptDone(id, strict)),
        2 => (any_id(), any::<bool>()).prop_map(|(id, strict)| Call::Remove(id, strict)),
        6 => any_batch(),
        4 => any_pick(),
        1 => (0..2u8, 1..5u64).prop_map(|(instance, epoch)| {
            Call::EndLeases(format!("epp-{instance}").parse().unwrap(), epoch)
        }),
        4 => Just(Call::Sweep),
        1 => prop_oneof![9 => Just(Call::Sweep), 1 => Just(Call::Restart)],
    ]
}

fn in_order(mut steps: Vec<Step>) -> Vec<Step> {
    for (at, (call, _)) in steps.iter_mut().enumerate() {
        if let Call::Batch(batch) = call {
            let at = at as u64;
            batch.seq = at + 10 - batch.seq;
            batch.epoch = at / 30 + 10 - batch.epoch;
        }
    }
    steps
}

pub(super) fn any_steps() -> impl Strategy<Value = Vec<Step>> {
    let wait = prop_oneof![6 => Just(0), 3 => 1..4u64, 1 => 4..40u64];
    vec((any_call(), wait), 1..150).prop_map(in_order)
}
