//! Random calls to the state in memory.

use proptest::prelude::*;

use super::{
    model::{Answer, Call, Engine, Loads},
    steps::{CLUSTERS, any_steps, run},
    *,
};

struct InMemory {
    center: Center,
    limits: Limits,
    rng: StdRng,
}

// === impl InMemory ===

impl Engine for InMemory {
    fn run(&mut self, call: &Call, now: Now) -> Answer {
        let Self {
            center,
            limits,
            rng,
        } = self;
        let done = match call.clone() {
            Call::Add(add, strict) => center.add(add, strict, now),
            Call::PromptDone(id, strict) => center.prompt_done(&id, strict, now),
            Call::Remove(id, strict) => center.remove(&id, strict, now),
            Call::Batch(batch) => {
                let applied = center.batch(batch, now);
                let resync = applied.map(|it| it.resync);
                return resync.map_or_else(Answer::Refused, |resync| Answer::Applied { resync });
            }
            Call::Pick(pick) => {
                let picks = center.pick(&pick, rng, now);
                return picks.map_or_else(Answer::Refused, |it| {
                    Answer::Picked(it.picks[0].ip, it.charge)
                });
            }
            Call::EndLeases(instance, epoch) => {
                center.end_leases(&instance, epoch, now);
                Ok(())
            }
            Call::Sweep => {
                center.sweep(now);
                Ok(())
            }
            Call::Restart => {
                *center = Center::new(*limits);
                Ok(())
            }
        };
        done.map_or_else(Answer::Refused, |()| Answer::Done)
    }

    fn loads(&self) -> Loads {
        let mut loads = Loads::new();
        for name in CLUSTERS.map(cluster) {
            for load in self.center.loads(&name).unwrap_or_default() {
                let sums = (load.queued_req_num.into(), load.prompt_length.into());
                if sums != (0, 0) {
                    loads.insert((name.clone(), load.ip), sums);
                }
            }
        }
        loads
    }

    fn sums(&self) -> Vec<(Cluster, i64, i64)> {
        let sums = self.center.sizes().by_cluster;
        sums.into_iter()
            .map(|it| (it.cluster, it.requests, it.prefill))
            .collect()
    }

    fn sizes(&self) -> (usize, usize, usize) {
        let sizes = self.center.sizes();
        (sizes.requests, sizes.reservations, sizes.leases)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn loads_are_the_sum_of_what_lives(steps in any_steps()) {
        let limits = Limits {
            requests: 12,
            request_expire: Duration::from_secs(30),
            cache_max_bytes: 1 << 20,
            ..Limits::default()
        };
        let center = Center::new(limits);
        run(steps, &mut InMemory { center, limits, rng: mk_rng() }, limits)?;
    }
}
