//! The program: connects the inventory, the members and the planner.
//!
//! ```text
//!  sources ───► inventory ─► Supervisor ── Control ─► member tasks ─ updates ─┐
//!                               │ Planner ◄───────────────────────────────────┘
//!                               └─► Queues ─► writers (in the member tasks)
//! ```

mod debug;
mod election;
mod supervisor;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use axum::Router;
use process::{ConfigError, Health, Shutdown};
use prometheus_client::registry::Registry;
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
    task::JoinSet,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use self::supervisor::Supervisor;
use crate::{
    args::{Args, Command, Settings, check_sources},
    clusterset,
    events::{self, EventQueue, HomeRecorder, run_sender},
    explain,
    grid::{self, Directory, DocsUrl},
    home::HomeConfig,
    metrics::Metrics,
    questions::Questions,
};
use lease::Election;
use mci_inventory::{Home, Identities, Inventory, Records};
use moment::Clock;

/// Readiness part: the gate is open, so imports are written.
const GATE_PART: &str = "members-synced";
/// Readiness part: the home cluster has answered.
const HOME_PART: &str = "home-cluster";
/// Inventory events that may wait for the supervisor.
const INVENTORY_EVENTS: usize = 64;
/// A loop without a turn for this long is stuck: `/healthz` fails, so that the kubelet restarts the pod (spec 7). Fifty
/// times the world's tick, five times the renewal of a lease.
const LOOP_LIMIT: Duration = Duration::from_secs(10);
/// Timeout for the end of the admin port, after the drain.
const ADMIN_END: Duration = Duration::from_secs(1);

/// Runs the controller until shutdown.
/// # Errors
/// Bad configuration ([`process::ConfigError`]), a port in use, or a task that ended unexpectedly.
pub async fn run(args: Args, shutdown: Shutdown) -> anyhow::Result<()> {
    if let Some(Command::Explain(asked)) = args.command {
        return explain::run_explain(asked, &mut std::io::stdout()).await;
    }
    #[cfg(feature = "seeded-faults")]
    if let Some(fault) = args.seeded_fault {
        crate::seeded::switch_on(fault);
    }
    let settings = Settings::try_from(args)?;
    let kubeconfig = settings.home.kubeconfig.as_deref();
    let home = HomeConfig::find(kubeconfig, settings.home.namespace.as_deref()).await?;
    if settings.needs_lease() && home.is_none() {
        return Err(no_home().into());
    }
    check_sources(&settings.sources, home.is_some())?;
    let address = settings.admin_address;
    let listener = process::listen(address)
        .with_context(|| format!("cannot listen on --admin-address {address}"))?;
    serve(settings, home, listener, shutdown).await
}

/// The same, on an open listener.
async fn serve(
    mut settings: Settings,
    home: Option<HomeConfig>,
    listener: TcpListener,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let health = Health::new(&[GATE_PART]);
    let clock = Clock::start();
    let (sender, inventory) = mpsc::channel(INVENTORY_EVENTS);
    let stop = CancellationToken::new();

    let mut tasks: JoinSet<anyhow::Result<()>> = JoinSet::new();
    let (questions, received_questions) = Questions::new();
    let directory = Directory::default();
    let docs = settings.docs_url.take();
    tasks.spawn(admin(
        listener,
        registry,
        health.clone(),
        pages(&metrics, directory.clone(), questions, docs),
        stop.clone(),
    ));
    let mut election = election::alone(settings.dry_run, clock);
    let mut recorder = None;
    let mut found = None;
    if let Some(config) = home {
        health.set(HOME_PART, false);
        let home = tokio::select! {
            home = connect_home(&config, &mut settings) => home?,
            Some(ended) = tasks.join_next() => {
                return ended.context("a task failed").and_then(|result| result);
            }
            () = shutdown.drain.cancelled() => return Ok(()),
        };
        health.set(HOME_PART, true);
        if settings.needs_lease() {
            election = election::begin(&home, &settings.policy.clusterset, clock, &health);
        }
        let lease = events::lease(&home.namespace, &settings.policy.clusterset);
        let reports = Arc::new(EventQueue::default());
        let sender = run_sender(
            reports.clone(),
            // no other queue sends to the home cluster
            Arc::default(),
            home.client.clone().into(),
            "home".to_owned(),
            election.claim(),
            clock,
        );
        tasks.spawn(async move {
            sender.await;
            Ok(())
        });
        recorder = Some(HomeRecorder::new(reports, lease));
        let identities = Identities::new(&home, &settings.policy.clusterset);
        found = Some((home, identities));
    }
    let (records, wanted) = watch::channel::<Option<Records>>(None);
    if let Some((_, identities)) = found.clone().filter(|_| !settings.dry_run) {
        let leading = election.claim();
        tasks.spawn(async move {
            identities.keep(wanted, leading, clock).await;
            Ok(())
        });
    }
    let (members, reissue) = Inventory::new(settings.sources.clone(), found);
    let watched = health.clone();
    tasks.spawn(async move {
        members
            .run(clock, sender, || {
                let pulse = watched.watch("inventory", LOOP_LIMIT);
                move || pulse.beat()
            })
            .await;
        Ok(())
    });
    let drain_timeout = settings.drain_timeout;
    let claim = election.claim();
    let mut supervisor = Supervisor::new(settings, clock, metrics, health.clone(), claim);
    supervisor.set_questions(received_questions);
    supervisor.set_directory(directory);
    supervisor = supervisor.with_records(records).with_reissue(reissue);
    if let Some(recorder) = recorder {
        supervisor.set_home_recorder(recorder);
    }
    let mut work = Box::pin(supervisor.run(inventory, shutdown.drain.clone()));

    let outcome = run_until_end(
        &mut work,
        &mut election,
        &mut tasks,
        &shutdown,
        &health,
        drain_timeout,
    )
    .await;
    // writes in flight end here, before the lease is released
    drop(work);
    tokio::select! {
        is_released = election.end() => warn_unless(is_released),
        () = shutdown.now.cancelled() => {}
    }
    stop.cancel();
    // requests still open do not matter
    let _ = timeout(ADMIN_END, tasks.join_next()).await;
    outcome
}

/// The next leader waits for the end of a Lease that was not given back.
fn warn_unless(is_released: bool) {
    if !is_released {
        tracing::warn!("no answer from the home cluster: the lease is not given back");
    }
}

/// What people look at on the admin port.
fn pages(
    metrics: &Metrics,
    directory: Directory,
    questions: Questions,
    docs: Option<DocsUrl>,
) -> Router {
    let overview = metrics.overview();
    debug::router(overview.clone())
        .merge(grid::router(overview, directory, questions.clone(), docs))
        .merge(explain::router(questions))
}

/// Waits until the work is drained after a shutdown, or until a task ends unexpectedly.
async fn run_until_end(
    work: &mut (impl Future<Output = anyhow::Result<()>> + Unpin),
    election: &mut Election,
    tasks: &mut JoinSet<anyhow::Result<()>>,
    shutdown: &Shutdown,
    health: &Health,
    drain_timeout: Duration,
) -> anyhow::Result<()> {
    tokio::select! {
        outcome = &mut *work => outcome,
        error = election.failed() => Err(error),
        Some(ended) = tasks.join_next() => {
            let outcome = ended.context("a task failed").and_then(|result| result);
            outcome.and_then(|()| Err(anyhow::anyhow!("the admin port or the inventory ended")))
        }
        () = shutdown.drain.cancelled() => {
            health.drain();
            tokio::select! {
                outcome = timeout(drain_timeout, work) => {
                    outcome.unwrap_or_else(|_| {
                        tracing::warn!("writes still in flight after --drain-timeout: ending");
                        Ok(())
                    })
                }
                () = shutdown.now.cancelled() => Ok(()),
            }
        }
    }
}

fn no_home() -> ConfigError {
    ConfigError::new(
        "--leader-elect without a home cluster",
        "a home cluster for the Lease, by --home-kubeconfig, a pod's service account or KUBECONFIG; or, for a controller \
         that runs alone, --leader-elect=false",
        "--home-kubeconfig /etc/isthmus/home.kubeconfig",
    )
}

/// Connects to the home cluster, and reads the settings there that no flag sets.
async fn connect_home(config: &HomeConfig, settings: &mut Settings) -> anyhow::Result<Home> {
    let home = config.connect().await?;
    settings.policy.own_namespace.clone_from(&home.namespace);
    if settings.instance_from_home {
        settings.policy.instance.clone_from(&home.uid);
    }
    if settings.clusterset_from_home {
        settings.policy.clusterset = {
            let profiles = settings.sources.profiles.as_ref();
            let namespace = profiles.map(|profiles| profiles.namespace.as_str());
            clusterset::discover(&home, namespace).await?
        };
    }
    Ok(home)
}

async fn admin(
    listener: TcpListener,
    registry: Registry,
    health: Health,
    extra: Router,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    process::admin::serve(listener, Arc::new(registry), health, extra, stop)
        .await
        .context("the admin port failed")
}
