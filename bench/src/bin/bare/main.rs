//! `bare --kubeconfig-dir DIR --exporter NAME --key NAMESPACE/NAME --bodies FILE`: the least that any controller must do
//! for an event, as a floor for what the controller takes. `bench` runs it on the fleet that it measured the controller on.
//!
//! One HTTP/2 connection to each member, by the libraries that the controller uses; on each a watch of imports, whose bytes
//! are dropped, and on the exporter's a watch of pools. Each line of that is an event: the next body of the file, which is
//! sent as it is, is applied to all other members at once, and the answers are dropped. It decodes, plans, compares and
//! repeats nothing: what fails ends it.
#![allow(clippy::print_stdout, reason = "a terminal program")]

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use bench::{BARE_READY, raise_open_files};
use bytes::Bytes;
use clap::Parser;
use futures::{StreamExt, TryStreamExt, stream, stream::FuturesUnordered};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use memchr::memchr_iter;
use tokio::{task::JoinSet, time::timeout};

use self::member::Member;

mod member;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Debug, Parser)]
struct Args {
    /// One kubeconfig per member, named after it.
    #[arg(long)]
    kubeconfig_dir: PathBuf,
    /// The member whose pools are watched, and which is sent nothing.
    #[arg(long)]
    exporter: String,
    /// The import, as NAMESPACE/NAME.
    #[arg(long)]
    key: String,
    /// What is sent: a line for each event.
    #[arg(long)]
    bodies: PathBuf,
}

/// Handshakes under way at once: more only wait for the same two threads.
const CONNECTING: usize = 16;
/// A handshake and the begin of a watch.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// All answers to one event: what the slowest fleet takes to store it, and much more.
const EVENT_TIMEOUT: Duration = Duration::from_mins(1);

fn main() -> ExitCode {
    // fails only where one is installed: then that one is used
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("the runtime");
    match runtime.and_then(|runtime| runtime.block_on(run(Args::parse()))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> Result<()> {
    let Args {
        kubeconfig_dir,
        exporter,
        key,
        bodies,
    } = args;
    raise_open_files()?;
    let (namespace, name) = key.split_once('/').context("--key: no slash")?;
    let bodies = Bytes::from(std::fs::read(&bodies).context("--bodies")?);
    let mut tasks = JoinSet::new();
    let (mut importers, mut pools) = (Vec::new(), None);
    let mut members = stream::iter(kubeconfigs(&kubeconfig_dir)?)
        .map(|file| async move {
            let connecting = timeout(CONNECT_TIMEOUT, Member::connect(&file, namespace, name));
            let member = connecting.await.context("no connection in time")?;
            member.with_context(|| file.display().to_string())
        })
        .buffer_unordered(CONNECTING);
    while let Some((member, connection)) = members.try_next().await? {
        tasks.spawn(async move {
            connection.await.context("a connection ended")?;
            bail!("a connection ended")
        });
        let watch = timeout(CONNECT_TIMEOUT, member.watch_imports()).await;
        let watch = watch.context("a watch does not begin")??;
        tasks.spawn(drop_all(watch));
        if member.name() == exporter {
            let watch = timeout(CONNECT_TIMEOUT, member.watch_pools()).await;
            // a connection ends with the last that could send on it
            pools = Some((watch.context("a watch does not begin")??, member));
        } else {
            importers.push(member);
        }
    }
    drop(members);
    let (pools, _exporter) = pools.with_context(|| format!("no kubeconfig of {exporter}"))?;
    // kept here too: what fails is to end this program, not the connections that end with what fails
    let importers: Arc<[Member]> = importers.into();
    tasks.spawn(fan_out(pools, Arc::clone(&importers), bodies));
    println!("{BARE_READY}");
    // none ends but by a failure, or at the end of the fleet
    match tasks.join_next().await {
        Some(ended) => ended.context("a task failed")?,
        None => Ok(()),
    }
}

fn kubeconfigs(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(directory).context("--kubeconfig-dir")?;
    let paths = entries.map(|entry| Ok(entry?.path()));
    let paths: Vec<PathBuf> = paths.collect::<Result<_>>()?;
    let files = paths.into_iter();
    Ok(files
        .filter(|path| path.extension().is_some_and(|end| end == "yaml"))
        .collect())
}

/// Reads a watch and keeps nothing.
async fn drop_all(mut watch: Incoming) -> Result<()> {
    while let Some(frame) = watch.frame().await {
        frame.context("a watch of imports broke")?;
    }
    bail!("a watch of imports ended")
}

/// Sends the next body to all for each line of the watch.
async fn fan_out(mut pools: Incoming, importers: Arc<[Member]>, bodies: Bytes) -> Result<()> {
    let mut lines = memchr_iter(b'\n', &bodies);
    let mut begin = 0;
    while let Some(frame) = pools.frame().await {
        let frame = frame.context("the watch of pools broke")?;
        let events = frame
            .data_ref()
            .map_or(0, |data| memchr_iter(b'\n', data).count());
        for _ in 0..events {
            let end = lines.next().context("more events than bodies")?;
            let body = bodies.slice(begin..end);
            begin = end + 1;
            let writes: FuturesUnordered<_> = importers
                .iter()
                .map(|member| member.apply(body.clone()))
                .collect();
            let all = timeout(EVENT_TIMEOUT, writes.try_for_each(|()| async { Ok(()) }));
            all.await.context("not all answers came")??;
        }
    }
    bail!("the watch of pools ended")
}
