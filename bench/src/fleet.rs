//! Many scripted clusters, and when what was applied in them.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use apiserver_sim::{Authority, EPP, Fault, IMPORTS, POOLS, Rule, SERVICES, Server, Verb};
use memchr::memmem;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::{Bare, Controller};

/// Namespace of all pools.
pub const NS: &str = "ml";

/// Writes are held in these servers, each by a fault of this number.
#[must_use]
pub struct Hold<'a>(Vec<(&'a Server, u64)>);

/// Some servers are in trouble, each of its own kind; they have these names.
#[must_use]
pub struct Trouble<'a> {
    hung: &'a Server,
    faults: Hold<'a>,
}

/// How late a slow member answers a write: below the controller's deadline of 5 s.
const SLOW: Duration = Duration::from_secs(2);
/// Between two looks at who has applied an event. When each did is known to the instant, whenever it is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// How a fleet is made.
#[derive(Clone, Copy, Debug)]
pub struct FleetOptions {
    /// Clusters.
    pub members: usize,
    /// Whether they speak TLS.
    pub tls: bool,
    /// How late each answer is: a network, and an API server that works.
    pub late: Duration,
}

/// Clusters, and a directory with their credentials.
pub struct Fleet {
    servers: Vec<Arc<Server>>,
    directory: TempDir,
    logs: PathBuf,
    program: PathBuf,
}

// === impl Fleet ===

impl Fleet {
    /// Starts the servers; each has the namespace and an EPP.
    /// # Errors
    /// When one does not start.
    pub fn start(options: FleetOptions, program: &Path, logs: &Path) -> Result<Self> {
        let authority = if options.tls {
            Some(Authority::make()?)
        } else {
            None
        };
        let directory = tempfile::tempdir().context("a directory")?;
        let mut servers = Vec::new();
        for number in 0..options.members {
            let name = format!("m{number:04}");
            let mut builder = Server::builder(&name).late(options.late);
            if let Some(authority) = &authority {
                builder = builder.tls(authority);
            }
            let server = builder.start()?;
            server.add_epp(NS, "192.0.2.1");
            servers.push(Arc::new(server));
        }
        let fleet = Self {
            servers,
            directory,
            logs: logs.to_owned(),
            program: program.to_owned(),
        };
        for number in 0..options.members {
            fleet.admit(number)?;
        }
        Ok(fleet)
    }

    /// All servers.
    pub fn servers(&self) -> &[Arc<Server>] {
        &self.servers
    }

    fn file(&self, number: usize) -> Result<PathBuf> {
        let server = self.servers.get(number).context("no such member")?;
        Ok(self
            .directory
            .path()
            .join(format!("{}.yaml", server.name())))
    }

    /// Puts a member's credentials into the directory.
    /// # Errors
    /// When the file cannot be written.
    pub fn admit(&self, number: usize) -> Result<()> {
        let file = self.file(number)?;
        let server = self.servers.get(number).context("no such member")?;
        let draft = self.directory.path().join(format!(".{}", server.name()));
        std::fs::write(&draft, server.kubeconfig()).context("writing a kubeconfig")?;
        std::fs::rename(draft, file).context("placing a kubeconfig")
    }

    /// Takes them away.
    /// # Errors
    /// When there are none.
    pub fn dismiss(&self, number: usize) -> Result<()> {
        std::fs::remove_file(self.file(number)?).context("removing a kubeconfig")
    }

    /// Starts a controller on the fleet: under a lease in this home cluster, or alone and without one.
    /// # Errors
    /// When it does not start.
    pub fn controller(&self, name: &str, home: Option<&str>) -> Result<Controller> {
        self.controller_with(name, home, &[])
    }

    /// The same with more flags.
    /// # Errors
    /// When it does not start.
    pub fn controller_with(
        &self,
        name: &str,
        home: Option<&str>,
        flags: &[String],
    ) -> Result<Controller> {
        let mut all = vec![
            "--kubeconfig-dir".to_owned(),
            self.directory.path().display().to_string(),
            "--allow-plain-http".to_owned(),
        ];
        match home {
            Some(home) => all.extend(["--home-kubeconfig".to_owned(), home.to_owned()]),
            None => all.push("--leader-elect=false".to_owned()),
        }
        all.extend(flags.iter().cloned());
        Controller::start(&self.program, &all, self.logs.join(format!("{name}.log")))
    }

    /// Starts a bare client on the fleet: each change of a pool of the exporter makes it apply the next of these bodies to
    /// the imports of this name in all other members.
    /// # Errors
    /// When it does not start, or is not ready in time.
    pub async fn bare(
        &self,
        program: &Path,
        exporter: &Server,
        name: &str,
        bodies: &[String],
    ) -> Result<Bare> {
        let file = self.directory.path().join("bodies");
        let lines: String = bodies.iter().flat_map(|body| [body, "\n"]).collect();
        std::fs::write(&file, lines).context("writing the bodies")?;
        let flags = [
            (
                "--kubeconfig-dir",
                self.directory.path().display().to_string(),
            ),
            ("--exporter", exporter.name().to_owned()),
            ("--key", format!("{NS}/{name}")),
            ("--bodies", file.display().to_string()),
        ];
        let flags = flags.into_iter();
        let flags: Vec<String> = flags
            .flat_map(|(flag, value)| [flag.to_owned(), value])
            .collect();
        Bare::start(program, &flags, &self.logs.join("bare.log")).await
    }

    /// Names of `keys` pools, each exported by `exporters` members one after the other.
    pub fn export(&self, keys: usize, exporters: usize) {
        for key in 0..keys {
            for step in 0..exporters {
                if let Some(server) = self.exporter(key, step, exporters) {
                    server.export(NS, &pool(key));
                }
            }
        }
    }

    /// The member that exports a key as its `step`th exporter.
    pub fn exporter(&self, key: usize, step: usize, exporters: usize) -> Option<&Arc<Server>> {
        let number = (key * exporters + step) % self.servers.len().max(1);
        self.servers.get(number)
    }

    /// Waits until every import of these keys is there and complete.
    /// # Errors
    /// When that takes too long.
    pub async fn settled(
        &self,
        keys: usize,
        exporters: usize,
        limit: Duration,
    ) -> Result<Duration> {
        let start = Instant::now();
        loop {
            let looked = Instant::now();
            let missing = self.missing(keys, exporters);
            if missing == 0 {
                return Ok(start.elapsed());
            }
            ensure!(
                start.elapsed() < limit,
                "{missing} imports are missing or incomplete after {limit:?}"
            );
            // looking is work too, and on the same machine: a hundred thousand imports are a gigabyte
            sleep((looked.elapsed() * 10).max(Duration::from_millis(100))).await;
        }
    }

    /// Imports that are not there, or do not list all other exporters.
    pub fn missing(&self, keys: usize, exporters: usize) -> usize {
        let mut missing = 0;
        for (number, server) in self.servers.iter().enumerate() {
            for key in 0..keys {
                let exports = (0..exporters)
                    .any(|step| (key * exporters + step) % self.servers.len() == number);
                let wanted = exporters - usize::from(exports);
                // once in each entry; the managed fields have it as `"f:routingMode"`
                let found = server
                    .text(&IMPORTS, NS, &pool(key))
                    .map_or(0, |(_, text)| {
                        memmem::find_iter(&text, br#""routingMode""#).count()
                    });
                missing += usize::from(found != wanted);
            }
        }
        missing
    }

    /// Gives the EPP of a member another address: an event that concerns each import of what it exports.
    pub fn move_epp(&self, server: &Server, address: &str) {
        server.edit(&SERVICES, NS, EPP, |service| {
            service["status"]["loadBalancer"]["ingress"][0]["ip"] = address.into();
        });
    }

    /// Changes an exported pool in a way that concerns nobody: an event for who watches.
    pub fn touch_pool(&self, server: &Server, name: &str, stamp: &str) {
        server.edit(&POOLS, NS, name, |pool| {
            pool["metadata"]["annotations"]["isthmus.dev/bench"] = stamp.into();
        });
    }

    /// Each write on an import waits so much longer before the server does anything for it, until this is dropped.
    pub fn hold_writes(&self, wait: Duration) -> Hold<'_> {
        let held = self.servers.iter().map(|server| {
            let rule = Rule::all(Fault::Late(wait));
            let rule = rule.verb(Verb::Patch).resource(IMPORTS.plural);
            (server.as_ref(), server.add_fault(rule))
        });
        Hold(held.collect())
    }

    /// The last three members get into trouble, until this is dropped: one hangs, one never answers a write, and one
    /// answers it 2 s late. All others are told of nothing.
    /// # Errors
    /// When there are not so many.
    pub fn trouble(&self) -> Result<Trouble<'_>> {
        let [.., hung, deaf, slow] = &*self.servers else {
            bail!("no three members");
        };
        let writes = |fault| {
            let rule = Rule::all(fault).verb(Verb::Patch);
            rule.resource(IMPORTS.plural)
        };
        hung.hang();
        Ok(Trouble {
            hung,
            faults: Hold(vec![
                (deaf, deaf.add_fault(writes(Fault::Never))),
                (slow, slow.add_fault(writes(Fault::Late(SLOW)))),
            ]),
        })
    }

    /// Waits until a text stands in an import of all members but these: when it did in each.
    /// # Errors
    /// When that takes too long.
    pub async fn applied(
        &self,
        name: &str,
        text: &str,
        but: &[&str],
        limit: Duration,
    ) -> Result<Vec<Instant>> {
        let start = Instant::now();
        let finder = memmem::Finder::new(text.as_bytes());
        // each with when it was stored as last looked at
        let mut waiting: Vec<(&Arc<Server>, Option<Instant>)> = self
            .servers
            .iter()
            .filter(|server| !but.contains(&server.name()))
            .map(|server| (server, None))
            .collect();
        let mut times = Vec::with_capacity(waiting.len());
        loop {
            waiting.retain_mut(|(server, seen)| {
                let changed = server.changed_at(&IMPORTS, NS, name);
                if std::mem::replace(seen, changed) == changed {
                    return true;
                }
                let import = server.text(&IMPORTS, NS, name);
                let found = import.filter(|(_, import)| finder.find(import).is_some());
                times.extend(found.as_ref().map(|(at, _)| *at));
                found.is_none()
            });
            if waiting.is_empty() {
                return Ok(times);
            }
            ensure!(
                start.elapsed() < limit,
                "{} members do not have {text} after {limit:?}",
                waiting.len()
            );
            sleep(LOOK).await;
        }
    }

    /// When the last write on an import arrived, after an event.
    pub fn last_arrival(&self, event: Instant, name: &str) -> Duration {
        let servers = self.servers.iter();
        let arrivals = servers.filter_map(|server| server.last_write(name));
        let last = arrivals.max().unwrap_or(event);
        last.saturating_duration_since(event)
    }

    /// A cluster for the lease, and a kubeconfig for it.
    /// # Errors
    /// When it does not start.
    pub fn home(&self) -> Result<String> {
        let server = self.servers.first().context("no member")?;
        server.put(
            &apiserver_sim::NAMESPACES,
            serde_json::json!({"metadata": {"name": "isthmus-system"}}),
        );
        let file = self.logs.join("home.yaml");
        std::fs::write(&file, server.kubeconfig()).context("writing a kubeconfig")?;
        Ok(file.display().to_string())
    }

    /// Writes that all servers took, and how many of them changed nothing.
    pub fn writes(&self) -> (u64, u64) {
        let servers = self.servers.iter();
        servers.fold((0, 0), |(writes, idle), server| {
            let all = server.writes("inferencepoolimports") + server.writes("inferencepools");
            (writes + all, idle + server.idle_writes())
        })
    }
}

// === impl Trouble ===

impl Trouble<'_> {
    /// Who is in trouble.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let faulty = self.faults.0.iter().map(|(server, _)| server.name());
        std::iter::once(self.hung.name()).chain(faulty)
    }
}

impl Drop for Trouble<'_> {
    fn drop(&mut self) {
        self.hung.thaw();
    }
}

// === impl Hold ===

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        for (server, number) in &self.0 {
            server.remove_fault(*number);
        }
    }
}

/// Name of a pool.
pub fn pool(key: usize) -> String {
    format!("pool-{key:04}")
}
