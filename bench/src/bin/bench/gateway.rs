//! The gateway as a process, on a scripted API server and with an Envoy that accepts all: what an event costs, and what it
//! becomes on the wire.

use std::{net::SocketAddr, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use apiserver_sim::{
    ENDPOINT_SLICES, GATEWAY_CLASSES, GATEWAYS, HTTP_ROUTES, NAMESPACES, PODS, POOLS,
    REFERENCE_GRANTS, SERVICES, Server,
};
use bench::{Controller, Envoy, Figure, percentile};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::{PATIENCE, Run, megabytes, metadata::beside};

const NS: &str = "ml";
/// Where the program is by its defaults.
const OWN_NAMESPACE: &str = "isthmus-system";
const ROUTES: usize = 1000;
const POOLED: usize = 100;
/// Number of pods of each pool.
const PODS_EACH: usize = 10;
const EVENTS: usize = 200;
const BUILDS: usize = 20;
const QUICK: usize = 20;
/// Between two events: what they cause is over by then, and none is put together with the next.
const SPACE: Duration = Duration::from_millis(60);
/// Until Envoy has what an event changed.
const HAD: Duration = Duration::from_secs(10);
/// The program is at rest when it takes less than this of the processor in such a time.
const LOOK: Duration = Duration::from_millis(500);
const AT_REST: Duration = Duration::from_millis(5);
/// Its own clocks are followed for so long: each of them ticks.
const IDLE: Duration = Duration::from_secs(20);
/// Nothing more comes on the wire.
const QUIET: Duration = Duration::from_millis(300);

const TO_POOLS: &str = "gateway, 1000 routes x 100 pools";
const TO_SERVICES: &str = "gateway, 1000 routes x 1000 Services, a host each";

/// The program with its surroundings.
struct Bed {
    server: Server,
    process: Controller,
    envoy: Envoy,
    /// What it takes of the processor while nothing happens, in seconds a second.
    idle: f64,
    quick: bool,
    _directory: TempDir,
}

// === impl Run ===

impl Run {
    pub(crate) async fn gateway(&mut self) -> Result<()> {
        if self.wants(TO_POOLS) {
            let mut bed = Bed::start("pools", self, |server| {
                for number in 0..POOLED {
                    put_pool(server, number);
                }
                for number in 0..ROUTES {
                    server.put(&HTTP_ROUTES, to_pool(number, 1));
                }
            })
            .await?;
            for figure in bed.with_pools().await? {
                self.keep(figure);
            }
        }
        if self.wants(TO_SERVICES) {
            let mut bed = Bed::start("services", self, |server| {
                for number in 0..ROUTES {
                    server.put(&SERVICES, service(number, None));
                    server.put(&ENDPOINT_SLICES, slice(&web(number), number, true));
                    server.put(&HTTP_ROUTES, to_service(number));
                }
            })
            .await?;
            for figure in bed.with_services().await? {
                self.keep(figure);
            }
        }
        Ok(())
    }
}

// === impl Bed ===

impl Bed {
    /// Starts the program on a cluster with a Gateway and what `fill` puts there, and waits until all is done.
    async fn start(name: &str, run: &Run, fill: impl FnOnce(&Server)) -> Result<Self> {
        let server = Server::builder(name).start()?;
        for kind in [&GATEWAY_CLASSES, &REFERENCE_GRANTS] {
            server.install_crd(kind);
        }
        server.put(&NAMESPACES, namespace(0));
        // The Lease of the replica that writes statuses is there.
        server.put(&NAMESPACES, json!({"metadata": {"name": OWN_NAMESPACE}}));
        server.put(&GATEWAY_CLASSES, class());
        server.put(&GATEWAYS, gateway());
        fill(&server);
        let directory = tempfile::tempdir().context("a directory")?;
        let kubeconfig = directory.path().join("kubeconfig");
        std::fs::write(&kubeconfig, server.kubeconfig()).context("the kubeconfig")?;
        let ads = apiserver_sim::free_address()?;
        let log = run.args.logs.join(format!("gateway-{name}.log"));
        let mut process = start_program(&kubeconfig, ads, log.as_path())?;
        process.ready(PATIENCE).await?;
        let envoy = connect(ads).await?;
        let mut bed = Self {
            server,
            process,
            envoy,
            idle: 0.0,
            quick: run.args.quick,
            _directory: directory,
        };
        bed.settle().await?;
        let (from, since) = (bed.process.cpu()?, Instant::now());
        sleep(bed.some_time(IDLE)).await;
        bed.idle =
            bed.process.cpu()?.saturating_sub(from).as_secs_f64() / since.elapsed().as_secs_f64();
        Ok(bed)
    }

    fn times(&self, all: usize) -> usize {
        if self.quick { all / QUICK } else { all }
    }

    fn some_time(&self, all: Duration) -> Duration {
        if self.quick { all / 10 } else { all }
    }

    /// Until the program is at rest, statuses written.
    async fn settle(&mut self) -> Result<()> {
        let start = Instant::now();
        let mut before = self.process.cpu()?;
        loop {
            sleep(LOOK).await;
            let now = self.process.cpu()?;
            if now.saturating_sub(before) < AT_REST {
                break;
            }
            before = now;
            ensure!(
                start.elapsed() < PATIENCE,
                "the gateway does not come to rest"
            );
        }
        self.envoy.bytes_until_quiet(QUIET).await;
        Ok(())
    }

    /// CPU of an event without what the program takes anyway, and until Envoy has `resource` of each, where there is one.
    async fn events(
        &mut self,
        mut put: impl FnMut(&Server, usize),
        resource: impl Fn(usize) -> Option<String>,
    ) -> Result<(Duration, Vec<Duration>)> {
        self.settle().await?;
        let (from, since, mut had) = (self.process.cpu()?, Instant::now(), Vec::new());
        let times = self.times(EVENTS);
        for number in 0..times {
            let at = Instant::now();
            put(&self.server, number);
            if let Some(name) = resource(number) {
                let arrival = self.envoy.wait_for(&name, HAD).await?;
                had.push(arrival.at.saturating_duration_since(at));
            }
            sleep(SPACE).await;
        }
        self.settle().await?;
        let used = self.process.cpu()?.saturating_sub(from).as_secs_f64();
        let anyway = self.idle * since.elapsed().as_secs_f64();
        let each = (used - anyway).max(0.0) / times as f64;
        Ok((Duration::from_secs_f64(each), had))
    }

    /// The mean time of builds of everything, by the program's own clock.
    async fn build(&mut self) -> Result<Duration> {
        self.settle().await?;
        let before = self.builds().await?;
        for number in 0..self.times(BUILDS).max(2) {
            self.server.put(&NAMESPACES, namespace(number + 1));
            sleep(SPACE * 5).await;
        }
        self.settle().await?;
        let after = self.builds().await?;
        let (took, count) = (after.0 - before.0, after.1 - before.1);
        ensure!(count > 0.0, "nothing was built");
        Ok(Duration::from_secs_f64(took / count))
    }

    /// Seconds and number of builds so far.
    async fn builds(&self) -> Result<(f64, f64)> {
        let metric = |part: &str| format!("gateway_build_duration_seconds_{part}");
        let sum = self.process.metric(&metric("sum"), "").await?;
        let count = self.process.metric(&metric("count"), "").await?;
        Ok((sum, count))
    }

    /// Bytes on the wire of a change of this resource.
    async fn bytes(&mut self, resource: &str) -> Result<f64> {
        let first = self.envoy.wait_for(resource, HAD).await?.bytes;
        let rest = self.envoy.bytes_until_quiet(QUIET).await;
        Ok((first + rest) as f64)
    }

    async fn with_pools(&mut self) -> Result<Vec<Figure>> {
        let name = |what: &str| format!("{TO_POOLS}: {what}");
        let mut figures = Vec::new();
        let put = |server: &Server, at: usize| {
            server.put(&PODS, pod(at % POOLED, 0, at / POOLED % 2 == 1));
        };
        let resource = |at| Some(format!("pool/{NS}/{}", pool(at % POOLED)));
        let (cpu, had) = self.events(put, resource).await?;
        figures.push(Figure::time(name("CPU of a pod event"), cpu));
        figures.extend(until_had(&name("a pod event"), &had));
        let put = |server: &Server, at: usize| {
            server.put(&ENDPOINT_SLICES, slice("unused", at % 200, true));
        };
        let (cpu, _) = self.events(put, |_| None).await?;
        let what = "CPU of an event of an EndpointSlice that nothing uses";
        figures.push(Figure::time(name(what), cpu));
        let put = |server: &Server, at: usize| {
            server.put(&HTTP_ROUTES, to_pool(at, 2 + at));
        };
        let (cpu, had) = self.events(put, |_| Some("edge/80".to_owned())).await?;
        figures.push(Figure::time(name("CPU of a route event"), cpu));
        figures.extend(until_had(&name("a route event"), &had));
        figures.push(Figure::time(
            name("build of the whole"),
            self.build().await?,
        ));
        let rss = megabytes(self.process.usage()?.rss);
        figures.push(Figure::new(name("RSS"), rss, "MB"));
        Ok(figures)
    }

    async fn with_services(&mut self) -> Result<Vec<Figure>> {
        let name = |what: &str| format!("{TO_SERVICES}: {what}");
        let mut figures = Vec::new();
        let took = self.build().await?;
        figures.push(Figure::time(name("build of the whole"), took));
        self.settle().await?;
        let cluster = format!("svc/{NS}/{}/8080", web(7));
        let one = slice(&web(7), 7, false);
        self.server.put(&ENDPOINT_SLICES, one);
        let bytes = self.bytes(&cluster).await?;
        figures.push(Figure::new(name("bytes for one endpoint"), bytes, "B"));
        let one = service(7, Some("kubernetes.io/h2c"));
        self.server.put(&SERVICES, one);
        let bytes = self.bytes(&cluster).await?;
        figures.push(Figure::new(name("bytes for one cluster"), bytes, "B"));
        Ok(figures)
    }
}

fn start_program(kubeconfig: &Path, ads: SocketAddr, log: &Path) -> Result<Controller> {
    let flags = [
        "--cluster-name=west".to_owned(),
        "--ads-tls=off".to_owned(),
        format!("--ads-address={ads}"),
    ];
    let variables = [("KUBECONFIG", kubeconfig)];
    Controller::start_with(&beside("gateway")?, &flags, &variables, log.to_owned())
}

/// The port is opened once everything is listed.
async fn connect(ads: SocketAddr) -> Result<Envoy> {
    let start = Instant::now();
    loop {
        match Envoy::connect(ads, &format!("{NS}/gw")).await {
            Ok(envoy) => return Ok(envoy),
            Err(error) if start.elapsed() > HAD => return Err(error),
            Err(_) => sleep(SPACE).await,
        }
    }
}

fn until_had(name: &str, times: &[Duration]) -> [Figure; 2] {
    let figure =
        |share: &str, value| Figure::time(format!("{name} until Envoy has it, {share}"), value);
    [
        figure("p50", percentile(times, 0.5)),
        figure("p99", percentile(times, 0.99)),
    ]
}

fn pool(number: usize) -> String {
    format!("pool-{number}")
}

fn web(number: usize) -> String {
    format!("web-{number}")
}

/// With another label at each number: routes of it may be allowed now, so all is built.
fn namespace(number: usize) -> Value {
    json!({"metadata": {"name": NS, "labels": {"number": number.to_string()}}})
}

pub(crate) fn class() -> Value {
    json!({
        "metadata": {"name": "isthmus", "generation": 1},
        "spec": {"controllerName": "isthmus.dev/gateway"},
    })
}

fn gateway() -> Value {
    json!({
        "metadata": {"namespace": NS, "name": "gw", "generation": 1},
        "spec": {
            "gatewayClassName": "isthmus",
            "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}],
        },
    })
}

fn put_pool(server: &Server, number: usize) {
    let (name, epp) = (pool(number), format!("epp-{number}"));
    let value = json!({
        "metadata": {"namespace": NS, "name": name, "generation": 1},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "targetPorts": [{"number": 8000}],
            "endpointPickerRef": {"name": epp, "port": {"number": 9002}, "failureMode": "FailOpen"},
        },
    });
    server.put(&POOLS, value);
    let value = json!({
        "metadata": {"namespace": NS, "name": epp},
        "spec": {"clusterIP": "10.96.0.9", "ports": [{"name": "grpc", "port": 9002, "protocol": "TCP"}]},
    });
    server.put(&SERVICES, value);
    server.put(&ENDPOINT_SLICES, slice(&epp, number, true));
    for pod_number in 0..PODS_EACH {
        server.put(&PODS, pod(number, pod_number, true));
    }
}

fn pod(number: usize, pod: usize, ready: bool) -> Value {
    let status = if ready { "True" } else { "False" };
    json!({
        "metadata": {"namespace": NS, "name": format!("{}-{pod}", pool(number)), "labels": {"app": pool(number)}},
        "spec": {"containers": [{"name": "server", "image": "server"}]},
        "status": {
            "podIP": format!("10.1.{number}.{}", pod + 1),
            "conditions": [{"type": "Ready", "status": status}],
        },
    })
}

fn slice(service: &str, number: usize, ready: bool) -> Value {
    json!({
        "metadata": {"namespace": NS, "name": format!("{service}-1"), "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "endpoints": [{
            "addresses": [format!("10.2.{}.{}", number / 250, number % 250 + 1)],
            "conditions": {"ready": ready},
        }],
        "ports": [{"name": "grpc", "port": 9002, "protocol": "TCP"}],
    })
}

fn service(number: usize, protocol: Option<&str>) -> Value {
    json!({
        "metadata": {"namespace": NS, "name": web(number)},
        "spec": {
            "clusterIP": "10.96.0.8",
            "ports": [{"name": "grpc", "port": 8080, "protocol": "TCP", "appProtocol": protocol}],
        },
    })
}

fn to_pool(number: usize, generation: usize) -> Value {
    let backend = json!({
        "group": POOLS.group, "kind": POOLS.kind, "name": pool(number % POOLED),
    });
    let path = format!("/models/{number}/{generation}");
    route(number, generation, &json!(["llm.example"]), &path, &backend)
}

fn to_service(number: usize) -> Value {
    let backend = json!({"name": web(number), "port": 8080});
    let host = format!("model-{number}.example");
    route(number, 1, &json!([host]), "/", &backend)
}

fn route(number: usize, generation: usize, hosts: &Value, path: &str, backend: &Value) -> Value {
    json!({
        "metadata": {"namespace": NS, "name": format!("route-{number}"), "generation": generation},
        "spec": {
            "parentRefs": [{"name": "gw"}],
            "hostnames": hosts,
            "rules": [{
                "matches": [{"path": {"type": "PathPrefix", "value": path}}],
                "backendRefs": [backend],
            }],
        },
    })
}
