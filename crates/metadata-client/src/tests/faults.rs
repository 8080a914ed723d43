//! Whatever happens to calls and to the service, five seconds later it knows each live request and no other.

use std::{collections::BTreeMap, time::Duration};

use metadata::{
    Address, RequestId,
    wire::{load::PromptLength, pick::Pick},
};
use proptest::{collection::vec, prelude::*};
use tokio::{runtime::Builder, time::sleep};

use crate::{
    outboxes::Charges,
    script::{Mode, Rig, Script, cluster, mk_pick, ms, settings},
    settings::{Api, Settings},
    transport::Trace,
};

const ADDRESSES: [u8; 2] = [1, 2];

#[derive(Clone, Debug)]
enum Step {
    Put(u8, u8, i64),
    Pick(u8),
    PromptDone(u8),
    End(u8),
    Set(u8, Mode),
    Restart,
    Wait(u64),
}

fn any_mode() -> impl Strategy<Value = Mode> {
    prop_oneof![
        3 => Just(Mode::Up),
        1 => Just(Mode::Refuses),
        1 => Just(Mode::Hangs),
        1 => Just(Mode::Mute),
        1 => (0..600u64).prop_map(|after| Mode::Slow(ms(after))),
        1 => (0..600u64).prop_map(|after| Mode::Breaks(ms(after))),
        1 => Just(Mode::Answers(503, serde_json::json!({}))),
    ]
}

fn any_step() -> impl Strategy<Value = Step> {
    let address = proptest::sample::select(&ADDRESSES[..]);
    prop_oneof![
        6 => (0..30u8, 1..4u8, 0..3i64).prop_map(|(id, ip, length)| Step::Put(id, ip, length)),
        3 => (30..60u8).prop_map(Step::Pick),
        2 => (0..60u8).prop_map(Step::PromptDone),
        5 => (0..60u8).prop_map(Step::End),
        3 => (address, any_mode()).prop_map(|(last, mode)| Step::Set(last, mode)),
        1 => Just(Step::Restart),
        4 => prop_oneof![(0..300u64), (0..20_000u64)].prop_map(Step::Wait),
    ]
}

/// What is charged for live requests.
type Live = BTreeMap<u8, (Address, i64)>;

fn id(number: u8) -> RequestId {
    format!("r{number}").parse().unwrap()
}

fn length(length: i64) -> PromptLength {
    length.try_into().unwrap()
}

async fn take(step: Step, rig: &Rig, charges: &Charges, live: &mut Live) {
    match step {
        Step::Put(number, last, prefill) => {
            let ip = format!("10.0.0.{last}:8000").parse().unwrap();
            charges.put(id(number), ip, length(prefill), false);
            live.insert(number, (ip, prefill));
        }
        Step::Pick(number) if !live.contains_key(&number) => {
            // Where too much waits a lost reservation is not deleted: it ends by itself.
            let pick = Pick {
                reserve_ms: 5000,
                ..mk_pick(id(number).as_str())
            };
            match rig.client.pick(&pick, &Trace::default()).await {
                Ok(picks) => {
                    let ip = picks.picks[0].ip;
                    charges.put(id(number), ip, length(picks.charge), true);
                    live.insert(number, (ip, picks.charge));
                }
                // It may be reserved even so.
                Err(_) => charges.end(&id(number), true),
            }
        }
        Step::Pick(_) => {}
        Step::PromptDone(number) => {
            charges.prompt_done(&id(number));
            live.entry(number).and_modify(|it| it.1 = 0);
        }
        Step::End(number) => {
            charges.end(&id(number), false);
            live.remove(&number);
        }
        Step::Set(last, mode) => rig.script.set(last, mode),
        Step::Restart => rig.script.restart(),
        Step::Wait(millis) => sleep(ms(millis)).await,
    }
}

async fn survive(steps: Vec<Step>, queue_size: u32) -> Result<(), TestCaseError> {
    let script = Script::new(&ADDRESSES);
    let few = Settings {
        queue_size,
        ..settings(Api::Isthmus)
    };
    let rig = Rig::start(&script, few).await;
    let charges = rig.client.charges(&cluster()).unwrap();
    let mut live = Live::new();
    for step in steps {
        take(step, &rig, &charges, &mut live).await;
    }
    for last in ADDRESSES {
        script.set(last, Mode::Up);
    }
    sleep(Duration::from_secs(5)).await;
    let mut expected: BTreeMap<String, (i32, i32)> = BTreeMap::new();
    for (ip, prefill) in live.into_values() {
        let load = expected.entry(ip.to_string()).or_default();
        *load = (load.0 + 1, load.1 + i32::try_from(prefill).unwrap());
    }
    prop_assert_eq!(script.loads(), expected);
    Ok(())
}

proptest! {
    #[test]
    fn five_seconds_after_any_fault_the_service_has_what_is_live(
        steps in vec(any_step(), 1..60),
        queue_size in 1..20u32,
    ) {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(survive(steps, queue_size))?;
    }
}
