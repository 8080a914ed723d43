//! The clusters as processes: model servers and API servers in this one, endpoint pickers, gateways and Envoys each in its own.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result, ensure};
use apiserver_sim::{DEPLOYMENTS, Server};
use bench::{
    Controller,
    datapath::{Clients, ModelServers, Program, Target, Window, adapted},
    http_page, own_cpu, sum_of_series,
};
use serde_json::json;
use tempfile::TempDir;
use tokio::{
    process::Command,
    time::{Instant, sleep},
};

use super::{
    Case, Programs, Way,
    objects::{CLUSTERS, Cluster, DEPLOYMENT, EAST, NS, WEST, put_route_to_pool},
};

/// Everything that answers; all ends with this value.
pub(super) struct Bed {
    west: Site,
    east: Site,
    pickers: Vec<Picker>,
    floor: Program,
    _model_servers: Vec<ModelServers>,
    _directory: TempDir,
}

/// A Gateway of one cluster.
struct Site {
    envoy: Program,
    _gateway: Controller,
    _server: Server,
}

/// The endpoint picker of one cluster.
struct Picker {
    program: Program,
    metrics: SocketAddr,
}

/// CPU of some time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Used {
    /// CPU time of both Envoys together.
    pub(super) envoy: Duration,
    /// Of the floor where it picks, else of the endpoint pickers of all clusters, scrapes included.
    pub(super) epp: Duration,
    /// Of clients, model servers and API servers, to a hundredth of a second.
    pub(super) load: Duration,
}

/// Each has one request under way.
const CONNECTIONS: usize = 64;
/// Until a program has started, and all of its configuration is in use.
const START_LIMIT: Duration = Duration::from_mins(1);
/// A few clients get nothing but completions for so long: then a way is ready.
const FEW: usize = 8;
const STEADY: Duration = Duration::from_secs(1);
/// Between two looks at what is to become true.
const LOOK: Duration = Duration::from_millis(50);
/// The requests that an endpoint picker was asked about.
const STREAMS: &str = "epp_streams_ended_total";

// === impl Bed ===

impl Bed {
    pub(super) async fn start(programs: &Programs) -> Result<Self> {
        let directory = tempfile::tempdir().context("a directory")?;
        let (mut model_servers, mut pickers) = (Vec::new(), Vec::new());
        for cluster in CLUSTERS {
            let addresses = cluster.model_servers();
            model_servers.push(ModelServers::start(cluster.name, &addresses).await?);
            pickers.push(Picker::start(cluster, programs, &directory)?);
        }
        let fill_west = |server: &Server| {
            for way in Way::ALL {
                way.put(server);
            }
        };
        Ok(Self {
            east: Site::start(EAST, programs, &directory, put_route_to_pool).await?,
            west: Site::start(WEST, programs, &directory, fill_west).await?,
            pickers,
            floor: start_floor(programs)?,
            _model_servers: model_servers,
            _directory: directory,
        })
    }

    /// Waits until all requests that take this way are answered.
    pub(super) async fn until_answered(&mut self, case: Case) -> Result<()> {
        let start = Instant::now();
        loop {
            let outcome = self.try_out(case.way).await;
            self.check()?;
            match outcome {
                Ok(()) => return Ok(()),
                Err(error) if start.elapsed() > START_LIMIT => {
                    return Err(error).with_context(|| {
                        format!("{}: not ready after {START_LIMIT:?}", case.name)
                    });
                }
                Err(_) => sleep(LOOK).await,
            }
        }
    }

    async fn try_out(&self, way: Way) -> Result<()> {
        let clients = Clients::start(&target(way), FEW);
        let from = Instant::now();
        sleep(STEADY).await;
        let answered = clients.end().await?;
        let clusters = way.clusters().len();
        Window::of(&answered, from, Instant::now(), clusters).map(drop)
    }

    /// Sends requests, and measures them after some time.
    pub(super) async fn load(
        &mut self,
        case: Case,
        warm_up: Duration,
        window: Duration,
    ) -> Result<(Window, Used)> {
        let picks = self.picks().await?;
        let clients = Clients::start(&target(case.way), CONNECTIONS);
        sleep(warm_up).await;
        let (from, before) = (Instant::now(), self.used(case.way)?);
        sleep(window).await;
        let (until, after) = (Instant::now(), self.used(case.way)?);
        let answered = clients.end().await;
        self.check()?;
        let answered = answered.with_context(|| case.name)?;
        let clusters = case.way.clusters().len();
        let window = Window::of(&answered, from, until, clusters);
        let window = window.with_context(|| case.name)?;
        let picks = self.picks().await? - picks;
        // those of the last requests, of this case and of the one before, may be counted late
        let (count, late) = (answered.len() as f64, CONNECTIONS as f64);
        let is_right = match case.way {
            Way::Service | Way::Floor => picks <= late,
            Way::Pool | Way::Endpoint | Way::Two | Way::Parent => picks + late >= count,
        };
        let name = case.name;
        ensure!(is_right, "{name}: {count} answers with {picks} picks");
        Ok((window, after - before))
    }

    /// Number of requests that the endpoint pickers were asked about so far.
    async fn picks(&self) -> Result<f64> {
        let mut sum = 0.0;
        for picker in &self.pickers {
            sum += sum_of_series(&http_page(picker.metrics).await?, STREAMS);
        }
        Ok(sum)
    }

    fn used(&self, way: Way) -> Result<Used> {
        let mut epp = Duration::ZERO;
        if way == Way::Floor {
            epp += self.floor.cpu()?;
        } else {
            for picker in &self.pickers {
                epp += picker.program.cpu()?;
            }
        }
        Ok(Used {
            envoy: self.west.envoy.cpu()? + self.east.envoy.cpu()?,
            epp,
            load: own_cpu()?,
        })
    }

    /// Succeeds while all programs run on which answers depend.
    fn check(&mut self) -> Result<()> {
        for picker in &mut self.pickers {
            picker.program.check()?;
        }
        self.floor.check()?;
        self.east.envoy.check()?;
        self.west.envoy.check()
    }
}

fn target(way: Way) -> Target {
    let clusters = way.clusters().into_iter();
    Target {
        address: WEST.edge(),
        host: way.host(),
        clusters: clusters.map(|cluster| cluster.name.to_owned()).collect(),
    }
}

// === impl Used ===

impl std::ops::Sub for Used {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            envoy: self.envoy.saturating_sub(before.envoy),
            epp: self.epp.saturating_sub(before.epp),
            load: self.load.saturating_sub(before.load),
        }
    }
}

// === impl Picker ===

impl Picker {
    fn start(cluster: Cluster, programs: &Programs, directory: &TempDir) -> Result<Self> {
        let name = cluster.name;
        let servers = cluster.model_servers();
        let entries = servers.iter().enumerate().map(|(number, at)| {
            json!({"name": format!("{name}-{number}"), "address": at.ip(), "port": at.port()})
        });
        let entries: Vec<_> = entries.collect();
        let file = directory.path().join(format!("{name}-endpoints.yaml"));
        // JSON is YAML too
        std::fs::write(&file, json!({"endpoints": entries}).to_string())
            .context("writing the endpoints")?;
        let [ext_proc, health, metrics] = cluster.picker();
        let mut command = Command::new(&programs.epp);
        command
            .arg(format!("--endpoints-file={}", file.display()))
            .arg(format!("--grpc-port={}", ext_proc.port()))
            .arg(format!("--grpc-health-port={}", health.port()))
            .arg(format!("--metrics-port={}", metrics.port()))
            .args(["--secure-serving=false", "--log-level=error"]);
        let log = programs.logs.join(format!("datapath-epp-{name}.log"));
        let program = Program::start(command, &log)?;
        Ok(Self { program, metrics })
    }
}

/// Starts the endpoint picker that does the least, in the importing cluster.
fn start_floor(programs: &Programs) -> Result<Program> {
    let servers = WEST.model_servers();
    let first = servers.first().context("no model server")?;
    let mut command = Command::new(&programs.floor);
    command
        .arg(format!("--listen={}", WEST.floor()))
        .arg(format!("--destination={first}"));
    Program::start(command, &programs.logs.join("datapath-floor.log"))
}

// === impl Site ===

impl Site {
    /// Starts the gateway on the objects of a cluster, and an Envoy as the gateway wants it.
    async fn start(
        cluster: Cluster,
        programs: &Programs,
        directory: &TempDir,
        fill: impl FnOnce(&Server),
    ) -> Result<Self> {
        let name = cluster.name;
        let server = Server::builder(name).start()?;
        cluster.fill(&server);
        fill(&server);
        let kubeconfig = directory.path().join(format!("{name}-kubeconfig"));
        std::fs::write(&kubeconfig, server.kubeconfig()).context("the kubeconfig")?;
        let ads = apiserver_sim::free_address()?;
        let flags = [
            format!("--cluster-name={name}"),
            "--leader-elect=false".to_owned(),
            "--ads-tls=off".to_owned(),
            format!("--ads-address={ads}"),
            format!("--ads-hostname={}", ads.ip()),
        ];
        let log = programs.logs.join(format!("datapath-gateway-{name}.log"));
        let variables = [("KUBECONFIG", kubeconfig.as_path())];
        let mut gateway = Controller::start_with(&programs.gateway, &flags, &variables, log)?;
        gateway.ready(START_LIMIT).await?;
        let args = container_args(&server).await?;
        let mut command = Command::new(&programs.envoy);
        let ip = cluster.edge().ip().to_string();
        command.args(adapted(&args, &format!("envoy-{name}"), &ip)?);
        let log = programs.logs.join(format!("datapath-envoy-{name}.log"));
        Ok(Self {
            envoy: Program::start(command, &log)?,
            _gateway: gateway,
            _server: server,
        })
    }
}

/// The arguments of the Envoy in the Deployment that the gateway writes.
async fn container_args(server: &Server) -> Result<Vec<String>> {
    let start = Instant::now();
    loop {
        if let Some(deployment) = server.get(&DEPLOYMENTS, NS, DEPLOYMENT) {
            let args = deployment.pointer("/spec/template/spec/containers/0/args");
            let args = args.context("a Deployment without arguments")?;
            return serde_json::from_value(args.clone()).context("the arguments of Envoy");
        }
        ensure!(
            start.elapsed() < START_LIMIT,
            "the gateway has written no Deployment {NS}/{DEPLOYMENT}"
        );
        sleep(LOOK).await;
    }
}
