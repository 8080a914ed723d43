//! Members from ClusterProfiles, with the credentials that plugins issue for them.

use std::sync::Arc;

use crd::cluster_profile::{
    CLUSTER_NAME_PROPERTY, CONTROL_PLANE_HEALTHY, ClusterProfile, ClusterProfileStatus, JOINED,
};
use futures::{Stream, StreamExt};
use kube::{Api, Client, ResourceExt};
use tokio::{sync::mpsc, task::JoinSet, time::sleep};
use watch::{OddObject, Update};

use crate::client::watch_config;
use crate::{
    exec::{ExecError, Fresh, Runner},
    listing::{Access, Listing, Listings, Refused},
    objects::Objects,
    provider::ExecPlan,
    reading::Reading,
    renewals::{Renewals, Start},
    sources::ProfileSource,
};
use mci_model::{
    index::{
        member::Refusal,
        origin::{Origin, SourceKind},
    },
    name::ClusterName,
    text::{MAX_MESSAGE, clipped},
};
use moment::Clock;

/// Watches the profiles, and runs what they need.
pub(super) struct Profiles {
    source: ProfileSource,
    reading: Reading,
    clock: Clock,
    objects: Objects<Profile>,
    renewals: Renewals,
    runner: Runner,
    runs: JoinSet<Ended>,
}

/// A plugin that ended; without an outcome, nobody wanted it any more.
type Ended = (Start, Option<Result<Fresh, ExecError>>);

/// A profile, as it is read here.
#[derive(Debug)]
struct Profile {
    member: String,
    origin: Arc<Origin>,
    joined: bool,
    plan: Result<Arc<ExecPlan>, Refused>,
}

// === impl Profiles ===

impl Profiles {
    pub(super) fn new(source: ProfileSource, reading: Reading, clock: Clock) -> Self {
        let runner = Runner::new(reading.allow_plain_http);
        Self {
            source,
            reading,
            clock,
            objects: Objects::default(),
            renewals: Renewals::default(),
            runner,
            runs: JoinSet::new(),
        }
    }

    /// Sends all joined profiles whenever they change, until nobody receives them.
    pub(super) async fn run(
        self,
        client: Client,
        refused: mpsc::Receiver<ClusterName>,
        lists: mpsc::Sender<(SourceKind, Listings)>,
    ) {
        let api = Api::namespaced(client, &self.source.namespace);
        let updates = watch::objects::<ClusterProfile>(api, watch_config());
        self.follow(updates, refused, lists).await;
    }

    async fn follow(
        mut self,
        updates: impl Stream<Item = Update<ClusterProfile>>,
        mut refused: mpsc::Receiver<ClusterName>,
        lists: mpsc::Sender<(SourceKind, Listings)>,
    ) {
        let mut updates = std::pin::pin!(updates);
        let mut last: Option<Listings> = None;
        loop {
            self.start_due();
            if let Some(listings) = self
                .listings()
                .filter(|listings| last.as_ref() != Some(listings))
            {
                last = Some(listings.clone());
                if lists
                    .send((SourceKind::ClusterProfile, listings))
                    .await
                    .is_err()
                {
                    return;
                }
            }
            let now = self.clock.now();
            let next = self.renewals.next();
            tokio::select! {
                update = updates.next() => match update {
                    Some(update) => self.apply(update),
                    None => return,
                },
                Some(ended) = self.runs.join_next() => {
                    if let Ok((start, Some(outcome))) = ended {
                        self.ended(&start, outcome);
                    }
                }
                Some(name) = refused.recv() => self.refused(&name),
                () = sleep(next.map(|next| next.since(now)).unwrap_or_default()), if next.is_some() => {}
                () = lists.closed() => return,
            }
        }
    }

    fn apply(&mut self, update: Update<ClusterProfile>) {
        if let Update::Failed(failure) = &update {
            tracing::warn!(reason = failure.reason(), error = %failure,
                "cannot watch the ClusterProfiles: all members stay");
            return;
        }
        let (source, reading) = (&self.source, &self.reading);
        let read = |profile: ClusterProfile| Profile::read(&profile, source, reading);
        let unreadable = |odd: &OddObject| Profile::unreadable(odd, reading);
        self.objects.apply(update, read, unreadable);
        let Some(joined) = self.joined() else {
            return;
        };
        let plans = joined.filter_map(|(name, profile)| {
            let plan = profile.plan.as_ref().ok()?;
            Some((name.clone(), plan.clone()))
        });
        let plans = plans.collect();
        self.renewals.set(&plans, self.clock.now());
    }

    fn start_due(&mut self) {
        for start in self.renewals.due(self.clock.now()) {
            let runner = self.runner.clone();
            self.runs.spawn(async move {
                // what is unwanted leaves its place, or the queue for one
                let run = runner.run(&start.plan);
                let outcome = start.unwanted.run_until_cancelled(run).await;
                (start, outcome)
            });
        }
    }

    fn ended(&mut self, start: &Start, outcome: Result<Fresh, ExecError>) {
        let outcome = outcome.map_err(|error| {
            tracing::warn!(profile = start.profile, provider = start.plan.provider, %error, "no credentials");
            Refused {
                refusal: Refusal::BadCredentials,
                detail: error.to_string(),
            }
        });
        let now = self.clock.now();
        let (profile, at) = (&start.profile, start.at);
        self.renewals
            .ended(profile, at, outcome, now, &mut rand::rng());
    }

    /// A member's server refused its credentials.
    fn refused(&mut self, name: &ClusterName) {
        let now = self.clock.now();
        for (profile, known) in self.objects.all().into_iter().flatten() {
            if known.joined && known.member == name.as_str() {
                self.renewals.refused(profile, now, &mut rand::rng());
            }
        }
    }

    /// The joined profiles by name; none before they have been listed.
    fn joined(&self) -> Option<impl Iterator<Item = (&String, &Profile)>> {
        let all = self.objects.all()?.iter();
        Some(all.filter(|(_, profile)| profile.joined))
    }

    /// The same as objects of this source.
    fn listings(&self) -> Option<Listings> {
        let listing = |(name, profile): (&String, &Profile)| {
            let access = match &profile.plan {
                Ok(_) => self.renewals.access(name),
                Err(refused) => Access::Refused(refused.clone()),
            };
            let listing = Listing {
                member: profile.member.clone(),
                origin: profile.origin.clone(),
                access,
            };
            (name.clone(), Arc::new(listing))
        };
        Some(self.joined()?.map(listing).collect())
    }
}

// === impl Profile ===

impl Profile {
    fn read(profile: &ClusterProfile, source: &ProfileSource, reading: &Reading) -> (String, Self) {
        let name = profile.name_any();
        let nothing = ClusterProfileStatus::default();
        let status = profile.status.as_ref().unwrap_or(&nothing);
        let property = |name: &str| {
            let mut properties = status.properties.iter().flatten();
            let found = properties.find(|property| property.name == name);
            found.map(|property| property.value.as_str())
        };
        let denied = |type_: &str| {
            let mut conditions = status.conditions.iter().flatten();
            conditions.find(|condition| condition.type_ == type_ && condition.status == "False")
        };
        let mut origin = reading.origin(SourceKind::ClusterProfile, &profile.metadata, property);
        if let Some(condition) = denied(CONTROL_PLANE_HEALTHY) {
            // no message: it may change every few seconds, and each change goes through the whole controller
            let reason = clipped(&condition.reason, MAX_MESSAGE);
            let hint = format!("the ClusterProfile says {CONTROL_PLANE_HEALTHY}=False/{reason}");
            Arc::make_mut(&mut origin).hint = Some(hint);
        }
        let plan = source
            .providers
            .plan(status, source.allow_extensions, reading.allow_plain_http);
        let read = Self {
            member: property(CLUSTER_NAME_PROPERTY).unwrap_or(&name).to_owned(),
            origin,
            joined: denied(JOINED).is_none(),
            plan: plan.map(Arc::new),
        };
        (name, read)
    }

    /// A profile that is there and cannot be read.
    fn unreadable(odd: &OddObject, reading: &Reading) -> Self {
        Self {
            member: odd.name.clone(),
            origin: reading.unreadable(SourceKind::ClusterProfile, &odd.namespace, &odd.name),
            joined: true,
            plan: Err(Refused {
                refusal: Refusal::BadCredentials,
                detail: "the ClusterProfile does not decode".to_owned(),
            }),
        }
    }
}

#[cfg(test)]
mod tests;
