//! What a testbed is to have, and its start.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::{Member, READY_LIMIT, Testbed, await_api_server};
use crate::addresses::ClusterAddresses;
use crate::cluster::Cluster;
use crate::control_plane::{Files, start_etcd};
use crate::error::TestbedError;
use crate::isolation::RunDirectory;
use crate::manifests::Manifests;
use crate::network::{ClusterNetwork, make_hub};
use crate::node::Node;
use crate::progress::{Listener, Progress};
use crate::tools::{Images, Tools};

/// What a testbed is to have. Made by [`Testbed::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Builder {
    run: RunDirectory,
    clusters: Vec<String>,
    images: Images,
    tools: Option<Tools>,
    install_definitions: bool,
    manifests: Vec<PathBuf>,
}

// === impl Builder ===

impl Builder {
    pub(super) fn new(run: RunDirectory) -> Self {
        Self {
            run,
            clusters: Vec::new(),
            images: Images::default(),
            tools: None,
            install_definitions: true,
            manifests: Vec::new(),
        }
    }

    /// Adds a cluster; the first has the addresses 10.1.0.0/16, the second 10.2.0.0/16, and so on.
    pub fn cluster(mut self, name: &str) -> Self {
        self.clusters.push(name.to_owned());
        self
    }

    /// Says what runs for an image: `repository` is its name without registry and tag, as in `isthmus/epp`.
    /// `envoyproxy/envoy` is there already. An image nobody named leaves its pod in `ImagePullBackOff`.
    pub fn image(self, repository: &str, executable: impl Into<PathBuf>) -> Self {
        self.image_with(repository, executable, &[])
    }

    /// As [`Builder::image`], with arguments that stand before the container's own.
    pub fn image_with(
        mut self,
        repository: &str,
        executable: impl Into<PathBuf>,
        arguments: &[&str],
    ) -> Self {
        let arguments = arguments
            .iter()
            .map(|&argument| argument.to_owned())
            .collect();
        self.images.insert(repository, executable.into(), arguments);
        self
    }

    /// Runs a process that only waits, and is ready at once, for each image that nobody named.
    pub fn idle_for_other_images(mut self) -> Self {
        self.images.idle_for_others();
        self
    }

    /// Uses these binaries instead of those that [`Tools::find`] finds.
    pub fn tools(mut self, tools: Tools) -> Self {
        self.tools = Some(tools);
        self
    }

    /// Installs no custom resource definitions; without this: Gateway API, InferencePool and our own.
    pub fn without_definitions(mut self) -> Self {
        self.install_definitions = false;
        self
    }

    /// Applies one more manifest file to every cluster at its start.
    pub fn manifest(mut self, path: impl Into<PathBuf>) -> Self {
        self.manifests.push(path.into());
        self
    }

    /// Starts everything, and returns when in every cluster the API server is ready, the default ServiceAccount exists,
    /// the definitions are served and the node is Ready. `progress` hears of each step.
    ///
    /// # Errors
    /// When a tool is missing or a part does not come up; with the end of its log. What was started is killed.
    pub async fn start(
        self,
        progress: impl Fn(Progress) + Send + Sync + 'static,
    ) -> Result<Testbed, TestbedError> {
        // boxed: a start waits for many things at once, and all of them are in this future
        Box::pin(self.start_all(Listener::new(progress))).await
    }

    async fn start_all(self, progress: Listener) -> Result<Testbed, TestbedError> {
        let tools = match self.tools.clone() {
            Some(tools) => tools,
            None => Tools::find()?,
        };
        let addresses = self.addresses()?;
        let mut images = self.images.clone();
        images.insert("envoyproxy/envoy", tools.envoy.clone(), Vec::new());

        let hub = make_hub().await?;
        let (state, logs) = (self.run.state(), self.run.logs());
        let etcd = start_etcd(&tools, &hub, &state, &logs)?;
        let starts = addresses.into_iter().map(async |(name, addresses)| {
            let network = ClusterNetwork::make(&hub, addresses).await?;
            self.start_member(&name, network, &tools, &images, &progress)
                .await
        });
        let started = futures::future::try_join_all(starts);
        let manifests = async {
            if !self.install_definitions {
                return Ok(self.manifests.clone());
            }
            let mut paths = Manifests::find().await?.default_set();
            paths.extend(self.manifests.iter().cloned());
            Ok(paths)
        };
        let (started, manifests) = futures::future::try_join(started, manifests).await?;
        let members: BTreeMap<String, Member> = started
            .into_iter()
            .map(|member| (member.cluster.name().to_owned(), member))
            .collect();
        let testbed = Testbed {
            run: self.run.clone(),
            tools,
            members,
            etcd,
        };
        futures::future::try_join_all(testbed.members.values().map(async |member| {
            let name = member.cluster.name();
            let install = async {
                let files = manifests.iter().map(|path| member.cluster.apply_file(path));
                futures::future::try_join_all(files).await.map(|_| ())
            };
            let install = progress.step(format!("{name}: custom resource definitions"), install);
            let ready = progress.step(format!("{name}: controllers and node"), member.ready());
            futures::future::try_join(install, ready).await
        }))
        .await?;
        Ok(testbed)
    }

    fn addresses(&self) -> Result<Vec<(String, ClusterAddresses)>, TestbedError> {
        let mut numbered: Vec<(String, ClusterAddresses)> = Vec::new();
        for name in &self.clusters {
            let invalid = |problem: &'static str| TestbedError::Cluster {
                name: name.clone(),
                problem,
            };
            let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
            if name.is_empty()
                || name.len() > 40
                || name.starts_with('-')
                || !name.bytes().all(plain)
            {
                return Err(invalid("expected 1 to 40 of a-z, 0-9 and -, like \"east\""));
            }
            if numbered.iter().any(|(other, _)| other == name) {
                return Err(invalid("named twice"));
            }
            let number = u8::try_from(numbered.len() + 1).ok();
            let addresses = number.and_then(ClusterAddresses::new);
            numbered.push((
                name.clone(),
                addresses.ok_or_else(|| invalid("there is room for 255 clusters"))?,
            ));
        }
        Ok(numbered)
    }

    async fn start_member(
        &self,
        name: &str,
        network: ClusterNetwork,
        tools: &Tools,
        images: &Images,
        progress: &Listener,
    ) -> Result<Member, TestbedError> {
        let (state, logs) = (self.run.state().join(name), self.run.logs());
        let files = Files::make(name, network.addresses, state.clone())?;
        let cluster = Cluster::from_kubeconfig(name, &files.kubeconfig(), &tools.kubectl).await?;
        let api_server = files.start_api_server(name, tools, &network, &logs)?;
        let ready = await_api_server(&cluster, &api_server, READY_LIMIT);
        progress.step(format!("{name}: API server"), ready).await?;
        let controller_manager = files.start_controller_manager(name, tools, &network, &logs)?;
        let (client, logs) = (cluster.client(), logs.join(name));
        let node = Node::start(name, client, network.clone(), images.clone(), state, logs);
        Ok(Member {
            cluster,
            api_server,
            network,
            node,
            controller_manager,
        })
    }
}
