//! The real control plane: one etcd for all, and per cluster an API server and a controller manager.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use crate::addresses::{API_SERVER_PORT, ClusterAddresses, HUB};
use crate::audit;
use crate::error::TestbedError;
use crate::kubeconfig::{Credentials, make_kubeconfig};
use crate::mounts::Mounts;
use crate::netns::NetNs;
use crate::network::ClusterNetwork;
use crate::pki::{Authority, TokenKeys};
use crate::process::{ProcessSpec, Service};
use crate::tools::Tools;

/// Soft limit of each API server's heap. It needs about 200 MB; a tighter limit costs time in its garbage collector.
const API_SERVER_MEMORY: &str = "400MiB";

/// Controllers that would take over what the simulated node does, or that need a cloud.
const CONTROLLERS: &str = "*,-node-lifecycle-controller,-taint-eviction-controller,-node-ipam-controller,\
                           -service-lb-controller,-node-route-controller,-cloud-node-lifecycle-controller,\
                           -persistentvolume-attach-detach-controller";

/// The files of one cluster's control plane.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    directory: PathBuf,
}

/// Starts etcd in the hub.
pub(crate) fn start_etcd(
    tools: &Tools,
    hub: &NetNs,
    state: &Path,
    logs: &Path,
) -> Result<Service, TestbedError> {
    let (client, peer) = (format!("http://{HUB}:2379"), format!("http://{HUB}:2380"));
    let directory = state.join("etcd");
    let arguments = [
        ("--name", "testbed"),
        ("--data-dir", &*directory.to_string_lossy()),
        ("--listen-client-urls", &client),
        ("--advertise-client-urls", &client),
        ("--listen-peer-urls", &peer),
        ("--initial-advertise-peer-urls", &peer),
        ("--initial-cluster", &format!("testbed={peer}")),
        ("--log-level", "warn"),
    ]
    .iter()
    .flat_map(|(flag, value)| [OsString::from(flag), OsString::from(value)])
    // a run that loses power is over anyway
    .chain(["--unsafe-no-fsync".into()])
    .collect();
    start(
        "etcd",
        ProcessSpec {
            program: tools.etcd.clone(),
            arguments,
            environment: Vec::new(),
            directory: state.to_owned(),
            namespace: Some(hub.clone()),
            mounts: Mounts::default(),
            log: logs.join("etcd.log"),
        },
    )
}

// === impl Files ===

impl Files {
    /// Makes certificates, keys and kubeconfigs of a cluster in `directory`.
    pub(crate) fn make(
        cluster: &str,
        addresses: ClusterAddresses,
        directory: PathBuf,
    ) -> Result<Self, TestbedError> {
        let certificates = |source| TestbedError::Certificates {
            cluster: cluster.to_owned(),
            source,
        };
        let authority = Authority::make(cluster).map_err(certificates)?;
        let names = [
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "localhost",
        ];
        let own = [addresses.api_server(), addresses.kubernetes_service()];
        let server = authority.server(&own, &names).map_err(certificates)?;
        let admin = authority
            .client("testbed-admin", "system:masters")
            .map_err(certificates)?;
        let tokens = TokenKeys::make().map_err(certificates)?;
        let url = format!("https://{}:{API_SERVER_PORT}", addresses.api_server());
        let authority_pem = authority.pem();
        let kubeconfig = make_kubeconfig(
            cluster,
            &url,
            &authority_pem,
            // files that kubectl merges must not share names
            &format!("{cluster}-admin"),
            Credentials::Certificate(&admin),
        );

        let files = Self { directory };
        let write = |name: &str, text: &str| std::fs::write(files.path(name), text);
        std::fs::create_dir_all(&files.directory)
            .and_then(|()| write("ca.crt", &authority_pem))
            .and_then(|()| write("server.crt", &server.certificate))
            .and_then(|()| write("server.key", &server.key))
            .and_then(|()| write("tokens.key", &tokens.private))
            .and_then(|()| write("tokens.pub", &tokens.public))
            .and_then(|()| write("audit-policy.yaml", audit::POLICY))
            .and_then(|()| write("kubeconfig", &kubeconfig))
            .map_err(|source| TestbedError::File {
                path: files.directory.clone(),
                source,
            })?;
        Ok(files)
    }

    /// The administrator's kubeconfig.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.path("kubeconfig")
    }

    pub(crate) fn start_api_server(
        &self,
        cluster: &str,
        tools: &Tools,
        network: &ClusterNetwork,
        logs: &Path,
    ) -> Result<Service, TestbedError> {
        let address = network.addresses.api_server().to_string();
        let port = API_SERVER_PORT.to_string();
        let etcd = format!("http://{HUB}:2379");
        let prefix = format!("/{cluster}");
        let services = network.addresses.service_cidr();
        let path = |name: &str| self.path(name).to_string_lossy().into_owned();
        let arguments = [
            ("etcd-servers", etcd),
            ("etcd-prefix", prefix),
            ("etcd-compaction-interval", "0".to_owned()),
            ("bind-address", address.clone()),
            ("advertise-address", address),
            ("secure-port", port),
            ("cert-dir", self.directory.to_string_lossy().into_owned()),
            ("tls-cert-file", path("server.crt")),
            ("tls-private-key-file", path("server.key")),
            ("client-ca-file", path("ca.crt")),
            ("authorization-mode", "RBAC".to_owned()),
            ("service-cluster-ip-range", services),
            (
                "service-account-issuer",
                "https://kubernetes.default.svc.cluster.local".to_owned(),
            ),
            ("service-account-key-file", path("tokens.pub")),
            ("service-account-signing-key-file", path("tokens.key")),
            ("endpoint-reconciler-type", "none".to_owned()),
            // a few clients on one machine: fairness between them only costs start-up time
            ("enable-priority-and-fairness", "false".to_owned()),
            ("profiling", "false".to_owned()),
            ("audit-policy-file", path("audit-policy.yaml")),
            (
                "audit-log-path",
                audit::log(logs, cluster).to_string_lossy().into_owned(),
            ),
        ];
        self.start(
            cluster,
            "apiserver",
            &tools.kube_apiserver,
            &arguments,
            network,
            logs,
        )
    }

    /// Needs a ready API server: it exits when it cannot reach one.
    pub(crate) fn start_controller_manager(
        &self,
        cluster: &str,
        tools: &Tools,
        network: &ClusterNetwork,
        logs: &Path,
    ) -> Result<Service, TestbedError> {
        let path = |name: &str| self.path(name).to_string_lossy().into_owned();
        let arguments = [
            ("kubeconfig", path("kubeconfig")),
            ("root-ca-file", path("ca.crt")),
            ("service-account-private-key-file", path("tokens.key")),
            ("controllers", CONTROLLERS.to_owned()),
            ("leader-elect", "false".to_owned()),
            ("secure-port", "0".to_owned()),
            ("kube-api-qps", "200".to_owned()),
            ("kube-api-burst", "400".to_owned()),
            ("profiling", "false".to_owned()),
        ];
        let program = &tools.kube_controller_manager;
        self.start(
            cluster,
            "controller-manager",
            program,
            &arguments,
            network,
            logs,
        )
    }

    fn start(
        &self,
        cluster: &str,
        name: &str,
        program: &Path,
        arguments: &[(&str, String)],
        network: &ClusterNetwork,
        logs: &Path,
    ) -> Result<Service, TestbedError> {
        let arguments = arguments
            .iter()
            .map(|(flag, value)| format!("--{flag}={value}").into());
        start(
            name,
            ProcessSpec {
                program: program.to_owned(),
                arguments: arguments.collect(),
                environment: vec![("GOMEMLIMIT".into(), API_SERVER_MEMORY.into())],
                directory: self.directory.clone(),
                namespace: Some(network.namespace.clone()),
                mounts: Mounts::default(),
                log: logs.join(cluster).join(format!("{name}.log")),
            },
        )
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

fn start(name: &str, spec: ProcessSpec) -> Result<Service, TestbedError> {
    let program = spec.program.clone();
    Service::start(spec).map_err(|source: io::Error| TestbedError::Start {
        name: name.to_owned(),
        program,
        source,
    })
}
