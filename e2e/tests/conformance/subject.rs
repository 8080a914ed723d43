//! The clusters and the controller that are looked at.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use anyhow::{Context, Result};
use kube::Client;
use testbed::{Cluster, Inside, Testbed, isthmus};
use tokio::sync::Mutex;

use crate::{
    Needs,
    arguments::{Given, Implementation, Reading, Served, Target},
    scene::Stage,
};

/// A member of the ClusterSet, as anyone with its kubeconfig sees it.
#[derive(Clone)]
pub(crate) struct Member {
    /// Its name in the ClusterSet.
    pub(crate) name: String,
    pub(crate) client: Client,
}

/// How the controller runs while a group of tests looks at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Ours: with its defaults. Another's: as we found it.
    AsItIs,
    /// Ours, with `--import-in-exporter=always`.
    Always,
}

/// See the module.
pub(crate) struct Subject {
    members: Vec<Member>,
    implementation: Implementation,
    reading: Option<Reading>,
    served: Option<Served>,
    controls: Option<Controls>,
}

/// What the suite can do to a controller that it started.
pub(crate) struct Controls {
    pub(crate) home: Cluster,
    /// Kubeconfig of each member, by name, as the controller has them.
    pub(crate) kubeconfigs: BTreeMap<String, String>,
    pub(crate) testbed: Testbed,
    way: Mutex<Way>,
}

/// Three: then there is always one that only imports, and "some clusters" differs from "all others".
const CLUSTERS: [&str; 3] = ["east", "south", "west"];
/// Where our controller runs; it is a member, too.
const HOME: &str = "west";

// === impl Subject ===

impl Subject {
    pub(crate) async fn start(target: Target, inside: Option<&Inside>) -> Result<Self> {
        match (target, inside) {
            (Target::Clusters(given), _) => Self::connect(given).await,
            (Target::Testbed, Some(inside)) => Self::bring_up(inside).await,
            (Target::Testbed, None) => anyhow::bail!("a testbed needs namespaces of its own"),
        }
    }

    async fn connect(given: Given) -> Result<Self> {
        let Given {
            kubeconfigs,
            implementation,
            reading,
            served,
        } = given;
        let mut members = Vec::new();
        for kubeconfig in kubeconfigs {
            // no test calls kubectl
            let kubectl = Path::new("kubectl");
            let cluster = Cluster::from_kubeconfig(&kubeconfig.name, &kubeconfig.path, kubectl);
            members.push(Member {
                client: cluster.await?.client(),
                name: kubeconfig.name,
            });
        }
        Ok(Self {
            members,
            implementation,
            reading,
            served,
            controls: None,
        })
    }

    async fn bring_up(inside: &Inside) -> Result<Self> {
        let mut builder = isthmus::with_programs(Testbed::builder(inside))?;
        for name in CLUSTERS {
            builder = builder.cluster(name);
        }
        let testbed = builder.start(|_| {}).await?;
        let logs = testbed.logs_dir();
        let installed = Self::install(testbed).await;
        installed.with_context(|| format!("installing the controller; logs: {}", logs.display()))
    }

    async fn install(testbed: Testbed) -> Result<Self> {
        let joins = CLUSTERS.map(async |name| {
            let cluster = testbed.cluster(name)?.clone();
            let kubeconfig = isthmus::join(&cluster).await?;
            anyhow::Ok((cluster, kubeconfig))
        });
        let joined = futures::future::try_join_all(joins).await?;
        let members = joined
            .iter()
            .map(|(cluster, _)| Member {
                name: cluster.name().to_owned(),
                client: cluster.client(),
            })
            .collect();
        let kubeconfigs = joined
            .into_iter()
            .map(|(cluster, kubeconfig)| (cluster.name().to_owned(), kubeconfig))
            .collect();
        let home = testbed.cluster(HOME)?.clone();
        isthmus::install_controller(&home, &kubeconfigs).await?;
        Ok(Self {
            members,
            implementation: Implementation::Isthmus,
            reading: Some(Reading::WhenRemote),
            served: None,
            controls: Some(Controls {
                home,
                kubeconfigs,
                testbed,
                way: Mutex::new(Way::AsItIs),
            }),
        })
    }

    /// Whether a test can look at this.
    pub(crate) fn meets(&self, needs: Needs) -> bool {
        match needs {
            Needs::Any => true,
            Needs::Three => self.members.len() > 2,
            Needs::Isthmus => self.implementation == Implementation::Isthmus,
            Needs::Gateway => self.served.is_some() || self.controls.is_some(),
            Needs::Testbed => self.controls.is_some(),
        }
    }

    /// Runs the controller this way from now on; nothing else may look at it meanwhile.
    pub(crate) async fn set_up(&self, way: Way) -> Result<()> {
        let Some(controls) = &self.controls else {
            return Ok(());
        };
        let mut current = controls.way.lock().await;
        if *current != way {
            let value = match way {
                Way::AsItIs => "when-remote",
                Way::Always => "always",
            };
            isthmus::configure_controller(&controls.home, &[("IMPORT_IN_EXPORTER", value)]).await?;
            *current = way;
        }
        Ok(())
    }

    /// What a test of a group sees.
    pub(crate) fn stage(self: &Arc<Self>, way: Way) -> Stage {
        let reading = match way {
            Way::AsItIs => self.reading,
            Way::Always => Some(Reading::Always),
        };
        Stage {
            subject: self.clone(),
            reading,
        }
    }

    pub(crate) fn members(&self) -> &[Member] {
        &self.members
    }

    /// The gateway that was given; that of a testbed is started by the tests.
    pub(crate) fn served(&self) -> Option<&Served> {
        self.served.as_ref()
    }

    pub(crate) fn controls(&self) -> Option<&Controls> {
        self.controls.as_ref()
    }

    /// Where to look after a failure.
    pub(crate) fn hint(&self) -> String {
        let logs = self.controls.iter().map(|controls| {
            let logs = controls.testbed.logs_dir();
            format!("\nlogs: {}", logs.display())
        });
        logs.collect()
    }

    pub(crate) async fn stop(self) {
        if let Some(controls) = self.controls {
            controls.testbed.stop().await;
        }
    }
}
