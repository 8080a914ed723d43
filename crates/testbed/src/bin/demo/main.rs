//! The demos: two clusters, one exported pool, requests from the one to the other; or without Kubernetes, one endpoint
//! picker, three that share a Metadata-Center, or one with a Processor and a Router.
//! Started by `cargo xtask demo`.
#![allow(clippy::print_stdout, reason = "a terminal program")]

mod dynamo;
mod llm;
mod place;
mod screen;
mod show;
mod standalone;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use testbed::{Cluster, Inside, Requests, Testbed, eventually, isthmus};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

use crate::screen::Screen;

const EAST: &str = "east";
const WEST: &str = "west";
/// Several steps of several programs on a busy machine.
const SOON: Duration = Duration::from_mins(1);

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (demo, keep) = match words[..] {
        [] => (Kind::Clusters, false),
        ["--keep"] => (Kind::Clusters, true),
        ["epp"] => (Kind::Epp, false),
        ["epp", "--keep"] => (Kind::Epp, true),
        ["llm"] => (Kind::Llm, false),
        ["llm", "--keep"] => (Kind::Llm, true),
        ["dynamo"] => (Kind::Dynamo, false),
        ["dynamo", "--keep"] => (Kind::Dynamo, true),
        _ => {
            let given = words.join(" ");
            eprintln!("{given}: expected [epp|llm|dynamo] [--keep]; see cargo xtask demo --help");
            return ExitCode::from(64);
        }
    };
    let outcome = match demo {
        Kind::Clusters => testbed::enter()
            .context("entering namespaces")
            .and_then(|inside| until_interrupted(run(&inside, keep))),
        // on the machine itself: its addresses are for the user to try
        Kind::Epp => until_interrupted(standalone::run(keep)),
        Kind::Llm => until_interrupted(llm::run(keep)),
        Kind::Dynamo => until_interrupted(dynamo::run(keep)),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("\nerror: {error:#}");
            ExitCode::FAILURE
        }
    }
}

enum Kind {
    Clusters,
    Epp,
    Llm,
    Dynamo,
}

/// Runs the demo to its end, or to the first signal, which drops it and with it all that it started.
fn until_interrupted(demo: impl Future<Output = Result<()>>) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        tokio::select! {
            outcome = demo => outcome.map(|()| ExitCode::SUCCESS),
            signal = interrupted() => signal,
        }
    })
}

/// The exit code of a process that a signal ended, once one came.
async fn interrupted() -> Result<ExitCode> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let number = tokio::select! {
        _ = terminate.recv() => SignalKind::terminate(),
        _ = interrupt.recv() => SignalKind::interrupt(),
    };
    eprintln!("\nEnding.");
    let code = u8::try_from(128 + number.as_raw_value()).unwrap_or(1);
    Ok(ExitCode::from(code))
}

async fn run(inside: &Inside, keep: bool) -> Result<()> {
    let start = Instant::now();
    println!(
        "Isthmus: a request that enters cluster {WEST} is answered by a model server in cluster {EAST}."
    );
    let screen = Screen::new();

    screen.heading(
        "Two clusters: etcd, kube-apiserver, kube-controller-manager, a simulated node each",
    );
    let builder = isthmus::with_programs(Testbed::builder(inside))?;
    let testbed = builder
        .cluster(EAST)
        .cluster(WEST)
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

/// The clusters and where to say what happens in them.
struct Demo<'a> {
    screen: &'a Screen,
    east: &'a Cluster,
    west: &'a Cluster,
}

/// The URL of west's gateway.
async fn show(screen: &Screen, testbed: &Testbed) -> Result<String> {
    let demo = Demo {
        screen,
        east: testbed.cluster(EAST)?,
        west: testbed.cluster(WEST)?,
    };
    let url = Box::pin(demo.install()).await?;
    demo.export().await?;

    let requests = Requests::new(url.clone());
    let pods = pods_by_name(&[demo.east, demo.west]).await?;
    answered(&requests, 200).await?;
    screen.heading(&format!(
        "Requests into west's gateway, {url}: the route leads to the import"
    ));
    show::requests(&requests, &pods, 8).await?;
    screen.heading("The same as a stream: tokens as they come");
    show::stream(&requests, &pods).await?;

    demo.split(&requests, &pods).await?;
    demo.withdraw(&requests).await?;
    Ok(url)
}

impl Demo<'_> {
    /// Everything but the export; the URL of west's gateway.
    async fn install(&self) -> Result<String> {
        let Self { screen, east, west } = *self;
        screen.heading("Isthmus and a pool of three simulated model servers in each cluster");
        let join = async {
            anyhow::Ok(BTreeMap::from([
                (EAST.to_owned(), isthmus::join(east).await?),
                (WEST.to_owned(), isthmus::join(west).await?),
            ]))
        };
        let members = screen
            .step("both: accounts for the controller", join)
            .await?;
        let controller = isthmus::install_controller(west, &members);
        tokio::try_join!(
            screen.step("west: gateway", isthmus::install_gateway(west)),
            screen.step("west: mci-controller", controller),
            screen.step(
                "east: model servers and endpoint picker",
                isthmus::install_pool(east)
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
        let annotate = ["annotate", "inferencepool", "llama", "-n", "llm"];
        let annotate = [
            &annotate[..],
            &["inference.networking.x-k8s.io/export=ClusterSet"],
        ]
        .concat();
        self.screen.kubectl(self.east, &annotate).await?;
        eventually("a ready import in west", SOON, async || {
            let imports: Api<crd::InferencePoolImport> =
                Api::namespaced(self.west.client(), isthmus::POOL_NAMESPACE);
            let import = imports
                .get(isthmus::POOL)
                .await
                .map_err(|error| error.to_string())?;
            if crd::conditions::is_true(import.conditions(), crd::conditions::READY) {
                Ok(())
            } else {
                Err(format!("{:?}", import.conditions()))
            }
        })
        .await?;
        println!("  ready in west after {}\n", screen::short(begin.elapsed()));
        let get = ["get", "inferencepoolimport", "llama", "-n", "llm"];
        self.screen.kubectl(self.west, &get).await?;
        Ok(self
            .screen
            .kubectl(self.west, &[&get[..], &["-o", ENTRIES]].concat())
            .await?)
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
        let annotate = ["annotate", "inferencepool", "llama", "-n", "llm"];
        let annotate = [&annotate[..], &["inference.networking.x-k8s.io/export-"]].concat();
        let begin = Instant::now();
        self.screen.kubectl(self.east, &annotate).await?;
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
