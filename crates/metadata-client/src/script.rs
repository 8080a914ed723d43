//! A service for tests: the real state behind calls that arrive, hang or fail as a test says.

use std::{
    collections::BTreeMap, fmt::Debug, io, net::SocketAddr, str::FromStr, sync::Arc, time::Duration,
};

use bytes::Bytes;
use http::{Method, StatusCode};
use metadata::{
    Center, Cluster, Fault, Limits, Now,
    wire::{
        ErrorBody,
        batch::{Batch, Refused},
        cache::{Location, Query},
        pick::{Candidate, Pick},
    },
};
use moment::{Clock, Moment};
use parking_lot::Mutex;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::sleep};
use tokio_util::sync::CancellationToken;

use crate::{
    client::Client,
    run::{TaskDied, Tasks},
    settings::{Api, Settings},
    transport::{Call, CallError, Peer, Reply, Transport},
};

/// A service with some addresses. Its clones are the same one.
#[derive(Clone)]
pub(crate) struct Script(Arc<Mutex<State>>);

struct State {
    center: Arc<Center>,
    clock: Clock,
    boot: u64,
    modes: BTreeMap<SocketAddr, Mode>,
    /// Of paths with this beginning, whatever the address does.
    paths: BTreeMap<&'static str, Mode>,
    calls: Vec<(Moment, SocketAddr, Call)>,
}

/// What becomes of calls.
#[derive(Clone, Debug)]
pub(crate) enum Mode {
    Up,
    /// The connection breaks after so long.
    Breaks(Duration),
    Refuses,
    Hangs,
    /// It is answered after so long.
    Slow(Duration),
    Answers(u16, Value),
    /// Arrives, but the answer is lost.
    Mute,
}

pub(crate) struct ScriptPeer {
    script: Script,
    address: SocketAddr,
}

/// A client whose tasks run.
pub(crate) struct Rig {
    pub(crate) client: Client<Script>,
    pub(crate) script: Script,
    stop: CancellationToken,
    tasks: JoinSet<Result<(), TaskDied>>,
}

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) fn address(last: u8) -> SocketAddr {
    SocketAddr::from(([10, 9, 0, last], 8080))
}

pub(crate) fn cluster() -> Cluster {
    "ns/pool".parse().unwrap()
}

pub(crate) fn settings(api: Api) -> Settings {
    Settings {
        api,
        caches: true,
        timeout: ms(100),
        async_timeout: ms(500),
        queue_size: 1000,
        workers: 3,
        instance: "epp-0".parse().unwrap(),
        epoch: 1000,
        lease: Duration::from_secs(15),
        flush: Duration::from_secs(2),
    }
}

pub(crate) fn mk_pick(id: &str) -> Pick {
    let candidate = |last: u8| Candidate {
        ip: format!("10.0.0.{last}:8000").parse().unwrap(),
        bias: 0.0,
    };
    Pick {
        cluster: cluster(),
        request_id: id.parse().unwrap(),
        prompt_hash: vec![1, 2].into(),
        prompt_length: 1024.try_into().unwrap(),
        count: 1,
        reserve_ms: 10_000,
        candidates: (1..=3).map(candidate).collect(),
        params: metadata::wire::pick::Params::default(),
    }
}

// === impl Script ===

impl Script {
    pub(crate) fn new(addresses: &[u8]) -> Self {
        let modes = addresses.iter().map(|last| (address(*last), Mode::Up));
        Self(Arc::new(Mutex::new(State {
            center: mk_center(),
            clock: Clock::start(),
            boot: 1,
            modes: modes.collect(),
            paths: BTreeMap::new(),
            calls: Vec::new(),
        })))
    }

    pub(crate) fn set(&self, last: u8, mode: Mode) {
        self.0.lock().modes.insert(address(last), mode);
    }

    pub(crate) fn set_path(&self, path: &'static str, mode: Mode) {
        self.0.lock().paths.insert(path, mode);
    }

    /// It has lost its state.
    pub(crate) fn restart(&self) {
        let mut state = self.0.lock();
        state.center = mk_center();
        state.boot += 1;
    }

    /// What arrived, oldest first: when, where, what.
    pub(crate) fn calls(&self) -> Vec<(Moment, SocketAddr, Call)> {
        self.0.lock().calls.clone()
    }

    /// Calls of a path, with the moments at which they came.
    pub(crate) fn calls_of(&self, path: &str) -> Vec<(Moment, Call)> {
        let calls = self.calls().into_iter();
        let calls = calls.filter(|(_, _, call)| call.path.starts_with(path));
        calls.map(|(at, _, call)| (at, call)).collect()
    }

    pub(crate) fn batches(&self) -> Vec<(Moment, Batch)> {
        let calls = self.calls_of("/v1/load/batch").into_iter();
        calls
            .map(|(at, call)| (at, serde_json::from_slice(&call.body).unwrap()))
            .collect()
    }

    /// Requests and prefill of each endpoint that has some.
    pub(crate) fn loads(&self) -> BTreeMap<String, (i32, i32)> {
        let state = self.0.lock();
        state.center.sweep(state.now());
        let loads = state.center.loads(&cluster()).unwrap_or_default();
        let loads = loads.into_iter().filter(|it| it.queued_req_num > 0);
        loads
            .map(|it| (it.ip.to_string(), (it.queued_req_num, it.prompt_length)))
            .collect()
    }

    /// Who has seen how much of a prompt.
    pub(crate) fn query(&self, query: &Query) -> Vec<Location> {
        let state = self.0.lock();
        state.center.query(query, state.now()).unwrap().locations
    }

    /// Names of the instances that have leases.
    pub(crate) fn instances(&self) -> Vec<String> {
        let state = self.0.lock();
        let clusters = state.center.clusters(state.now());
        let leases = clusters.into_iter().flat_map(|it| it.leases);
        leases.map(|it| it.instance.to_string()).collect()
    }

    fn arrives(&self, address: SocketAddr, call: &Call) -> Mode {
        let mut state = self.0.lock();
        let now = state.clock.now();
        state.calls.push((now, address, call.clone()));
        let by_path = |(path, _): &(&&str, &Mode)| call.path.starts_with(**path);
        let mode = state.paths.iter().find(by_path).map(|(_, mode)| mode);
        let mode = mode.or(state.modes.get(&address));
        mode.cloned().unwrap_or(Mode::Refuses)
    }

    fn answer(&self, call: &Call) -> Reply {
        let state = self.0.lock();
        state.center.sweep(state.now());
        let (status, body) = match state.serve(call) {
            Ok(data) => (200, json!({"status": "OK", "error": null, "data": data})),
            Err(fault) => {
                let error = ErrorBody::from(&fault);
                let data = Refused::beside(&fault);
                let status = u16::try_from(fault.code() / 100_000).unwrap();
                (
                    status,
                    json!({"status": "ERROR", "error": error, "data": data}),
                )
            }
        };
        mk_reply(status, &body, Some(state.boot))
    }
}

impl Transport for Script {
    type Peer = ScriptPeer;

    async fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        Ok(self.0.lock().modes.keys().copied().collect())
    }

    fn peer(&self, address: SocketAddr) -> ScriptPeer {
        ScriptPeer {
            script: self.clone(),
            address,
        }
    }

    async fn closed(&self) {}
}

impl Peer for ScriptPeer {
    async fn call(&self, call: Call) -> Result<Reply, CallError> {
        match self.script.arrives(self.address, &call) {
            Mode::Up => {}
            Mode::Slow(after) => sleep(after).await,
            Mode::Breaks(after) => {
                sleep(after).await;
                return Err(CallError::Broken("by the test".to_owned()));
            }
            Mode::Refuses => return Err(CallError::Connect("by the test".to_owned())),
            Mode::Hangs => std::future::pending().await,
            Mode::Answers(status, body) => return Ok(mk_reply(status, &body, None)),
            Mode::Mute => {
                self.script.answer(&call);
                std::future::pending::<()>().await;
            }
        }
        Ok(self.script.answer(&call))
    }
}

fn mk_center() -> Arc<Center> {
    Arc::new(Center::new(Limits {
        cache_max_bytes: 1 << 20,
        ..Limits::default()
    }))
}

fn mk_reply(status: u16, body: &Value, boot: Option<u64>) -> Reply {
    Reply {
        status: StatusCode::from_u16(status).unwrap(),
        boot,
        body: Bytes::from(serde_json::to_vec(body).unwrap()),
    }
}

fn read<R: DeserializeOwned>(call: &Call) -> R {
    serde_json::from_slice(&call.body).unwrap()
}

fn parse<V: FromStr<Err: Debug>>(text: &str) -> V {
    text.parse().unwrap()
}

fn data(value: impl Serialize) -> Value {
    serde_json::to_value(value).unwrap()
}

// === impl State ===

impl State {
    fn now(&self) -> Now {
        Now {
            at: self.clock.now(),
            unix_ns: 0,
        }
    }

    fn serve(&self, call: &Call) -> Result<Value, Fault> {
        let (center, now) = (&self.center, self.now());
        let (path, query) = call.path.split_once('?').unwrap_or((&call.path, ""));
        let query: BTreeMap<_, _> = form_urlencoded::parse(query.as_bytes()).collect();
        let cluster = || parse(&query["cluster"]);
        let post = call.method == Method::POST;
        Ok(match path {
            "/v1/pick" => data(center.pick(&read(call), &mut rand::rng(), now)?),
            "/v1/load/batch" => data(center.batch(read(call), now)?),
            "/v1/load/stats" if post => data(center.add(read(call), false, now)?),
            "/v1/load/stats" if call.method == Method::GET => data(center.loads(&cluster())),
            "/v1/load/stats" => {
                let of: metadata::wire::load::Drop = read(call);
                data(center.remove(&of.request_id, false, now)?)
            }
            "/v1/load/prompt" => {
                let of: metadata::wire::load::Drop = read(call);
                data(center.prompt_done(&of.request_id, false, now)?)
            }
            "/v1/cache/save" => data(center.save(&read(call), now)?),
            "/v1/cache/query" => data(center.query(&read(call), now)?),
            "/v1/cache/endpoint" => {
                center.purge(&cluster(), parse(&query["ip"]));
                Value::Null
            }
            _ => {
                let instance = path.strip_prefix("/v1/leases/").unwrap();
                center.end_leases(&parse(instance), parse(&query["epoch"]), now);
                Value::Null
            }
        })
    }
}

// === impl Rig ===

impl Rig {
    /// A client of a service at these addresses, which it knows already.
    pub(crate) async fn start(script: &Script, settings: Settings) -> Self {
        let (client, tasks): (_, Tasks<Script>) =
            Client::new(settings, script.clone(), Clock::start());
        let stop = CancellationToken::new();
        let mut running = JoinSet::new();
        running.spawn(tasks.run(stop.clone()));
        // Paused time moves only when all tasks wait: then the addresses are known.
        sleep(ms(1)).await;
        Self {
            client,
            script: script.clone(),
            stop,
            tasks: running,
        }
    }

    pub(crate) async fn isthmus(addresses: &[u8]) -> Self {
        Self::start(&Script::new(addresses), settings(Api::Isthmus)).await
    }

    /// Ends the client as a program does that is drained.
    pub(crate) async fn end(&mut self) {
        self.stop.cancel();
        self.tasks.join_next().await.unwrap().unwrap().unwrap();
    }

    pub(crate) fn page(&self) -> String {
        let mut registry = prometheus_client::registry::Registry::default();
        registry.register_collector(Box::new(self.client.collector()));
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, &registry).unwrap();
        page
    }
}
