//! What home knows of the members: the objects that define them, and those that the controller has met.

mod granted;
mod source;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::bail;
use crd::cluster_profile::ClusterProfile;
use futures::{StreamExt, stream};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Secret},
};
use kube::{ResourceExt, api::ListParams};
use mci_inventory::{Credentials, SECRET_SELECTORS, identities_name};
use mci_model::index::{origin::SourceKind, record::Record};

pub(crate) use self::granted::Granted;
#[cfg(test)]
pub(crate) use self::source::tests::mk_secret;
pub(crate) use self::source::{Definition, Source, kind_of, of_secret};
use self::source::{of_keys, of_profile};
use crate::{
    cluster::{CallError, Cluster},
    controller::{self, CONTROLLER, View},
    setup::{Files, Setup},
};

/// Secret whose keys are members' kubeconfigs, where the controller does not say that it mounts another.
pub(crate) const MEMBERS_SECRET: &str = "isthmus-members";
/// Members tried side by side.
const AT_ONCE: usize = 8;

/// A member that the controller has met.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Met {
    /// Empty: it was not identified.
    pub(crate) uids: BTreeSet<String>,
    /// The object that the controller has it by.
    pub(crate) source: String,
}

/// All of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// None: no Deployment of the controller was seen.
    pub(crate) setup: Option<Setup>,
    /// In the order in which they win a name; several may have the same.
    pub(crate) definitions: Vec<Definition>,
    /// Kinds of sources that were not looked at, and why.
    pub(crate) unseen: BTreeMap<SourceKind, String>,
    pub(crate) met: BTreeMap<String, Met>,
    /// Why the controller's record was not read.
    pub(crate) no_record: Option<String>,
}

// === impl Known ===

impl Known {
    /// What of it cannot be read is in [`unseen`](Self::unseen) and [`no_record`](Self::no_record).
    pub(crate) async fn read(home: &Cluster, namespace: &str, clusterset: &str) -> Self {
        let (deployment, met) = futures::join!(
            home.get::<Deployment>(namespace, CONTROLLER),
            record(home, namespace, clusterset),
        );
        let mut known = Self::default();
        match met {
            Ok(met) => known.met = met.unwrap_or_default(),
            Err(error) => known.no_record = Some(error.to_string()),
        }
        match deployment {
            Ok(Some(deployment)) => known.setup = Some(Setup::of(&deployment)),
            Ok(None) => {
                known.guess_setup(format!("no Deployment {CONTROLLER} in {namespace} says it"));
            }
            Err(error) => known.guess_setup(error.to_string()),
        }
        known.read_sources(home, namespace).await;
        known
            .definitions
            .sort_by(|a, b| (&a.source, &a.name).cmp(&(&b.source, &b.name)));
        known
    }

    /// The same with all that can be found out, before the membership of `name` changes.
    /// # Errors
    /// When the members' Secrets cannot be read.
    pub(crate) async fn read_to_change(
        home: &Cluster,
        namespace: &str,
        clusterset: &str,
        name: &str,
    ) -> anyhow::Result<Self> {
        let (mut known, view) = futures::join!(
            Self::read(home, namespace, clusterset),
            controller::view(home, namespace),
        );
        if let Some(problem) = known.unseen.get(&SourceKind::Secret) {
            bail!("{problem}");
        }
        if let Ok(view) = view {
            known.add_view(&view);
        }
        known.identify(name).await;
        Ok(known)
    }

    /// How the controller runs is not seen: it may have members of these kinds.
    fn guess_setup(&mut self, problem: String) {
        let kinds = [
            SourceKind::Home,
            SourceKind::File,
            SourceKind::ClusterProfile,
        ];
        let unseen = kinds.map(|kind| (kind, problem.clone()));
        self.unseen.extend(unseen);
    }

    async fn read_sources(&mut self, home: &Cluster, namespace: &str) {
        let setup = self.setup.clone();
        let setup = setup.as_ref();
        if let Some(setup) = setup
            && let Some(name) = setup.self_name.clone()
        {
            let uid = home.uid().await.ok().flatten();
            self.definitions.push(Definition {
                name,
                source: Source::Home,
                credentials: None,
                uid,
                accepts: None,
                granted: setup.self_granted(),
                ignored: Vec::new(),
            });
        }
        let mounted = match setup.map(|setup| &setup.files) {
            Some(Files::Secret(name)) => Some(name.as_str()),
            Some(Files::None) => None,
            Some(Files::Elsewhere(directory)) => {
                let problem = format!("{directory} of the controller's pod is no Secret");
                self.unseen.insert(SourceKind::File, problem);
                None
            }
            None => Some(MEMBERS_SECRET),
        };
        if let Some(name) = mounted {
            match home.get::<Secret>(namespace, name).await {
                Ok(secret) => self.definitions.extend(secret.iter().flat_map(of_keys)),
                Err(error) => {
                    self.unseen.insert(SourceKind::File, error.to_string());
                }
            }
        }
        if setup.is_none_or(|setup| setup.secrets) {
            match labelled(home, namespace).await {
                Ok(secrets) => self.definitions.extend(secrets.iter().map(of_secret)),
                Err(error) => {
                    self.unseen.insert(SourceKind::Secret, error.to_string());
                }
            }
        }
        if let Some(namespace) = setup.and_then(|setup| setup.profiles.as_deref()) {
            let params = ListParams::default();
            match home.list::<ClusterProfile>(Some(namespace), &params).await {
                Ok(profiles) => self
                    .definitions
                    .extend(profiles.iter().filter_map(of_profile)),
                // without its CRD there are none
                Err(error) if error.is_not_found() => {}
                Err(error) => {
                    let kind = SourceKind::ClusterProfile;
                    self.unseen.insert(kind, error.to_string());
                }
            }
        }
    }

    /// Adds what the controller says.
    fn add_view(&mut self, view: &View) {
        for member in &view.clusters {
            let met = self.met.entry(member.name.clone()).or_default();
            met.uids.extend(member.uid.clone());
            met.source.clone_from(&member.source);
        }
    }

    /// Finds out, with the members' own credentials, which clusters these are: `name`, and those that the controller has
    /// not identified. What does not answer stays unknown.
    async fn identify(&mut self, name: &str) {
        let met = &self.met;
        let is_unknown =
            |one: &Definition| met.get(&one.name).is_none_or(|met| met.uids.is_empty());
        let asked = self.definitions.iter_mut();
        let asked = asked.filter(|one| one.name == name || is_unknown(one));
        let asked = asked.map(async |one| {
            if let Some(Ok(credentials)) = &one.credentials {
                one.uid = uid_behind(credentials, &one.name).await;
            }
        });
        stream::iter(asked)
            .buffer_unordered(AT_ONCE)
            .collect::<()>()
            .await;
    }

    /// All clusters that have gone by this name.
    pub(crate) fn uids(&self, name: &str) -> BTreeSet<&str> {
        let met = self.met.get(name).into_iter().flat_map(|met| &met.uids);
        let definitions = self.definitions.iter().filter(|one| one.name == name);
        let tried = definitions.filter_map(|one| one.uid.as_ref());
        met.chain(tried).map(String::as_str).collect()
    }

    /// All names.
    pub(crate) fn names(&self) -> BTreeSet<&str> {
        let definitions = self.definitions.iter().map(|one| &one.name);
        definitions
            .chain(self.met.keys())
            .map(String::as_str)
            .collect()
    }

    /// Each member by the source that has its name, then those that the controller has met and no source names here.
    pub(crate) fn members(&self) -> Vec<Definition> {
        let mut members = BTreeMap::new();
        for definition in &self.definitions {
            members
                .entry(definition.name.clone())
                .or_insert_with(|| definition.clone());
        }
        for (name, met) in &self.met {
            members.entry(name.clone()).or_insert_with(|| Definition {
                name: name.clone(),
                source: Source::Met(met.source.clone()),
                credentials: None,
                uid: None,
                accepts: None,
                granted: Granted::default(),
                ignored: Vec::new(),
            });
        }
        members.into_values().collect()
    }
}

/// The uid of the cluster that credentials lead to, if it answers.
async fn uid_behind(credentials: &Credentials, name: &str) -> Option<String> {
    let config = Cluster::bounded(credentials.config().clone());
    let client = kube::Client::try_from(config).ok()?;
    let cluster = Cluster::behind(client, name, name);
    cluster.uid().await.ok().flatten()
}

/// The controller's ConfigMap of the members that it has met; none: there is no such ConfigMap.
pub(crate) async fn record(
    home: &Cluster,
    namespace: &str,
    clusterset: &str,
) -> Result<Option<BTreeMap<String, Met>>, CallError> {
    let name = identities_name(clusterset);
    let Some(found) = home.get::<ConfigMap>(namespace, &name).await? else {
        return Ok(None);
    };
    let lines = found.data.into_iter().flatten();
    let met = lines.map(|(name, line)| {
        let record: Option<Record> = serde_json::from_str(&line).ok();
        let met = record.map_or_else(Met::default, |record| Met {
            uids: [record.uid].into(),
            source: record.source,
        });
        (name, met)
    });
    Ok(Some(met.collect()))
}

async fn labelled(home: &Cluster, namespace: &str) -> Result<Vec<Secret>, CallError> {
    let mut found = BTreeMap::new();
    for selector in SECRET_SELECTORS {
        let params = ListParams::default().labels(selector);
        for secret in home.list::<Secret>(Some(namespace), &params).await? {
            found.insert(secret.name_any(), secret);
        }
    }
    Ok(found.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_belongs_to_the_first_source_and_what_was_met_comes_last() {
        let labelled = of_secret(&mk_secret("east", "https://10.0.0.1"));
        let key = Definition {
            source: Source::Key {
                namespace: "isthmus-system".to_owned(),
                secret: MEMBERS_SECRET.to_owned(),
                key: "east.yaml".to_owned(),
            },
            ..labelled.clone()
        };
        let met = |source: &str| Met {
            source: source.to_owned(),
            ..Met::default()
        };
        let known = Known {
            definitions: vec![key.clone(), labelled],
            met: [
                ("east".to_owned(), met("file east.yaml")),
                ("north".to_owned(), met("file north.yaml")),
            ]
            .into(),
            ..Known::default()
        };
        let members = known.members();
        assert_eq!(members[0], key);
        assert_eq!(members[1].source, Source::Met("file north.yaml".to_owned()));
        assert_eq!(members.len(), 2);
    }
}
