#![cfg(test)]
//! What a charge takes: a binary of its own, for it counts in the allocator.

use allocation_counter::measure;
use metadata::{
    Address, Center, Limits, Now, RequestId,
    wire::{
        batch::{Batch, Put},
        load::Add,
        pick::{Candidate, Params, Pick},
    },
};
use moment::Moment;
use rand::{SeedableRng, rngs::StdRng};

const NOW: Now = Now {
    at: Moment::START,
    unix_ns: 0,
};
/// Just above a power of two, where tables have just grown.
const CHARGES: u32 = 66_000;

fn uuid(number: u32) -> RequestId {
    let text = format!("{number:08x}-0000-4000-8000-000000000000");
    text.parse().unwrap()
}

fn ip() -> Address {
    "10.0.0.1:8000".parse().unwrap()
}

/// Of each charge that these calls make, one for each number.
fn bytes_each(call: impl Fn(&Center, u32)) -> u64 {
    let center = Center::new(Limits::default());
    let left = measure(|| (0..CHARGES).for_each(|number| call(&center, number))).bytes_current;
    assert_eq!(center.sizes().requests, CHARGES as usize);
    u64::try_from(left).unwrap() / u64::from(CHARGES)
}

#[test]
fn a_charge_takes_at_most_200_bytes() {
    let owned = bytes_each(|center, number| {
        let batch = Batch {
            cluster: "c".parse().unwrap(),
            instance: "a".parse().unwrap(),
            epoch: 1,
            shard: 0,
            seq: u64::from(number),
            full: number == 0,
            lease_ms: 10_000,
            puts: vec![Put {
                request_id: uuid(number),
                ip: ip(),
                prompt_length: 1.try_into().unwrap(),
            }],
            deletes: Vec::new(),
            live: 0,
            prompt_sum: 0,
        };
        center.batch(batch, NOW).unwrap();
    });
    let unowned = bytes_each(|center, number| {
        let add = Add {
            cluster: "c".parse().unwrap(),
            request_id: uuid(number),
            ip: ip(),
            prompt_length: 1.try_into().unwrap(),
        };
        center.add(add, false, NOW).unwrap();
    });
    let reserved = bytes_each(|center, number| {
        let pick = Pick {
            cluster: "c".parse().unwrap(),
            request_id: uuid(number),
            prompt_hash: Vec::new().into(),
            prompt_length: 1.try_into().unwrap(),
            count: 1,
            reserve_ms: 10_000,
            candidates: vec![Candidate {
                ip: ip(),
                bias: 0.0,
            }],
            params: Params::default(),
        };
        let rng = &mut StdRng::seed_from_u64(1);
        center.pick(&pick, rng, NOW).unwrap();
    });
    let each = (owned, unowned, reserved);
    assert!(
        owned <= 200 && unowned <= 200 && reserved <= 200,
        "{each:?}"
    );
}
