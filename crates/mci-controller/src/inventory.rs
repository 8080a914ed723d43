//! Who the members are.
//!
//! ```text
//!  home itself        ┐
//!  kubeconfig files   ┤ complete lists           ┌ names, first come      ┌ most gone at once?
//!  labelled Secrets   ┴──────────────► Roster ───┴──────► Hold ───────────┴──► InventoryEvent ─► supervisor
//! ```
//! A source that cannot be read tells nothing: all its members stay. Nothing is judged before the identities that an
//! earlier run wrote have been read.

mod identities;
mod kubeconfig;
mod listing;
mod objects;
mod reading;
mod roster;
mod scan;
mod secrets;
mod tracker;

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use process::{ConfigError, Pulse};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};

pub(crate) use self::{
    identities::{Identities, Records},
    kubeconfig::Credentials,
    listing::{Access, InventoryEvent, Listing, Refused, Unused},
    reading::{MAX_ENTRY_LABELS, Reading},
};
use self::{listing::Listings, roster::Roster};
use crate::{home::Home, index::origin::SourceKind, name::ClusterName};

/// Where members come from.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources {
    /// Home is a member under this name.
    pub(crate) self_name: Option<ClusterName>,
    pub(crate) kubeconfig_dir: Option<PathBuf>,
    /// Labelled Secrets in home's namespace.
    pub(crate) secrets: bool,
    pub(crate) reading: Reading,
}

/// Sources tell complete lists; one waits for the next to be taken in.
const LISTS: usize = 4;

/// The inventory, before it runs.
pub(crate) struct Inventory {
    sources: Sources,
    /// Home, and the identities kept there.
    home: Option<(Home, Identities)>,
}

// === impl Sources ===

impl Sources {
    /// Whether there is any source, and a home for those that need one.
    /// # Errors
    /// What is missing.
    pub(crate) fn check(&self, home: bool) -> Result<(), ConfigError> {
        let example = "--home-kubeconfig /etc/isthmus/home.kubeconfig";
        if self.self_name.is_some() && !home {
            return Err(ConfigError::new("--self-name", "a home cluster", example));
        }
        if self.kinds(home).is_empty() {
            return Err(ConfigError::new(
                "no source of members",
                "--kubeconfig-dir, or a home cluster with --member-secrets, --self-name or --clusterprofile-namespace",
                "--kubeconfig-dir /var/run/isthmus/members",
            ));
        }
        Ok(())
    }

    fn kinds(&self, home: bool) -> Vec<SourceKind> {
        [
            (SourceKind::Home, self.self_name.is_some()),
            (SourceKind::File, self.kubeconfig_dir.is_some()),
            (SourceKind::Secret, self.secrets && home),
        ]
        .into_iter()
        .filter_map(|(kind, used)| used.then_some(kind))
        .collect()
    }
}

/// The loop shows that it goes round: five times within what `/healthz` allows.
const BEAT: Duration = Duration::from_secs(2);

// === impl Inventory ===

impl Inventory {
    pub(crate) fn new(sources: Sources, home: Option<(Home, Identities)>) -> Self {
        Self { sources, home }
    }

    /// Tells who the members are until nobody listens, or a source ends, which none does by itself. `watched` gives the
    /// pulse once home has told what is on record, which may take long.
    pub(crate) async fn run(
        self,
        events: mpsc::Sender<InventoryEvent>,
        watched: impl FnOnce() -> Pulse,
    ) {
        let recorded = match &self.home {
            Some((_, identities)) => identities.load().await,
            None => Records::new(),
        };
        let mut roster = Roster::new(self.sources.kinds(self.home.is_some()));
        if events
            .send(InventoryEvent::Recorded(recorded))
            .await
            .is_err()
        {
            return;
        }
        let (sender, mut told) = mpsc::channel(LISTS);
        let mut tasks = self.begin(sender);
        let pulse = watched();
        let mut beats = interval(BEAT);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let news = tokio::select! {
                _ = beats.tick() => {
                    pulse.beat();
                    continue;
                }
                Some((kind, listings)) = told.recv() => roster.take(kind, listings),
                Some(ended) = tasks.join_next() => {
                    let error = ended.err().map(|error| error.to_string());
                    tracing::error!(error, "a source of members ended");
                    return;
                }
            };
            for event in news {
                if events.send(event).await.is_err() {
                    return;
                }
            }
        }
    }

    /// Begins to read every source. At least one task stays.
    fn begin(self, told: mpsc::Sender<(SourceKind, Listings)>) -> JoinSet<()> {
        let Self { sources, home } = self;
        let Sources {
            self_name,
            kubeconfig_dir,
            secrets,
            reading,
        } = sources;
        let mut tasks = JoinSet::new();
        if let Some(directory) = kubeconfig_dir {
            tasks.spawn(scan::watch_directory(
                directory,
                reading.clone(),
                told.clone(),
            ));
        }
        if let Some((home, _)) = home {
            if let Some(name) = self_name {
                let listings = of_home(&name, &home, &reading);
                let told = told.clone();
                tasks.spawn(async move {
                    // it never changes
                    if told.send((SourceKind::Home, listings)).await.is_ok() {
                        told.closed().await;
                    }
                });
            }
            if secrets {
                tasks.spawn(secrets::watch_secrets(
                    home.client.clone(),
                    home.namespace.clone(),
                    reading.clone(),
                    told.clone(),
                ));
            }
        }
        tasks
    }
}

fn of_home(name: &ClusterName, home: &Home, reading: &Reading) -> Listings {
    let listing = Listing {
        member: name.to_string(),
        origin: reading.plain(SourceKind::Home, ""),
        access: Access::Ready(Box::new(Credentials::of_home(home.config.clone()))),
    };
    BTreeMap::from([(name.to_string(), Arc::new(listing))])
}
