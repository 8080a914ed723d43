//! A test's own namespace in the clusters, what it puts there, and what it sees there.

use std::sync::Arc;

use anyhow::{Context, Result};
use crd::{InferencePoolImport, annotations, inference_pool::InferencePool};
use e2e::watching::{becomes, holds, within};
use futures::future::{join_all, try_join_all};
use k8s_openapi::api::{
    core::v1::{Namespace, Service},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api, Resource,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    core::NamespaceResourceScope,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    arguments::Reading,
    subject::{Member, Subject},
};

/// What a test is given.
pub(crate) struct Stage {
    pub(crate) subject: Arc<Subject>,
    pub(crate) reading: Option<Reading>,
}

/// A namespace of a random name in some or all clusters. Clusters are numbered as they were given.
pub(crate) struct Scene<'a> {
    members: &'a [Member],
    reading: Option<Reading>,
    pub(crate) namespace: String,
}

/// Name of the endpoint picker's Service.
pub(crate) const PICKER: &str = "picker";
/// Its port for ext_proc.
pub(crate) const PICKER_PORT: u16 = 9002;
/// Nobody is asked there: an address for documentation.
pub(crate) const NOBODY: &str = "198.51.100.7";

// === impl Stage ===

impl Stage {
    /// Plays in a namespace that all clusters have.
    pub(crate) async fn play(&self, act: impl AsyncFnOnce(&Scene<'_>) -> Result<()>) -> Result<()> {
        let all: Vec<usize> = (0..self.subject.members().len()).collect();
        self.play_in(&all, act).await
    }

    /// Plays in a namespace that these clusters have at first; clears up afterwards, whatever came of it.
    pub(crate) async fn play_in(
        &self,
        places: &[usize],
        act: impl AsyncFnOnce(&Scene<'_>) -> Result<()>,
    ) -> Result<()> {
        let scene = Scene::open(self.subject.members(), self.reading, places).await?;
        let outcome = act(&scene).await;
        let cleared = scene.clear().await;
        outcome?;
        cleared.context("clearing up")
    }
}

// === impl Scene ===

impl<'a> Scene<'a> {
    async fn open(
        members: &'a [Member],
        reading: Option<Reading>,
        places: &[usize],
    ) -> Result<Self> {
        let (first, others) = places.split_first().context("no place to play in")?;
        let namespaces: Api<Namespace> = Api::all(members[*first].client.clone());
        let nameless = made(json!({"metadata": {"generateName": "import-conformance-"}}))?;
        let params = PostParams::default();
        let created = within(
            "creating a namespace",
            namespaces.create(&params, &nameless),
        );
        let scene = Self {
            members,
            reading,
            namespace: created.await?.metadata.name.context("no name given")?,
        };
        for &at in others {
            scene.add_namespace(at).await?;
        }
        Ok(scene)
    }

    pub(crate) async fn add_namespace(&self, at: usize) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.members[at].client.clone());
        let namespace = made(json!({"metadata": {"name": self.namespace}}))?;
        let params = PostParams::default();
        within(
            "creating the namespace",
            namespaces.create(&params, &namespace),
        )
        .await?;
        Ok(())
    }

    /// Pools first, since without a namespace controller nobody else would take them. Nobody waits for the namespace.
    async fn clear(&self) -> Result<()> {
        let params = DeleteParams::default();
        let clearing = self.members.iter().enumerate().map(async |(at, member)| {
            let pools = self.pools(at);
            let everything = ListParams::default();
            within(
                "deleting pools",
                pools.delete_collection(&params, &everything),
            )
            .await?;
            let namespaces: Api<Namespace> = Api::all(member.client.clone());
            match namespaces.delete(&self.namespace, &params).await {
                Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
                other => other.map(|_| ()).context("deleting the namespace"),
            }
        });
        join_all(clearing).await.into_iter().collect()
    }

    /// How many clusters there are.
    pub(crate) fn count(&self) -> usize {
        self.members.len()
    }

    /// All clusters but this one.
    pub(crate) fn others(&self, at: usize) -> impl Iterator<Item = usize> {
        (0..self.members.len()).filter(move |&other| other != at)
    }

    pub(crate) fn name(&self, at: usize) -> &str {
        &self.members[at].name
    }

    pub(crate) fn pools(&self, at: usize) -> Api<InferencePool> {
        self.api(at)
    }

    pub(crate) fn imports(&self, at: usize) -> Api<InferencePoolImport> {
        self.api(at)
    }

    /// The namespace's objects of a kind.
    pub(crate) fn api<K>(&self, at: usize) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.members[at].client.clone(), &self.namespace)
    }

    /// Creates an object.
    pub(crate) async fn create<K>(&self, at: usize, object: Value) -> Result<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + Serialize
            + DeserializeOwned,
    {
        let what = format!("creating {} in {}", K::kind(&()), self.name(at));
        let object = made(object)?;
        let params = PostParams::default();
        within(&what, self.api(at).create(&params, &object)).await
    }

    /// A Service of type ClusterIP for an endpoint picker, with one ready endpoint; returns its address.
    pub(crate) async fn picker(&self, at: usize) -> Result<String> {
        let service: Service = self
            .create(
                at,
                json!({
                    "metadata": {"name": PICKER},
                    // no selector: no controller has a say in the endpoints
                    "spec": {"ports": [
                        {"name": "grpc-ext-proc", "port": PICKER_PORT, "appProtocol": "http2"},
                        {"name": "grpc-health", "port": 9003},
                        {"name": "http-metrics", "port": 9090},
                    ]},
                }),
            )
            .await?;
        let _slice: EndpointSlice = self
            .create(
                at,
                json!({
                    "metadata": {
                        "name": format!("{PICKER}-by-hand"),
                        "labels": {"kubernetes.io/service-name": PICKER},
                    },
                    "addressType": "IPv4",
                    "endpoints": [{"addresses": [NOBODY], "conditions": {"ready": true}}],
                    "ports": [
                        {"name": "grpc-ext-proc", "port": PICKER_PORT},
                        {"name": "grpc-health", "port": 9003},
                        {"name": "http-metrics", "port": 9090},
                    ],
                }),
            )
            .await?;
        let address = service.spec.and_then(|spec| spec.cluster_ip);
        address.context("the Service has no address")
    }

    /// A pool that is not exported, with the picker of [`Scene::picker`].
    pub(crate) async fn pool(&self, at: usize, name: &str, port: u16) -> Result<InferencePool> {
        self.create(at, pool(name, port)).await
    }

    /// Exports a pool, in the mode that all must know.
    pub(crate) async fn export(&self, at: usize, name: &str) -> Result<()> {
        let wanted = json!({
            annotations::EXPORT: annotations::EXPORT_CLUSTER_SET,
            annotations::EXPORT_MODE: "EndpointMode",
        });
        self.annotate(at, name, wanted).await
    }

    pub(crate) async fn unexport(&self, at: usize, name: &str) -> Result<()> {
        self.annotate(at, name, json!({annotations::EXPORT: null}))
            .await
    }

    /// Sets annotations of a pool, or with `null` removes them.
    pub(crate) async fn annotate(&self, at: usize, name: &str, wanted: Value) -> Result<()> {
        let patch = Patch::Merge(json!({"metadata": {"annotations": wanted}}));
        let pools = self.pools(at);
        let params = PatchParams::default();
        let request = pools.patch(name, &params, &patch);
        within("annotating the pool", request).await?;
        Ok(())
    }

    pub(crate) async fn delete_pool(&self, at: usize, name: &str) -> Result<()> {
        let pools = self.pools(at);
        let params = DeleteParams::default();
        let request = pools.delete(name, &params);
        within("deleting the pool", request).await?;
        Ok(())
    }

    /// Picker and exported pool, as most tests begin; returns the picker's address.
    pub(crate) async fn exporter(&self, at: usize, name: &str, port: u16) -> Result<String> {
        let address = self.picker(at).await?;
        self.pool(at, name, port).await?;
        self.export(at, name).await?;
        Ok(address)
    }

    /// Waits until the import in this cluster is of these exporters and no others; returns it.
    pub(crate) async fn imported(
        &self,
        at: usize,
        name: &str,
        exporters: &[usize],
    ) -> Result<InferencePoolImport> {
        let what = format!("import {name} in {}", self.name(at));
        becomes(&self.imports(at), name, &what, |import| {
            self.is_of(import, exporters)
        })
        .await
    }

    /// Whether this import is of these exporters and no others.
    pub(crate) fn is_of(
        &self,
        import: Option<&InferencePoolImport>,
        exporters: &[usize],
    ) -> Result<InferencePoolImport, String> {
        let import = import.ok_or("no import")?;
        let mut wanted: Vec<&str> = exporters.iter().map(|&at| self.name(at)).collect();
        let mut seen = exporters_of(import);
        wanted.sort_unstable();
        seen.sort_unstable();
        if seen == wanted {
            Ok(import.clone())
        } else {
            Err(format!("exported by {seen:?}, expected {wanted:?}"))
        }
    }

    /// Waits until there is no import in these clusters, and sees that none comes back.
    pub(crate) async fn gone(&self, places: &[usize], name: &str) -> Result<()> {
        let going = places.iter().map(async |&at| {
            let what = format!("no import {name} in {}", self.name(at));
            becomes(&self.imports(at), name, &what, is_absent).await
        });
        try_join_all(going).await?;
        self.absent(places, name).await
    }

    /// Sees that these clusters have no import, and get none.
    pub(crate) async fn absent(&self, places: &[usize], name: &str) -> Result<()> {
        let holding = places.iter().map(async |&at| {
            let what = format!("no import {name} in {}", self.name(at));
            holds(&self.imports(at), name, &what, is_absent).await
        });
        try_join_all(holding).await?;
        Ok(())
    }

    /// Waits until a cluster that alone exports has what the controller says that it keeps there, and sees that it
    /// stays so.
    pub(crate) async fn alone(&self, at: usize, name: &str) -> Result<()> {
        let what = format!("import {name} in {}, which alone exports", self.name(at));
        let fits = |import: Option<&InferencePoolImport>| self.fits_alone(at, import);
        becomes(&self.imports(at), name, &what, fits).await?;
        holds(&self.imports(at), name, &what, fits).await
    }

    fn fits_alone(&self, at: usize, import: Option<&InferencePoolImport>) -> Result<(), String> {
        let lists_itself = import.is_some_and(|import| {
            let mut entries = import.clusters().iter();
            entries.any(|entry| entry.name == self.name(at))
        });
        if lists_itself {
            return Err("it lists the cluster that it is in".to_owned());
        }
        match (self.reading, import) {
            (Some(Reading::WhenRemote), Some(import)) => Err(format!("{:?}", import.status)),
            (Some(Reading::Always), None) => Err("no import".to_owned()),
            (Some(Reading::Always), Some(import)) if !import.clusters().is_empty() => {
                Err(format!("{:?}", import.clusters()))
            }
            _ => Ok(()),
        }
    }

    /// Sees an export go through from end to end: what has not come by now was not going to.
    pub(crate) async fn sees_an_export(&self, at: usize) -> Result<()> {
        const WITNESS: &str = "witness";
        self.pool(at, WITNESS, 8000).await?;
        self.export(at, WITNESS).await?;
        let others = self.others(at);
        let coming = others.map(async |other| self.imported(other, WITNESS, &[at]).await);
        try_join_all(coming).await?;
        Ok(())
    }
}

/// A pool with one target port, and the picker of [`Scene::picker`].
pub(crate) fn pool(name: &str, port: u16) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": {"app": "none"}},
            "targetPorts": [{"number": port}],
            "endpointPickerRef": {"name": PICKER, "port": {"number": PICKER_PORT}},
        },
    })
}

/// Names of the clusters that an import is from: the proposal's entries, or those of upstream's shape, which knows no
/// entries.
fn exporters_of(import: &InferencePoolImport) -> Vec<&str> {
    let entries = import.clusters().iter().map(|entry| entry.name.as_str());
    let entries: Vec<&str> = entries.collect();
    if !entries.is_empty() {
        return entries;
    }
    let controllers = import.status.iter().flat_map(|status| &status.controllers);
    let names = controllers.flat_map(|controller| &controller.exporting_clusters);
    names.map(|cluster| cluster.name.as_str()).collect()
}

fn is_absent(import: Option<&InferencePoolImport>) -> Result<(), String> {
    match import {
        None => Ok(()),
        Some(import) => Err(format!("{:?}", import.status)),
    }
}

fn made<K: DeserializeOwned>(object: Value) -> Result<K> {
    serde_json::from_value(object).context("an object of the suite")
}
