//! Runs the sources, and reports who the members are.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};

use crate::{
    home::Home,
    identities::{Identities, Records},
    kubeconfig::Credentials,
    listing::{Access, InventoryEvent, Listing, Listings},
    profiles::Profiles,
    reading::Reading,
    roster::Roster,
    scan, secrets,
    sources::Sources,
    statements::Statements,
};
use mci_model::{index::origin::SourceKind, name::ClusterName};
use moment::Clock;

/// Complete lists that wait to be merged: one of each source. A source whose list finds no room waits.
const LISTS: usize = 4;

/// Members whose credentials were refused and are not asked for yet; beyond, they ask again when they are refused again.
const REFUSED: usize = 64;

/// The loop shows that it goes round: five times within what `/healthz` allows.
const BEAT: Duration = Duration::from_secs(2);

/// Asks for new credentials of members whose server refuses those that they have. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Reissue(mpsc::Sender<ClusterName>);

/// The inventory, before it runs. Whoever owns the task that runs it has to notice its end.
pub struct Inventory {
    sources: Sources,
    /// Home, and the identities kept there.
    home: Option<(Home, Identities)>,
    refused: mpsc::Receiver<ClusterName>,
}

// === impl Reissue ===

impl Reissue {
    /// A member's server refused its credentials: the plugin that issued them runs again, if one did. Never waits.
    pub fn ask(&self, name: &ClusterName) {
        // one that finds no room is refused again soon
        let _ = self.0.try_send(name.clone());
    }
}

// === impl Inventory ===

impl Inventory {
    /// An inventory of these sources, and how to ask it for new credentials. Without `home` only kubeconfig files are read,
    /// and no identities are on record.
    pub fn new(sources: Sources, home: Option<(Home, Identities)>) -> (Self, Reissue) {
        let (asking, refused) = mpsc::channel(REFUSED);
        let inventory = Self {
            sources,
            home,
            refused,
        };
        (inventory, Reissue(asking))
    }

    /// Sends who the members are until nobody receives it, or a source ends, which none does by itself. `watch` is called
    /// once the identities are read, which may take long; what it returns is called in each round of the loop from then
    /// on, at least every 2 s.
    pub async fn run<B: Fn()>(
        self,
        clock: Clock,
        events: mpsc::Sender<InventoryEvent>,
        watch: impl FnOnce() -> B,
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
        let (sender, mut lists) = mpsc::channel(LISTS);
        let mut tasks = self.begin(clock, sender);
        let beat = watch();
        let mut beats = interval(BEAT);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let changes = tokio::select! {
                _ = beats.tick() => {
                    beat();
                    continue;
                }
                Some((kind, listings)) = lists.recv() => roster.reset(kind, listings),
                Some(ended) = tasks.join_next() => {
                    let error = ended.err().map(|error| error.to_string());
                    tracing::error!(error, "a source of members ended");
                    return;
                }
            };
            for event in changes {
                if events.send(event).await.is_err() {
                    return;
                }
            }
        }
    }

    /// Begins to read every source. At least one task stays.
    fn begin(self, clock: Clock, lists: mpsc::Sender<(SourceKind, Listings)>) -> JoinSet<()> {
        let Self {
            sources,
            home,
            refused,
        } = self;
        let Sources {
            self_name,
            self_statements,
            kubeconfig_dir,
            secrets,
            profiles,
            reading,
        } = sources;
        let mut tasks = JoinSet::new();
        if let Some(directory) = kubeconfig_dir {
            tasks.spawn(scan::watch_directory(
                directory,
                reading.clone(),
                lists.clone(),
            ));
        }
        if let Some((home, _)) = home {
            if let Some(name) = self_name {
                let listings = of_home(&name, &self_statements, &home, &reading);
                let lists = lists.clone();
                tasks.spawn(async move {
                    // it never changes
                    if lists.send((SourceKind::Home, listings)).await.is_ok() {
                        lists.closed().await;
                    }
                });
            }
            if secrets {
                tasks.spawn(secrets::watch_secrets(
                    home.client.clone(),
                    home.namespace.clone(),
                    reading.clone(),
                    lists.clone(),
                ));
            }
            if let Some(source) = profiles {
                let profiles = Profiles::new(source, reading, clock);
                tasks.spawn(profiles.run(home.client, refused, lists));
            }
        }
        tasks
    }
}

fn of_home(
    name: &ClusterName,
    statements: &Statements,
    home: &Home,
    reading: &Reading,
) -> Listings {
    let listing = Listing {
        member: name.to_string(),
        origin: reading.plain(SourceKind::Home, "", statements),
        access: Access::Ready(Box::new(Credentials::of_home(home.config.clone()))),
    };
    BTreeMap::from([(name.to_string(), Arc::new(listing))])
}
