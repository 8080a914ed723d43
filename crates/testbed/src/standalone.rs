//! Model servers behind an endpoint picker and a real Envoy, without Kubernetes: the files of `config/standalone`, run as a
//! user runs them, each program a process of its own on this machine's loopback addresses.

mod external;
mod ports;
mod program;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::error::TestbedError;
use crate::isolation::Inside;
use crate::isthmus;
use crate::network;
use crate::process::Service;
use crate::requests::Requests;
use crate::tools;

pub use external::{External, ExternalSetup, Part};
pub use ports::{ExternalPorts, MAX_PICKERS, PickerPorts, Ports};

use program::{again, answers, local, restart, start, url, words};

const ENDPOINTS: &str = include_str!("../../../config/standalone/endpoints.yaml");
const CONFIG: &str = include_str!("../../../config/standalone/epp.yaml");
const ENVOY: &str = include_str!("../../../config/standalone/envoy.yaml");

/// The model that the servers have.
pub const MODEL: &str = "llama";
/// The LoRA adapter that they have besides.
pub const ADAPTER: &str = "sql";

/// What to run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Where to listen.
    pub ports: Ports,
    /// Simulated model servers, on consecutive addresses from 127.0.0.1 up.
    pub servers: u8,
    /// Flags of the simulator besides.
    pub server_flags: Vec<String>,
    /// Endpoint pickers behind the Envoy, 1 to 3: replicas with the same flags and configuration.
    pub pickers: usize,
    /// Flags of the endpoint pickers besides.
    pub epp_flags: Vec<String>,
    /// A Metadata-Center that the endpoint pickers share, with its state in Redis.
    pub center: bool,
    /// Flags of the Metadata-Center besides.
    pub center_flags: Vec<String>,
    /// A Processor and a Router, which the endpoint pickers ask.
    pub external: Option<ExternalSetup>,
    /// Changes the endpoint picker's configuration.
    pub configure_epp: fn(&mut Value),
    /// Changes Envoy's configuration.
    pub configure_envoy: fn(&mut Value, &Setup),
}

/// The running programs; all end with this value.
#[derive(Debug)]
pub struct Standalone {
    ports: Ports,
    files: PathBuf,
    servers: Vec<SocketAddr>,
    model_servers: Service,
    epps: Vec<Service>,
    envoy: Service,
    center: Option<Center>,
    external: Option<External>,
}

/// A Metadata-Center and its Redis.
#[derive(Debug)]
struct Center {
    service: Service,
    redis: Service,
}

/// One more simulated model server; it ends with this value.
#[derive(Debug)]
pub struct ExtraServer {
    _service: Service,
}

/// Gives the testbed's namespace its loopback addresses; on the machine itself they are there.
///
/// # Errors
/// When the network refuses.
pub async fn bring_up_loopback(_: &Inside) -> Result<(), TestbedError> {
    network::make_hub().await?;
    Ok(())
}

/// Makes all addresses of these networks, such as 10.201.0.0/16, local ones of the testbed's namespace.
///
/// # Errors
/// When the network refuses.
pub async fn add_local_networks(_: &Inside, networks: &[String]) -> Result<(), TestbedError> {
    network::add_local(networks).await?;
    Ok(())
}

// === impl Setup ===

impl Setup {
    /// What the files of `config/standalone` describe: three servers, and latencies that a person can watch.
    #[must_use]
    pub fn sample(ports: Ports) -> Self {
        Self {
            ports,
            servers: 3,
            server_flags: words(
                "--prefill-overhead 10ms --prefill-time-per-token 1ms --inter-token-latency 10ms",
            ),
            pickers: 1,
            epp_flags: words("--secure-serving=false"),
            center: false,
            center_flags: Vec::new(),
            external: None,
            configure_epp: |_| {},
            configure_envoy: |_, _| {},
        }
    }

    /// The addresses of the model servers.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> + use<> {
        let port = self.ports.servers;
        (1..=self.servers).map(move |nth| SocketAddr::from((Ipv4Addr::new(127, 0, 0, nth), port)))
    }

    /// Starts everything, and returns when a request comes through.
    ///
    /// # Errors
    /// When a program is missing or does not come up; with the end of its log. What was started is killed.
    pub async fn start(self, files: &Path, logs: &Path) -> Result<Standalone, TestbedError> {
        let ports = self.ports;
        let servers: Vec<SocketAddr> = self.addresses().collect();
        write(
            &files.join("endpoints.yaml"),
            &endpoints_of(&self.endpoints()?),
        )?;
        let mut config = sample(CONFIG)?;
        (self.configure_epp)(&mut config);
        write(&files.join("epp.yaml"), &config)?;
        write(&files.join("envoy.yaml"), &self.envoy()?)?;

        let flags = words(&format!(
            "--model {MODEL} --pod-name {MODEL} --lora-modules {ADAPTER} --max-loras 2 --count {} --bind-base {} --port {}",
            self.servers,
            Ipv4Addr::LOCALHOST,
            ports.servers,
        ));
        let mut flags = [flags, self.server_flags.clone()].concat();
        if let Some(setup) = &self.external {
            flags.extend(external::server_flags(setup, ports));
        }
        let program = isthmus::program("model-server-sim")?;
        let model_servers = start("model-server-sim", program, flags, files, logs)?;
        answers(
            &model_servers,
            "model servers",
            servers.first().copied(),
            "/health/ready",
        )
        .await?;
        let center = if self.center {
            Some(self.start_center(files, logs).await?)
        } else {
            None
        };
        let external = match &self.external {
            Some(setup) => Some(External::start(setup, ports, files, logs).await?),
            None => None,
        };
        let mut epps = Vec::new();
        for nth in 0..self.pickers.clamp(1, MAX_PICKERS) {
            epps.push(self.start_epp(nth, files, logs).await?);
        }
        // several Envoys of one machine must not share their counters
        let flags = words(
            "--config-path envoy.yaml --concurrency 2 --log-level warning --use-dynamic-base-id",
        );
        let envoy = start("envoy", tools::find_envoy()?, flags, files, logs)?;
        answers(&envoy, "Envoy", Some(local(ports.clients)), "/v1/models").await?;
        Ok(Standalone {
            ports,
            files: files.to_owned(),
            servers,
            model_servers,
            epps,
            envoy,
            center,
            external,
        })
    }

    async fn start_epp(
        &self,
        nth: usize,
        files: &Path,
        logs: &Path,
    ) -> Result<Service, TestbedError> {
        let ports = self.ports.pickers[nth];
        let flags = words(&format!(
            "--endpoints-file endpoints.yaml --config-file epp.yaml \
             --grpc-port {} --grpc-health-port {} --metrics-port {}",
            ports.ext_proc, ports.health, ports.metrics,
        ));
        let mut flags = [flags, self.epp_flags.clone()].concat();
        if self.center {
            flags.extend(words(&format!(
                "--metadata-center-enabled true --metadata-center-cache-enabled true \
                 --metadata-center-host {} --metadata-center-port {} --metadata-center-instance epp-{nth}",
                Ipv4Addr::LOCALHOST,
                self.ports.center,
            )));
        }
        if self.external.is_some() {
            flags.extend(external::picker_flags(self.ports));
        }
        let name = if nth == 0 {
            "epp".to_owned()
        } else {
            format!("epp-{nth}")
        };
        let epp = start(&name, isthmus::program("epp")?, flags, files, logs)?;
        answers(&epp, &name, Some(local(ports.metrics)), "/readyz").await?;
        Ok(epp)
    }

    async fn start_center(&self, files: &Path, logs: &Path) -> Result<Center, TestbedError> {
        let ports = self.ports;
        // What it holds is rebuilt by its clients: nothing is worth a disk.
        let flags = words(&format!(
            "--bind {} --port {} --appendonly no --maxmemory-policy noeviction --save",
            Ipv4Addr::LOCALHOST,
            ports.redis,
        ));
        let flags = [flags, vec![String::new()]].concat();
        let redis = start("redis", redis_server::find()?, flags, files, logs)?;
        let flags = words(&format!(
            "--host {} --port {} --admin-port {} --backend redis --redis-url redis://{}",
            Ipv4Addr::LOCALHOST,
            ports.center,
            ports.center_admin,
            local(ports.redis),
        ));
        let flags = [flags, self.center_flags.clone()].concat();
        let program = isthmus::program("metadata-center")?;
        let service = start("metadata-center", program, flags, files, logs)?;
        // Its other port may speak TLS.
        let at = Some(local(ports.center_admin));
        answers(&service, "metadata-center", at, "/readyz").await?;
        Ok(Center { service, redis })
    }

    fn endpoints(&self) -> Result<Vec<Value>, TestbedError> {
        // the entries differ from the sample's in number and port alone
        let first = sample(ENDPOINTS)?;
        let first = first.pointer("/endpoints/0").cloned().unwrap_or_default();
        let entry = |(nth, at): (usize, SocketAddr)| {
            let mut entry = first.clone();
            entry["name"] = format!("{MODEL}-{nth}").into();
            entry["address"] = at.ip().to_string().into();
            entry["port"] = at.port().into();
            entry
        };
        Ok(self.addresses().enumerate().map(entry).collect())
    }

    fn envoy(&self) -> Result<Value, TestbedError> {
        let mut config = sample(ENVOY)?;
        let ports = self.ports;
        let local = Ipv4Addr::LOCALHOST;
        for (place, port) in [
            ("/admin", ports.admin),
            ("/static_resources/listeners/0", ports.clients),
        ] {
            *part(&mut config, &format!("{place}/address"))? = socket(local.into(), port);
        }
        let endpoints = "load_assignment/endpoints/0/lb_endpoints";
        let servers = self.addresses().map(lb_endpoint).collect();
        *part(
            &mut config,
            &format!("/static_resources/clusters/0/{endpoints}"),
        )? = Value::Array(servers);
        let pickers = ports.pickers.iter().take(self.pickers);
        let pickers = pickers.map(|it| lb_endpoint((local, it.ext_proc).into()));
        *part(
            &mut config,
            &format!("/static_resources/clusters/1/{endpoints}"),
        )? = Value::Array(pickers.collect());
        (self.configure_envoy)(&mut config, self);
        Ok(config)
    }
}

// === impl Standalone ===

impl Standalone {
    /// Envoy's URL for clients.
    pub fn url(&self) -> String {
        url(local(self.ports.clients))
    }

    /// The URL of the first endpoint picker's `/metrics`.
    pub fn metrics_url(&self) -> String {
        self.picker_url(0)
    }

    /// The URL of an endpoint picker's `/metrics`.
    pub fn picker_url(&self, nth: usize) -> String {
        url(local(self.ports.pickers[nth].metrics))
    }

    /// How many endpoint pickers there are.
    pub fn pickers(&self) -> usize {
        self.epps.len()
    }

    /// The Metadata-Center's URL for endpoint pickers.
    pub fn center_url(&self) -> String {
        url(local(self.ports.center))
    }

    /// The Metadata-Center's URL for `/metrics`.
    pub fn center_admin_url(&self) -> String {
        url(local(self.ports.center_admin))
    }

    /// Processor and Router, if there are any.
    pub fn external(&self) -> Option<&External> {
        self.external.as_ref()
    }

    /// The URL of Envoy's own pages.
    pub fn admin_url(&self) -> String {
        url(local(self.ports.admin))
    }

    /// The model servers, by number.
    pub fn servers(&self) -> &[SocketAddr] {
        &self.servers
    }

    /// Where the programs' files are.
    pub fn files(&self) -> &Path {
        &self.files
    }

    /// Starts one more simulated model server with these flags, and returns when it is ready.
    ///
    /// # Errors
    /// When it does not come up; with the end of its log.
    pub async fn add_server(
        &self,
        name: &str,
        at: SocketAddr,
        flags: &str,
        logs: &Path,
    ) -> Result<ExtraServer, TestbedError> {
        let (ip, port) = (at.ip(), at.port());
        let flags = words(&format!(
            "--model {MODEL} --pod-name {name} --bind {ip} --port {port} {flags}"
        ));
        let program = isthmus::program("model-server-sim")?;
        let service = start(name, program, flags, &self.files, logs)?;
        answers(&service, name, Some(at), "/health/ready").await?;
        Ok(ExtraServer { _service: service })
    }

    /// Replaces the file of endpoints; the endpoint picker reads it within a second.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn set_endpoints(
        &self,
        endpoints: impl IntoIterator<Item = SocketAddr>,
    ) -> Result<(), TestbedError> {
        let entries = endpoints.into_iter().enumerate().map(|(nth, at)| {
            json!({"name": format!("{MODEL}-{nth}"), "address": at.ip(), "port": at.port()})
        });
        let entries: Vec<Value> = entries.collect();
        replace(&self.files.join("endpoints.yaml"), &endpoints_of(&entries))
    }

    /// Changes the endpoint picker's configuration and has it read anew.
    ///
    /// # Errors
    /// When the file cannot be read or written.
    pub async fn change_epp(&self, change: impl FnOnce(&mut Value)) -> Result<(), TestbedError> {
        let file = self.files.join("epp.yaml");
        let text = std::fs::read_to_string(&file).map_err(|source| TestbedError::File {
            path: file.clone(),
            source,
        })?;
        let mut config = sample(&text)?;
        change(&mut config);
        replace(&file, &config)?;
        self.reload_epp().await;
        Ok(())
    }

    /// Has the endpoint pickers read their files anew.
    pub async fn reload_epp(&self) {
        for epp in &self.epps {
            epp.signal(Signal::SIGHUP).await;
        }
    }

    /// The value of the endpoint pickers' metrics whose line begins so, added up; `None` where no line does.
    ///
    /// # Errors
    /// When a page does not come.
    pub async fn metric(&self, beginning: &str) -> Result<Option<f64>, String> {
        let mut sum = None;
        for nth in 0..self.epps.len() {
            let page = Requests::new(self.picker_url(nth)).get("/metrics").await;
            let page = page.map_err(|error| error.to_string())?.text();
            let values = page.lines().filter(|line| line.starts_with(beginning));
            let values = values.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
            sum = values.fold(sum, |sum, value| Some(sum.unwrap_or(0.0) + value));
        }
        Ok(sum)
    }

    /// Bytes of memory that the first endpoint picker holds; `None` while it does not run.
    pub async fn epp_memory(&self) -> Option<u64> {
        let pid = self.epps.first()?.pid().await?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kib: u64 = line.trim().trim_end_matches(" kB").trim().parse().ok()?;
        Some(kib * 1024)
    }

    /// SIGKILL to the endpoint pickers; returns when they are gone.
    pub async fn kill_epp(&self) {
        for epp in &self.epps {
            epp.kill().await;
        }
    }

    /// Starts the endpoint pickers, having killed those that run, and waits until they are ready.
    ///
    /// # Errors
    /// When one does not come up; with the end of its log.
    pub async fn restart_epp(&self) -> Result<(), TestbedError> {
        for (epp, ports) in self.epps.iter().zip(self.ports.pickers) {
            restart(epp, "epp", ports.metrics).await?;
        }
        Ok(())
    }

    /// One endpoint picker stands still until it is thawed.
    pub async fn freeze_picker(&self, nth: usize) {
        self.epps[nth].signal(Signal::SIGSTOP).await;
    }

    /// It goes on.
    pub async fn thaw_picker(&self, nth: usize) {
        self.epps[nth].signal(Signal::SIGCONT).await;
    }

    /// SIGKILL to one endpoint picker; returns when it is gone.
    pub async fn kill_picker(&self, nth: usize) {
        self.epps[nth].kill().await;
    }

    /// Starts one endpoint picker again and waits until it is ready.
    ///
    /// # Errors
    /// When it does not come up; with the end of its log.
    pub async fn restart_picker(&self, nth: usize) -> Result<(), TestbedError> {
        restart(&self.epps[nth], "epp", self.ports.pickers[nth].metrics).await
    }

    /// Starts Redis anew, which forgets everything, and waits until the Metadata-Center is ready again.
    ///
    /// # Errors
    /// When it does not come up; with the end of its log.
    pub async fn restart_redis(&self) -> Result<(), TestbedError> {
        let Some(center) = &self.center else {
            return Ok(());
        };
        again(&center.redis, "redis").await?;
        let at = Some(local(self.ports.center_admin));
        answers(&center.service, "metadata-center", at, "/readyz").await
    }

    /// SIGKILL to the Metadata-Center, if there is one; returns when it is gone.
    pub async fn kill_center(&self) {
        if let Some(center) = &self.center {
            center.service.kill().await;
        }
    }

    /// Starts the Metadata-Center again and waits until it is ready.
    ///
    /// # Errors
    /// When it does not come up; with the end of its log.
    pub async fn restart_center(&self) -> Result<(), TestbedError> {
        match &self.center {
            Some(center) => {
                let port = self.ports.center_admin;
                restart(&center.service, "metadata-center", port).await
            }
            None => Ok(()),
        }
    }

    /// Kills the programs, Envoy first; returns when they are gone.
    pub async fn stop(self) {
        let center = self.center.iter().flat_map(|it| [&it.service, &it.redis]);
        let external = self.external.iter().flat_map(External::services);
        let others = self.epps.iter().chain(external).chain(center);
        for service in [&self.envoy].into_iter().chain(others) {
            service.kill().await;
        }
        self.model_servers.kill().await;
    }
}

/// One entry of a cluster's load assignment.
#[must_use]
pub fn lb_endpoint(at: SocketAddr) -> Value {
    json!({"endpoint": {"address": socket(at.ip(), at.port())}})
}

/// An address as Envoy writes it.
#[must_use]
pub fn socket(ip: std::net::IpAddr, port: u16) -> Value {
    json!({"socket_address": {"address": ip, "port_value": port}})
}

fn endpoints_of(entries: &[Value]) -> Value {
    json!({"endpoints": entries})
}

/// A file of `config/standalone`, as a value.
fn sample(text: &str) -> Result<Value, TestbedError> {
    serde_yaml::from_str(text).map_err(|error| TestbedError::Sample(error.to_string()))
}

fn part<'a>(config: &'a mut Value, pointer: &str) -> Result<&'a mut Value, TestbedError> {
    config
        .pointer_mut(pointer)
        .ok_or_else(|| TestbedError::Sample(format!("envoy.yaml has no {pointer}")))
}

fn write(path: &Path, content: &Value) -> Result<(), TestbedError> {
    let text = serde_yaml::to_string(content);
    let text = text.map_err(|error| TestbedError::Sample(error.to_string()))?;
    std::fs::write(path, text).map_err(|source| TestbedError::File {
        path: path.to_owned(),
        source,
    })
}

/// By a rename: half a file is none.
fn replace(path: &Path, content: &Value) -> Result<(), TestbedError> {
    let new = path.with_extension("new");
    write(&new, content)?;
    std::fs::rename(&new, path).map_err(|source| TestbedError::File {
        path: path.to_owned(),
        source,
    })
}
