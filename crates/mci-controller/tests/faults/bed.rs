//! Scripted clusters, a controller over them, and waiting with a limit.

use std::{collections::BTreeMap, fmt::Display, net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use apiserver_sim::{Authority, Call, IMPORTS, Server, condition, free_address};
use clap::Parser;
use mci_controller::Args;
use process::Shutdown;
use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

/// Namespace of the tests' pools.
pub(crate) const NS: &str = "ml";
/// Namespace of a home cluster that holds lease and inventory.
const HOME_NS: &str = "default";
/// Long enough for what takes a second, on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(20);
/// Longer than any delay of the controller for further changes: an export has a second to settle.
const QUIET: Duration = Duration::from_secs(2);
/// Period of the checks for a condition.
pub(crate) const POLL_PERIOD: Duration = Duration::from_millis(10);

/// Clusters and a controller.
pub(crate) struct Bed {
    servers: BTreeMap<String, Server>,
    directory: TempDir,
    flags: Vec<String>,
    /// Kubeconfig of the home cluster; without one the controller runs alone.
    home: Option<PathBuf>,
    controller: Option<Controller>,
}

struct Controller {
    admin: SocketAddr,
    shutdown: Shutdown,
    task: JoinSet<Result<()>>,
}

// === impl Bed ===

impl Bed {
    /// Clusters of these names: each has the namespace, and an EPP behind 192.0.2.1, 192.0.2.2, …
    pub(crate) fn new(names: &[&str]) -> Result<Self> {
        Self::make(names, None)
    }

    /// The same, over TLS, where HTTP/2 is spoken.
    pub(crate) fn with_tls(names: &[&str]) -> Result<Self> {
        Self::make(names, Some(&Authority::make()?))
    }

    fn make(names: &[&str], authority: Option<&Authority>) -> Result<Self> {
        let mut bed = Self {
            servers: BTreeMap::new(),
            directory: tempfile::tempdir().context("a directory")?,
            flags: Vec::new(),
            home: None,
            controller: None,
        };
        for (position, name) in names.iter().enumerate() {
            let mut builder = Server::builder(name);
            if let Some(authority) = authority {
                builder = builder.tls(authority);
            }
            let server = builder.start()?;
            server.add_epp(NS, &format!("192.0.2.{}", position + 1));
            bed.servers.insert((*name).to_owned(), server);
            bed.admit(name)?;
        }
        Ok(bed)
    }

    /// The same, with a controller that runs and has opened its gate.
    pub(crate) async fn running(names: &[&str]) -> Result<Self> {
        let mut bed = Self::new(names)?;
        bed.start().await?;
        Ok(bed)
    }

    /// Flags of the controllers to be started.
    pub(crate) fn flags(&mut self, flags: &[&str]) {
        self.flags = flags.iter().map(ToString::to_string).collect();
    }

    /// Makes a cluster home to the controllers to be started: of these, the one that has the lease writes.
    pub(crate) fn settle(&mut self, name: &str) -> Result<()> {
        // no member's: a scan skips such files
        let file = self.directory.path().join(".home");
        std::fs::write(&file, self.server(name).kubeconfig()).context("writing a kubeconfig")?;
        self.home = Some(file);
        Ok(())
    }

    pub(crate) fn server(&self, name: &str) -> &Server {
        &self.servers[name]
    }

    pub(crate) fn servers(&self) -> impl Iterator<Item = &Server> {
        self.servers.values()
    }

    fn file(&self, member: &str) -> PathBuf {
        self.directory.path().join(format!("{member}.yaml"))
    }

    /// Puts a cluster's credentials into the directory.
    pub(crate) fn admit(&self, name: &str) -> Result<()> {
        self.admit_as(name, name)
    }

    /// The same under another name.
    pub(crate) fn admit_as(&self, member: &str, server: &str) -> Result<()> {
        // a file appears whole: beside the directory there is no other place on the same file system
        let draft = self.directory.path().join(format!(".{member}"));
        std::fs::write(&draft, self.server(server).kubeconfig()).context("writing a kubeconfig")?;
        std::fs::rename(draft, self.file(member)).context("placing a kubeconfig")
    }

    pub(crate) fn dismiss(&self, member: &str) -> Result<()> {
        std::fs::remove_file(self.file(member)).context("removing a kubeconfig")
    }

    /// Starts a controller and waits until it is ready.
    pub(crate) async fn start(&mut self) -> Result<()> {
        let admin = free_address()?;
        let directory = self.directory.path().display().to_string();
        let mut arguments = vec![
            "mci-controller".to_owned(),
            "--kubeconfig-dir".to_owned(),
            directory,
            "--allow-plain-http".to_owned(),
            "--admin-address".to_owned(),
            admin.to_string(),
        ];
        match &self.home {
            None => arguments.push("--leader-elect=false".to_owned()),
            Some(file) => arguments.extend([
                "--home-kubeconfig".to_owned(),
                file.display().to_string(),
                "--namespace".to_owned(),
                HOME_NS.to_owned(),
            ]),
        }
        arguments.extend(self.flags.iter().cloned());
        let args = Args::try_parse_from(arguments).context("the flags")?;
        let shutdown = Shutdown::manual();
        let mut task = JoinSet::new();
        task.spawn(mci_controller::run(args, shutdown.clone()));
        self.controller = Some(Controller {
            admin,
            shutdown,
            task,
        });
        let deadline = Instant::now() + Duration::from_mins(1);
        loop {
            let answer = self.admin("/readyz").await;
            if answer.as_ref().is_ok_and(|(status, _)| *status == 200) {
                return Ok(());
            }
            if let Some(ended) = self
                .controller
                .as_mut()
                .and_then(|one| one.task.try_join_next())
            {
                bail!("the controller ended: {ended:?}");
            }
            ensure!(
                Instant::now() < deadline,
                "the controller is not ready: {answer:?}"
            );
            sleep(POLL_PERIOD).await;
        }
    }

    /// Stops the controller as SIGTERM does.
    pub(crate) async fn stop(&mut self) -> Result<()> {
        let mut controller = self.controller.take().context("no controller runs")?;
        controller.shutdown.drain.cancel();
        let ended = timeout(SOON, controller.task.join_next()).await;
        ended.context("it does not end")?.context("no task")??
    }

    /// A GET on the controller's admin port: status and body.
    pub(crate) async fn admin(&self, path: &str) -> Result<(u16, String)> {
        let admin = self
            .controller
            .as_ref()
            .context("no controller runs")?
            .admin;
        let exchange = async {
            let mut stream = TcpStream::connect(admin).await?;
            let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
            anyhow::Ok((status.context("no status")?, answer))
        };
        timeout(SOON, exchange)
            .await
            .context("the admin port does not answer")?
    }

    /// The value of a counter: `mci_patches_total{cluster="a",result="ok"}`; 0 while it is absent.
    pub(crate) async fn counter(&self, series: &str) -> Result<u64> {
        let (_, page) = self.admin("/metrics").await?;
        let value = page
            .lines()
            .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        match value {
            Some(value) => value.trim().parse().with_context(|| series.to_owned()),
            None => Ok(0),
        }
    }

    /// The sum of all counters that begin so.
    pub(crate) async fn metric_sum(&self, prefix: &str) -> Result<u64> {
        let (_, page) = self.admin("/metrics").await?;
        let lines = page.lines().filter(|line| line.starts_with(prefix));
        let samples = lines.filter_map(|line| line.rsplit_once(' '));
        let values = samples.map(|(series, value)| {
            let value: u64 = value.trim().parse().with_context(|| series.to_owned())?;
            anyhow::Ok(value)
        });
        values.sum()
    }

    /// Waits until the series that begin so have counted this many, in all.
    pub(crate) async fn counted(&self, prefix: &str, least: u64) -> Result<()> {
        let what = format!("{prefix} counts {least}");
        until_async(&what, SOON, async || {
            let found = self.metric_sum(prefix).await?;
            ensure!(found >= least, "{found}");
            Ok(())
        })
        .await
    }

    /// The answer of `/debug/explain` for a pool.
    pub(crate) async fn explained(&self, pool: &str) -> Result<Value> {
        let (status, page) = self.admin(&format!("/debug/explain/{NS}/{pool}")).await?;
        ensure!(status == 200, "{page}");
        let start = page.find('{').context("no JSON")?;
        let end = page.rfind('}').context("no JSON")? + 1;
        Ok(serde_json::from_str(
            page.get(start..end).unwrap_or_default(),
        )?)
    }

    /// The rows of `/debug/clusters` by name.
    pub(crate) async fn clusters(&self) -> Result<BTreeMap<String, Value>> {
        let (_, page) = self.admin("/debug/clusters").await?;
        let body = page.split("\r\n\r\n").nth(1).unwrap_or_default();
        // the answer may be chunked: the lengths of the chunks surround the object
        let start = body.find('{').unwrap_or(0);
        let end = body.rfind('}').map_or(0, |at| at + 1);
        let page: Value = serde_json::from_str(body.get(start..end).unwrap_or_default())?;
        let rows = page["clusters"].as_array().cloned().unwrap_or_default();
        let named = rows
            .into_iter()
            .map(|row| (row["name"].as_str().unwrap_or_default().to_owned(), row));
        Ok(named.collect())
    }

    /// Waits until nothing has been written for [`QUIET`], so that earlier writes and their echoes are done.
    pub(crate) async fn quiet(&self) -> Result<()> {
        until("nothing is written any more", SOON, || {
            let calls = self.servers().flat_map(Server::calls);
            let writes = calls.filter(Call::is_write);
            let last = writes.max_by_key(|call| call.at);
            match last {
                Some(call) if call.at.elapsed() < QUIET => Err(format!("{call:?}")),
                _ => Ok(()),
            }
        })
        .await
    }

    /// Waits until an import lists exactly these clusters.
    pub(crate) async fn entries(&self, importer: &str, pool: &str, wanted: &[&str]) -> Result<()> {
        let what = format!("the import of {pool} in {importer} lists {wanted:?}");
        until(&what, SOON, || {
            let found = self.server(importer).entries(NS, pool);
            if found == wanted {
                Ok(())
            } else {
                Err(format!("{found:?}"))
            }
        })
        .await
    }

    /// Waits until an entry has this condition, such as `False/CRDMissing`.
    pub(crate) async fn shows(
        &self,
        importer: &str,
        pool: &str,
        cluster: &str,
        type_: &str,
        wanted: &str,
        limit: Duration,
    ) -> Result<()> {
        let what = format!("the entry {cluster} of {pool} in {importer} has {type_} {wanted}");
        until(&what, limit, || {
            let entry = self.server(importer).entry(NS, pool, cluster);
            let found = entry.as_ref().and_then(|entry| condition(entry, type_));
            if found.as_deref() == Some(wanted) {
                Ok(())
            } else {
                Err(format!("{found:?} of {entry:?}"))
            }
        })
        .await
    }

    /// The import as it is, without what only time changes.
    pub(crate) fn import(&self, importer: &str, pool: &str) -> Option<Value> {
        let mut import = self.server(importer).get(&IMPORTS, NS, pool)?;
        for field in [
            "managedFields",
            "resourceVersion",
            "creationTimestamp",
            "uid",
        ] {
            if let Some(meta) = import.get_mut("metadata").and_then(Value::as_object_mut) {
                meta.remove(field);
            }
        }
        drop_times(&mut import);
        Some(import)
    }

    /// The resource version of an import, which any write moves.
    pub(crate) fn version(&self, importer: &str, pool: &str) -> Option<Value> {
        let import = self.server(importer).get(&IMPORTS, NS, pool)?;
        import.pointer("/metadata/resourceVersion").cloned()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let Some(controller) = &self.controller {
            controller.shutdown.now.cancel();
        }
    }
}

/// Waits for a condition; the error has what was last seen.
pub(crate) async fn until<T, E: Display>(
    what: &str,
    limit: Duration,
    mut poll: impl FnMut() -> Result<T, E>,
) -> Result<T> {
    let deadline = Instant::now() + limit;
    loop {
        match poll() {
            Ok(value) => return Ok(value),
            Err(seen) if Instant::now() >= deadline => {
                bail!("not within {limit:?}: {what}; seen: {seen}")
            }
            Err(_) => sleep(POLL_PERIOD).await,
        }
    }
}

/// The same, with an asynchronous check.
pub(crate) async fn until_async<T>(
    what: &str,
    limit: Duration,
    mut poll: impl AsyncFnMut() -> Result<T>,
) -> Result<T> {
    let deadline = Instant::now() + limit;
    loop {
        match poll().await {
            Ok(value) => return Ok(value),
            Err(seen) if Instant::now() >= deadline => {
                bail!("not within {limit:?}: {what}; seen: {seen:#}")
            }
            Err(_) => sleep(POLL_PERIOD).await,
        }
    }
}

/// Checks that a condition holds all the time.
pub(crate) async fn stays<E: Display>(
    what: &str,
    time: Duration,
    mut poll: impl FnMut() -> Result<(), E>,
) -> Result<()> {
    let deadline = Instant::now() + time;
    while Instant::now() < deadline {
        if let Err(seen) = poll() {
            bail!("did not stay: {what}; seen: {seen}");
        }
        sleep(POLL_PERIOD).await;
    }
    Ok(())
}

/// An error with what was seen, unless `good`.
pub(crate) fn check(good: bool, seen: impl FnOnce() -> String) -> Result<(), String> {
    if good { Ok(()) } else { Err(seen()) }
}

fn drop_times(value: &mut Value) {
    match value {
        Value::Object(object) => {
            object.remove("lastTransitionTime");
            object.values_mut().for_each(drop_times);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_times),
        _ => {}
    }
}
