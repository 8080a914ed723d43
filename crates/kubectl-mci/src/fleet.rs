//! Which clusters are looked at: those that the user names, else home's members, by the contexts that lead to them.

use std::collections::BTreeMap;

use anyhow::bail;
use crd::annotations::CLUSTER_NAME;
use futures::future::join_all;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{ResourceExt, api::ListParams};
use mci_inventory::{Credentials, SECRET_KEYS, SECRET_SELECTORS};

use crate::{
    args::{FleetArgs, HomeArgs, NamedContext},
    cluster::{CallError, Cluster},
    contexts::Contexts,
};

/// Secret whose keys are members' kubeconfigs, mounted by the controller.
pub(crate) const MEMBERS_SECRET: &str = "isthmus-members";

/// A member, as home names it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Joined {
    pub(crate) name: String,
    /// The object that names it.
    pub(crate) source: String,
    /// What the controller reaches it with; a text where that would be refused, none where it is not in a Secret.
    pub(crate) credentials: Option<Result<Box<Credentials>, String>>,
}

/// A cluster to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) name: String,
    /// None: no context leads there.
    pub(crate) context: Option<String>,
}

/// A cluster of the fleet, or why it cannot be looked at.
pub(crate) struct Look {
    pub(crate) target: Target,
    pub(crate) cluster: Result<Cluster, String>,
}

/// Home and what it knows, and the clusters.
pub(crate) struct Fleet {
    pub(crate) home: Cluster,
    /// Why they cannot be read, as a text.
    pub(crate) joined: Result<Vec<Joined>, String>,
    pub(crate) looks: Vec<Look>,
}

// === impl Fleet ===

impl Fleet {
    pub(crate) async fn of(args: &FleetArgs, contexts: &Contexts) -> anyhow::Result<Self> {
        let HomeArgs {
            home_context,
            home_namespace,
            clusterset,
        } = &args.home;
        let home_context = contexts.choose(home_context.as_deref(), "--home-context")?;
        for named in &args.contexts {
            contexts.choose(Some(&named.context), "--contexts")?;
        }
        let home = Cluster::connect(contexts, &home_context, &home_context).await?;
        let joined = members(&home, home_namespace, clusterset).await;
        if args.contexts.is_empty()
            && let Err(error) = &joined
        {
            bail!("{error}\nOr name the clusters to look at: --contexts east,west");
        }
        let known = joined.as_deref().unwrap_or_default();
        let targets = choose(&args.contexts, known, contexts, &home_context);
        let looks = targets.into_iter().map(async |target| {
            let cluster = match &target.context {
                Some(context) => Cluster::connect(contexts, context, &target.name)
                    .await
                    .map_err(|error| error.to_string()),
                None => Err(format!(
                    "{0}: no context of the kubeconfig leads there: name it, --contexts {0}=CONTEXT,…",
                    target.name
                )),
            };
            Look { target, cluster }
        });
        Ok(Self {
            looks: join_all(looks).await,
            joined: joined.map_err(|error| error.to_string()),
            home,
        })
    }
}

/// The members that home's Secrets name, and those that the controller has met.
pub(crate) async fn members(
    home: &Cluster,
    namespace: &str,
    clusterset: &str,
) -> Result<Vec<Joined>, CallError> {
    let mut members = BTreeMap::new();
    let record = format!("isthmus-mci-{clusterset}-members");
    let met: Option<ConfigMap> = home.get(namespace, &record).await?;
    for name in met.and_then(|met| met.data).into_iter().flatten() {
        let joined = Joined {
            name: name.0.clone(),
            source: format!("ConfigMap {namespace}/{record}"),
            credentials: None,
        };
        members.insert(name.0, joined);
    }
    // the later ones go before the earlier: a key of the mounted Secret has the name for as long as it is there
    for selector in SECRET_SELECTORS.iter().rev() {
        let params = ListParams::default().labels(selector);
        for secret in home.list::<Secret>(Some(namespace), &params).await? {
            let joined = of_secret(&secret);
            members.insert(joined.name.clone(), joined);
        }
    }
    let mounted: Option<Secret> = home.get(namespace, MEMBERS_SECRET).await?;
    for (key, bytes) in mounted.and_then(|secret| secret.data).into_iter().flatten() {
        let name = key
            .split_once('.')
            .map_or(&*key, |(name, _)| name)
            .to_owned();
        let joined = Joined {
            name: name.clone(),
            source: format!("key {key} of Secret {namespace}/{MEMBERS_SECRET}"),
            credentials: Some(read(&bytes.0)),
        };
        members.insert(name, joined);
    }
    Ok(members.into_values().collect())
}

fn of_secret(secret: &Secret) -> Joined {
    let named = secret.annotations().get(CLUSTER_NAME);
    let data = secret.data.as_ref();
    let bytes = data.and_then(|data| SECRET_KEYS.iter().find_map(|key| data.get(*key)));
    Joined {
        name: named.cloned().unwrap_or_else(|| secret.name_any()),
        source: format!(
            "Secret {}/{}",
            secret.namespace().unwrap_or_default(),
            secret.name_any()
        ),
        credentials: Some(bytes.map_or_else(
            || {
                Err(format!(
                    "it has none of the keys {}",
                    SECRET_KEYS.join(", ")
                ))
            },
            |bytes| read(&bytes.0),
        )),
    }
}

fn read(bytes: &[u8]) -> Result<Box<Credentials>, String> {
    let credentials = Credentials::parse(bytes, false);
    credentials.map(Box::new).map_err(|error| error.to_string())
}

/// Which clusters, by which contexts. Pure.
fn choose(
    named: &[NamedContext],
    joined: &[Joined],
    contexts: &Contexts,
    home_context: &str,
) -> Vec<Target> {
    if !named.is_empty() {
        let targets = named.iter().map(|one| Target {
            name: one
                .member
                .clone()
                .unwrap_or_else(|| member_behind(&one.context, joined, contexts)),
            context: Some(one.context.clone()),
        });
        return targets.collect();
    }
    if joined.is_empty() {
        return vec![Target {
            name: home_context.to_owned(),
            context: Some(home_context.to_owned()),
        }];
    }
    let context_of = |joined: &Joined| {
        if contexts.has(&joined.name) {
            return Some(joined.name.clone());
        }
        contexts
            .leading_to(&server_of(joined)?)
            .map(ToOwned::to_owned)
    };
    let targets = joined.iter().map(|joined| Target {
        name: joined.name.clone(),
        context: context_of(joined),
    });
    targets.collect()
}

/// The member that a context leads to, else the context's own name.
fn member_behind(context: &str, joined: &[Joined], contexts: &Contexts) -> String {
    let cluster = contexts.cluster(context).ok();
    let server = cluster.and_then(|cluster| cluster.server.as_deref());
    let server = server.map(|server| server.trim_end_matches('/'));
    let same = |one: &&Joined| {
        server_of(one).is_some_and(|found| Some(found.trim_end_matches('/')) == server)
    };
    let found = joined
        .iter()
        .find(|one| one.name == context)
        .or_else(|| joined.iter().find(same));
    found.map_or(context, |one| &one.name).to_owned()
}

fn server_of(joined: &Joined) -> Option<String> {
    let credentials = joined.credentials.as_ref()?.as_ref().ok()?;
    Some(credentials.server())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    const CONTEXTS: &str = r"
clusters:
- {name: e, cluster: {server: 'https://east.example.com:6443'}}
- {name: w, cluster: {server: 'https://west.example.com:6443'}}
contexts:
- {name: east, context: {cluster: e, user: u}}
- {name: admin@west, context: {cluster: w, user: u}}
current-context: admin@west
";

    fn mk_secret(name: &str, server: &str) -> Secret {
        let kubeconfig = json!({
            "clusters": [{"name": "x", "cluster": {"server": server}}],
            "users": [{"name": "x", "user": {"token": "t"}}],
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
            "current-context": "x",
        });
        let mut secret = Secret::default();
        secret.metadata.name = Some(name.to_owned());
        let bytes = ByteString(kubeconfig.to_string().into_bytes());
        secret.data = Some([("kubeconfig".to_owned(), bytes)].into());
        secret
    }

    fn mk_joined() -> Vec<Joined> {
        vec![
            of_secret(&mk_secret("east", "https://10.1.255.1:6443")),
            of_secret(&mk_secret("south", "https://south.example.com:6443")),
            of_secret(&mk_secret("west", "https://west.example.com:6443")),
        ]
    }

    #[test]
    fn a_member_is_reached_by_its_name_or_its_server() {
        let targets = choose(&[], &mk_joined(), &Contexts::parse(CONTEXTS), "admin@west");
        let found: Vec<_> = targets
            .iter()
            .map(|target| (target.name.as_str(), target.context.as_deref()))
            .collect();
        assert_eq!(
            found,
            [
                ("east", Some("east")),
                ("south", None),
                ("west", Some("admin@west"))
            ]
        );
    }

    #[rstest]
    #[case("admin@west", "west")]
    #[case("south=admin@west", "south")]
    #[case("east", "east")]
    fn a_named_context_has_the_name_of_its_member(#[case] text: &str, #[case] name: &str) {
        let named = [text.parse().expect("parses")];
        let targets = choose(&named, &mk_joined(), &Contexts::parse(CONTEXTS), "east");
        assert_eq!(targets[0].name, name);
    }

    #[test]
    fn without_members_home_alone_is_looked_at() {
        let targets = choose(&[], &[], &Contexts::parse(CONTEXTS), "east");
        assert_eq!(targets.len(), 1);
        assert_eq!(targets[0].context.as_deref(), Some("east"));
    }

    #[test]
    fn a_secret_that_cannot_be_used_is_a_member_all_the_same() {
        let mut secret = mk_secret("east", "http://10.0.0.1");
        let refused = of_secret(&secret).credentials.expect("read");
        assert!(refused.expect_err("refused").contains("http://"));
        secret.data = None;
        let refused = of_secret(&secret).credentials.expect("read");
        assert!(refused.expect_err("refused").contains("kubeconfig"));
        secret.metadata.annotations = Some([(CLUSTER_NAME.to_owned(), "north".to_owned())].into());
        assert_eq!(of_secret(&secret).name, "north");
    }
}
