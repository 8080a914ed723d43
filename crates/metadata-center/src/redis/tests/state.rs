//! Random calls, with the time that the test says: the scripts read it from a key.

use std::{collections::BTreeMap, sync::atomic::Ordering};

use metadata::{Bound, Limits, Now};
use moment::Moment;
use proptest::{prelude::*, test_runner::TestRunner};
use tokio::runtime::Runtime;

use self::{
    model::{Answer, Call, Loads},
    steps::{CLUSTERS, any_steps, run},
};
use super::*;

#[path = "../../../../metadata/src/center/tests/model.rs"]
mod model;
#[path = "../../../../metadata/src/center/tests/steps.rs"]
mod steps;

fn at_ms(millis: u64) -> Now {
    Now {
        at: Moment::from_millis(millis),
        unix_ns: i64::try_from(millis).unwrap() * 1_000_000,
    }
}

const CLOCK: &str = "redis.call('MGET', 'test:seconds', 'test:micros')";

/// The state in Redis without what runs by itself.
struct InRedis {
    runtime: Arc<Runtime>,
    shared: Shared,
    options: RedisOptions,
    /// Until when notes of early deletes last, which Redis removes by its own clock.
    gone: BTreeMap<RequestId, Moment>,
}

// === impl InRedis ===

impl InRedis {
    fn new(server: &Server, limits: Limits) -> Self {
        let options = RedisOptions {
            limits,
            ..mk_options(server)
        };
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let mut this = Self {
            runtime: Arc::new(builder.enable_all().build().unwrap()),
            shared: Shared::new(options.clone(), Clock::start()).unwrap(),
            options,
            gone: BTreeMap::new(),
        };
        this.restart();
        this
    }

    fn restart(&mut self) {
        self.shared = Shared::new(self.options.clone(), Clock::start()).unwrap();
        self.shared.scripts = Scripts::new(|script| script.replace("redis.call('TIME')", CLOCK));
        // Nobody follows the log here.
        self.shared.log.set_replayed();
        let Self {
            runtime, shared, ..
        } = self;
        runtime.block_on(async {
            shared.link.connect().await.unwrap();
            let mut flush = redis::pipe();
            flush.cmd("FLUSHALL").ignore();
            shared.link.query::<()>(&flush).await.unwrap();
        });
        self.gone.clear();
    }

    /// It is this time, and a beat was just now.
    async fn prepare(&mut self, now: Now) {
        let millis = i64::try_from(now.at.since_start().as_millis()).unwrap();
        let mut set = redis::pipe();
        set.cmd("MSET").arg("test:seconds").arg(millis / 1000);
        set.arg("test:micros").arg(millis % 1000 * 1000).ignore();
        for over in self.gone.extract_if(.., |_, until| *until <= now.at) {
            set.cmd("DEL").arg(keys::gone(&over.0)).ignore();
        }
        let Self { shared, .. } = self;
        shared.link.query::<()>(&set).await.unwrap();
        let ours = i64::try_from(shared.clock.now().since_start().as_millis()).unwrap();
        shared
            .redis_epoch_ms
            .store(millis - ours, Ordering::Relaxed);
        shared.count().await.unwrap();
    }

    async fn call(&self, call: Call) -> Answer {
        let shared = &self.shared;
        let done = match call {
            Call::Add(add, strict) => shared.add(add, strict).await,
            Call::PromptDone(id, strict) => shared.delete(&id, false, strict).await,
            Call::Remove(id, strict) => shared.delete(&id, true, strict).await,
            Call::Batch(batch) => {
                let resync = shared.batch(batch).await.map(|it| it.resync);
                return resync.map_or_else(Answer::Refused, |resync| Answer::Applied { resync });
            }
            Call::Pick(pick) => {
                let picks = shared.pick(&pick).await;
                return picks.map_or_else(Answer::Refused, |it| {
                    Answer::Picked(it.picks[0].ip, it.charge)
                });
            }
            Call::EndLeases(instance, epoch) => shared.end_leases(&instance, epoch).await,
            Call::Sweep => shared.sweep().await.map(|_| ()),
            Call::Restart => Ok(()),
        };
        done.map_or_else(Answer::Refused, |()| Answer::Done)
    }

    /// What is kept long after the last call, but for what Redis ends by its own clock.
    fn keys_after_all(&mut self) -> Vec<String> {
        let an_hour = 3_600_000;
        for hour in 1..=3 {
            let now = at_ms(1_000_000_000 + hour * an_hour);
            model::Engine::run(self, &Call::Sweep, now);
        }
        let mut ask = redis::pipe();
        ask.cmd("KEYS").arg("mc1:*");
        let asked = self.runtime.block_on(self.shared.link.query(&ask));
        let (mut keys,): (Vec<String>,) = asked.unwrap();
        let noted = |key: &str| key.starts_with("mc1:id:") || key.starts_with("mc1:gone:");
        keys.retain(|key| !noted(key));
        keys
    }

    /// Redis would end the note of an early delete by its own clock.
    async fn keep_early(&mut self, id: &RequestId, now: Now) {
        let mut keep = redis::pipe();
        keep.cmd("PERSIST").arg(keys::gone(id));
        let (kept,): (bool,) = self.shared.link.query(&keep).await.unwrap();
        if kept {
            self.gone
                .insert(id.clone(), now.at + Duration::from_secs(2));
        }
    }
}

impl model::Engine for InRedis {
    fn run(&mut self, call: &Call, now: Now) -> Answer {
        if matches!(call, Call::Restart) {
            self.restart();
        }
        let runtime = Arc::clone(&self.runtime);
        runtime.block_on(async {
            self.prepare(now).await;
            let answer = self.call(call.clone()).await;
            if let Call::PromptDone(id, _) | Call::Remove(id, _) = call {
                self.keep_early(id, now).await;
            }
            self.shared.touch().await.unwrap();
            answer
        })
    }

    fn loads(&self) -> Loads {
        let mut loads = Loads::new();
        for name in CLUSTERS.map(cluster) {
            let of_cluster = self.runtime.block_on(self.shared.loads(&name)).unwrap();
            for load in of_cluster.unwrap_or_default() {
                let sums = (load.queued_req_num.into(), load.prompt_length.into());
                if sums != (0, 0) {
                    loads.insert((name.clone(), load.ip), sums);
                }
            }
        }
        loads
    }

    fn sums(&self) -> Vec<(Cluster, i64, i64)> {
        let sizes = self.runtime.block_on(self.shared.sizes()).unwrap();
        let sums = sizes.by_cluster.into_iter();
        sums.map(|it| (it.cluster, it.requests, it.prefill))
            .collect()
    }

    fn sizes(&self) -> (usize, usize, usize) {
        let sizes = self.runtime.block_on(self.shared.sizes()).unwrap();
        (sizes.requests, sizes.reservations, sizes.leases)
    }
}

#[test]
fn loads_are_the_sum_of_what_lives() {
    let server = Server::start().unwrap();
    let limits = Limits {
        requests: 12,
        request_expire: Duration::from_secs(30),
        cache_max_bytes: 1 << 20,
        ..Limits::default()
    };
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 32,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let engine = std::cell::RefCell::new(InRedis::new(&server, limits));
    let ran = runner.run(&any_steps(), |steps| {
        let engine = &mut *engine.borrow_mut();
        engine.restart();
        run(steps, engine, limits)?;
        prop_assert_eq!(engine.keys_after_all(), Vec::<String>::new());
        Ok(())
    });
    ran.unwrap_or_else(|failure| panic!("{failure}"));
}
