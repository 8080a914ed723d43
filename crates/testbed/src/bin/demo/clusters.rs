//! Three clusters: a pool of one is used in another, then of two, in both modes, while one dies and while one has too much
//! to do.

mod dying;
mod load;
mod parent;
mod saturated;
mod selection;
mod show;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use crd::{InferencePoolImport, RoutingMode, conditions};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use testbed::{Cluster, Inside, Requests, Testbed, eventually, isthmus};
use tokio::time::Instant;

use crate::screen::{self, Screen};

const EAST: &str = "east";
const SOUTH: &str = "south";
const WEST: &str = "west";
/// Several steps of several programs on a busy machine.
const SOON: Duration = Duration::from_mins(1);

/// The clusters and where to say what happens in them.
struct Demo<'a> {
    screen: &'a Screen,
    testbed: &'a Testbed,
    east: &'a Cluster,
    south: &'a Cluster,
    west: &'a Cluster,
}

pub(crate) async fn run(inside: &Inside, keep: bool) -> Result<()> {
    let start = Instant::now();
    println!(
        "Isthmus: a request that enters cluster {WEST} is answered by a model server in cluster {EAST}."
    );
    let screen = Screen::new();

    screen.heading(
        "Three clusters: etcd, kube-apiserver, kube-controller-manager, a simulated node each",
    );
    let builder = isthmus::with_programs(Testbed::builder(inside))?;
    let testbed = builder
        .cluster(EAST)
        .cluster(WEST)
        .cluster(SOUTH)
        .start(screen.listener())
        .await?;
    let url = Box::pin(show(&screen, &testbed))
        .await
        .with_context(|| format!("the demo failed; logs: {}", testbed.logs_dir().display()))?;
    println!("\nDone in {:.0} s.", start.elapsed().as_secs_f64());
    if keep {
        show::kept(inside, &testbed, &url)?;
        // until a signal ends the other branch of main
        std::future::pending::<()>().await;
    }
    testbed.stop().await;
    Ok(())
}

/// The URL of west's gateway.
async fn show(screen: &Screen, testbed: &Testbed) -> Result<String> {
    let demo = Demo {
        screen,
        testbed,
        east: testbed.cluster(EAST)?,
        south: testbed.cluster(SOUTH)?,
        west: testbed.cluster(WEST)?,
    };
    let url = Box::pin(demo.install()).await?;
    demo.export().await?;

    let requests = Requests::new(url.clone());
    let pods = pods_by_name(&[demo.east, demo.south, demo.west]).await?;
    answered(&requests, 200).await?;
    screen.heading(&format!(
        "Requests into west's gateway, {url}: the route leads to the import"
    ));
    show::requests(&requests, &pods, 8).await?;
    screen.heading("The same as a stream: tokens as they come");
    show::stream(&requests, &pods).await?;

    demo.split(&requests, &pods).await?;
    demo.withdraw(&requests).await?;

    let front = Box::pin(parent::show(&demo, &requests, &pods)).await?;
    Box::pin(saturated::show(&demo, &requests, &front, &pods)).await?;
    // the last scene: Envoys may leave a cluster alone for some seconds after it died
    Box::pin(dying::show(&demo, &requests, &pods)).await?;
    Ok(url)
}

impl Demo<'_> {
    /// Everything but the export; the URL of west's gateway.
    async fn install(&self) -> Result<String> {
        let Self {
            screen,
            east,
            south,
            west,
            ..
        } = *self;
        screen.heading("Isthmus and a pool of three simulated model servers in each cluster");
        let join = async {
            let members = tokio::try_join!(
                isthmus::join(east),
                isthmus::join(south),
                isthmus::join(west)
            )?;
            anyhow::Ok(BTreeMap::from([
                (EAST.to_owned(), members.0),
                (SOUTH.to_owned(), members.1),
                (WEST.to_owned(), members.2),
            ]))
        };
        let members = screen
            .step("all: accounts for the controller", join)
            .await?;
        let controller = isthmus::install_controller(west, &members);
        tokio::try_join!(
            screen.step("west: gateway", isthmus::install_gateway(west)),
            screen.step("east: gateway", isthmus::install_gateway(east)),
            screen.step("west: mci-controller", controller),
            screen.step(
                "east: model servers and endpoint picker",
                isthmus::install_pool(east)
            ),
            screen.step(
                "south: model servers and endpoint picker",
                isthmus::install_pool(south)
            ),
            screen.step(
                "west: model servers and endpoint picker",
                isthmus::install_pool(west)
            ),
        )?;
        Ok(screen
            .step("west: a Gateway's Envoy", isthmus::install_route(west))
            .await?)
    }

    async fn export(&self) -> Result<()> {
        self.screen.heading("Export: one annotation in east");
        let begin = Instant::now();
        let annotation = "inference.networking.x-k8s.io/export=ClusterSet";
        self.annotate(self.east, annotation).await?;
        self.imported(&[(EAST, RoutingMode::EndpointMode)]).await?;
        println!("  ready in west after {}\n", screen::short(begin.elapsed()));
        let get = ["get", "inferencepoolimport", "llama", "-n", "llm"];
        self.screen.kubectl(self.west, &get).await?;
        Ok(self
            .screen
            .kubectl(self.west, &[&get[..], &["-o", ENTRIES]].concat())
            .await?)
    }

    /// Annotates the pool of a cluster, as its owner would.
    async fn annotate(&self, cluster: &Cluster, annotation: &str) -> Result<()> {
        let annotate = [
            "annotate",
            "inferencepool",
            "llama",
            "-n",
            "llm",
            annotation,
        ];
        Ok(self.screen.kubectl(cluster, &annotate).await?)
    }

    /// Waits until west's import has the entries of these clusters and no others, ready and in these modes.
    async fn imported(&self, wanted: &[(&str, RoutingMode)]) -> Result<()> {
        let imports: Api<InferencePoolImport> =
            Api::namespaced(self.west.client(), isthmus::POOL_NAMESPACE);
        eventually("a ready import in west", SOON, async || {
            let import = imports.get(isthmus::POOL).await;
            let import = import.map_err(|error| error.to_string())?;
            let entries = import.clusters();
            let is_there = |(name, mode): &(&str, RoutingMode)| {
                entries.iter().any(|entry| {
                    entry.name == *name
                        && entry.routing_mode == *mode
                        && conditions::is_true(&entry.conditions, conditions::READY)
                })
            };
            if entries.len() == wanted.len() && wanted.iter().all(is_there) {
                Ok(())
            } else {
                Err(format!("{entries:?}"))
            }
        })
        .await?;
        Ok(())
    }

    async fn split(&self, requests: &Requests, pods: &show::Pods) -> Result<()> {
        self.screen
            .heading("Half to west's own pool, half to the import");
        self.west
            .apply_yaml(include_str!(
                "../../../../../config/samples/route-halves.yaml"
            ))
            .await?;
        eventually("answers from both clusters", SOON, async || {
            let counts = show::count(requests, pods, 10).await;
            match counts.map_err(|error| format!("{error:#}"))? {
                counts if counts.len() == 2 => Ok(()),
                counts => Err(format!("{counts:?}")),
            }
        })
        .await?;
        let counts = show::count(requests, pods, 200).await?;
        println!("  200 requests: {}", show::counted(&counts));
        isthmus::install_route(self.west).await?;
        Ok(())
    }

    async fn withdraw(&self, requests: &Requests) -> Result<()> {
        self.screen.heading("Withdrawal: the annotation goes");
        let begin = Instant::now();
        let annotation = "inference.networking.x-k8s.io/export-";
        self.annotate(self.east, annotation).await?;
        answered(requests, 500).await?;
        let took = screen::short(begin.elapsed());
        println!(
            "  after {took} the import is gone and a request is answered 500 Internal Server Error"
        );
        isthmus::export(self.east).await?;
        answered(requests, 200).await?;
        println!("  exported again: 200");
        Ok(())
    }
}

/// Of each entry: cluster, mode, and where its endpoint picker is.
const ENTRIES: &str = "jsonpath={range .status.clusters[*]}{.name}: {.routingMode}, endpoint picker at \
     {.endpointPicker.service[0].addresses[0]}:{.endpointPicker.service[0].ports[0].number}{\"\\n\"}{end}";

/// Waits until a request gets this status.
async fn answered(requests: &Requests, status: u16) -> Result<()> {
    eventually(&format!("{status} from west's gateway"), SOON, async || {
        let answer = requests.chat(isthmus::POOL, "hello").await;
        match answer.map_err(|error| error.to_string())? {
            answer if answer.status == status => Ok(()),
            answer => Err(format!("{}: {}", answer.status, answer.text())),
        }
    })
    .await?;
    Ok(())
}

/// Which cluster each model server is in.
async fn pods_by_name(clusters: &[&Cluster]) -> Result<BTreeMap<String, String>> {
    let mut by_name = BTreeMap::new();
    for cluster in clusters {
        let pods: Api<Pod> = Api::namespaced(cluster.client(), isthmus::POOL_NAMESPACE);
        let params = ListParams::default().labels("app=llama");
        for pod in pods
            .list(&params)
            .await
            .context("listing model servers")?
            .items
        {
            by_name.insert(
                pod.metadata.name.unwrap_or_default(),
                cluster.name().to_owned(),
            );
        }
    }
    Ok(by_name)
}
