//! Asks the clusters. What cannot be read is a fact too.

mod inside;

use std::collections::BTreeMap;

use futures::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::Deployment, authentication::v1::SelfSubjectReview, coordination::v1::Lease,
};
use kube::{Api, Client, api::PostParams};
use mci_inventory::Credentials;
use mci_model::index::origin::SourceKind;
use secrecy::ExposeSecret;

use super::{
    facts::{
        ClusterFacts, CredentialFacts, Facts, Held, HomeFacts, MemberFacts, Read, TokenFacts,
        Tried, Workload,
    },
    mode, tokens,
};
use crate::{
    args::HomeArgs,
    cluster::Cluster,
    controller,
    fleet::Fleet,
    known::{Definition, Known, Source},
    member::{Account, MemberRights, Subject},
    setup::Files,
    status,
};

/// Clusters and members looked at side by side.
const AT_ONCE: usize = 8;

pub(super) async fn gather(fleet: &Fleet, args: &HomeArgs) -> anyhow::Result<Facts> {
    let rights = MemberRights::read()?;
    let (home, seen) = futures::join!(home(fleet, args), status::gather(&fleet.looks, None));
    let default_mode = fleet.known.setup.as_ref().map(|setup| setup.default_mode);
    let clusters = fleet.looks.iter().map(async |look| {
        let name = &look.target.name;
        let subject = subject_of(name, fleet, &home, &rights);
        let pools = mode::asked_by_picker(name, &seen, default_mode);
        let inside = match &look.cluster {
            Ok(cluster) => {
                let read = inside::read(cluster, &rights, subject, &pools);
                let read = Box::pin(async { Ok(read.await) });
                cluster.in_time(read).await
            }
            Err(problem) => Err(problem.clone()),
        };
        ClusterFacts {
            name: name.clone(),
            context: look.target.context.clone(),
            inside,
        }
    });
    let clusters = stream::iter(clusters).buffered(AT_ONCE).collect().await;
    Ok(Facts {
        now: Timestamp::now(),
        home,
        clusters,
        seen,
    })
}

/// Who the controller is in a member; none: it is no member, or that is not known.
fn subject_of(
    name: &str,
    fleet: &Fleet,
    home: &HomeFacts,
    rights: &MemberRights,
) -> Option<Subject> {
    let member = home.members.iter().find(|member| member.name == name)?;
    match &member.credentials {
        CredentialFacts::OfHome => {
            let setup = fleet.known.setup.as_ref();
            let account = setup.and_then(|setup| setup.account.clone());
            let account = Account {
                namespace: home.namespace.clone(),
                name: account.unwrap_or_else(|| rights.account.name.clone()),
            };
            Some(account.subject())
        }
        CredentialFacts::InSecret(Ok(token)) => token.subject.clone(),
        CredentialFacts::InSecret(Err(_)) | CredentialFacts::Elsewhere => None,
    }
}

async fn home(fleet: &Fleet, args: &HomeArgs) -> HomeFacts {
    let HomeArgs {
        home_namespace: namespace,
        clusterset,
        ..
    } = args;
    let home = &fleet.home;
    let lease = mci_inventory::lease_name(clusterset);
    let (controller, lease, members) = futures::join!(
        workload(home, namespace, controller::CONTROLLER),
        home.get::<Lease>(namespace, &lease),
        members(&fleet.members, home, namespace),
    );
    let runs = matches!(&controller, Ok(Some(workload)) if workload.available > 0);
    let view = if runs {
        Some(controller::view(home, namespace).await)
    } else {
        None
    };
    let renewed = lease.map(|lease| {
        let spec = lease.and_then(|lease| lease.spec);
        spec.and_then(|spec| spec.renew_time).map(|at| at.0)
    });
    HomeFacts {
        context: home.context.clone(),
        namespace: namespace.clone(),
        clusterset: clusterset.clone(),
        controller,
        renewed: renewed.map_err(|error| error.to_string()),
        members,
        unseen: unseen(&fleet.known),
        view,
    }
}

/// A Deployment; its version is the tag of its first image.
pub(super) async fn workload(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
) -> Read<Option<Workload>> {
    let found = cluster.get::<Deployment>(namespace, name).await;
    let found = found.map_err(|error| error.to_string())?;
    Ok(found.map(|deployment| {
        let spec = deployment.spec.unwrap_or_default();
        let pod = spec.template.spec.unwrap_or_default();
        let image = pod.containers.into_iter().next().and_then(|one| one.image);
        let status = deployment.status.unwrap_or_default();
        Workload {
            available: status.available_replicas.unwrap_or(0),
            wanted: spec.replicas.unwrap_or(1),
            version: image.as_deref().map(tag).unwrap_or_default().to_owned(),
        }
    }))
}

/// The tag of an image; empty where it has none, or a digest alone.
fn tag(image: &str) -> &str {
    let image = image.split_once('@').map_or(image, |(name, _)| name);
    let (_, last) = image.rsplit_once('/').unwrap_or(("", image));
    last.split_once(':').map_or("", |(_, tag)| tag)
}

/// Sources that the controller has, by what is seen of it, and that could not be read.
fn unseen(known: &Known) -> Vec<String> {
    let setup = known.setup.as_ref();
    let mounted = setup.is_some_and(|setup| matches!(setup.files, Files::Secret(_)));
    let sources = [
        (SourceKind::File, mounted),
        (SourceKind::Secret, true),
        (SourceKind::ClusterProfile, setup.is_some()),
    ];
    let used = sources.iter().filter(|(_, used)| *used);
    used.filter_map(|(kind, _)| known.unseen.get(kind).cloned())
        .collect()
}

async fn members(members: &[Definition], home: &Cluster, namespace: &str) -> Vec<MemberFacts> {
    let facts = members.iter().map(async |one| MemberFacts {
        name: one.name.clone(),
        source: one.source.to_string(),
        held: held(one, &home.context, namespace),
        ignored: one.ignored.clone(),
        credentials: match (&one.source, &one.credentials) {
            (Source::Home, _) => CredentialFacts::OfHome,
            (_, None) => CredentialFacts::Elsewhere,
            (_, Some(Err(problem))) => CredentialFacts::InSecret(Err(problem.clone())),
            (_, Some(Ok(credentials))) => {
                CredentialFacts::InSecret(Ok(token_facts(credentials, &one.name).await))
            }
        },
    });
    stream::iter(facts).buffered(AT_ONCE).collect().await
}

/// The object that holds the name of a member; none if it is the Secret that `kubectl mci join` writes. Pure.
fn held(member: &Definition, home: &str, namespace: &str) -> Option<Held> {
    let source = &member.source;
    let renewal = match source {
        Source::Secret {
            namespace: of,
            name,
        } if *of == namespace && *name == member.name => return None,
        Source::Key { .. } | Source::Secret { .. } => {
            format!("put another kubeconfig into {source} (config/member-kubeconfig.sh makes one)")
        }
        Source::Profile { .. } => format!("have its fleet manager renew {source}"),
        Source::Home => "restart the controller, which has them from its pod".to_owned(),
        Source::Met(by) => format!("renew {by}"),
    };
    Some(Held {
        renewal,
        removal: source.removal(home),
        granted: member.granted.clone(),
    })
}

async fn token_facts(credentials: &Credentials, name: &str) -> TokenFacts {
    let config = credentials.config();
    let token = config.auth_info.token.as_ref();
    let token = token.map_or("", |token| token.expose_secret());
    let (tried, answered) = attempt(config, name).await;
    TokenFacts {
        server: credentials.server(),
        life: tokens::life(token),
        tried,
        subject: match tokens::account(token) {
            Some(account) => Some(account.subject()),
            None => match answered {
                Some(member) => subject(&member).await,
                None => None,
            },
        },
    }
}

/// One call with the controller's own credentials; the member, if it took them.
async fn attempt(config: &kube::Config, name: &str) -> (Tried, Option<Cluster>) {
    let Ok(client) = Client::try_from(Cluster::bounded(config.clone())) else {
        let problem = "certificates or keys do not decode".to_owned();
        return (Tried::Refused(problem), None);
    };
    let member = Cluster::behind(client, name, name);
    let tried = match member.uid().await {
        Ok(uid) => Tried::Works(uid),
        Err(error) if error.is_unauthorized() => {
            Tried::Refused("it is none of its own, or its account is gone".to_owned())
        }
        // it knows who asks, and rights are looked at elsewhere
        Err(error) if error.is_forbidden() => Tried::Works(None),
        Err(error) => match error.certificate() {
            Some(why) => Tried::BadCertificate(why, error.problem()),
            None => Tried::Unreached(error.problem()),
        },
    };
    let works = matches!(tried, Tried::Works(_));
    (tried, works.then_some(member))
}

/// Who the API server takes the bearer of the credentials for.
async fn subject(member: &Cluster) -> Option<Subject> {
    let api: Api<SelfSubjectReview> = Api::all(member.client());
    let params = PostParams::default();
    let review = SelfSubjectReview::default();
    let call = api.create(&params, &review);
    let answer = member.call("ask who the controller is", call).await.ok()?;
    let user = answer.status?.user_info?;
    Some(Subject {
        user: user.username?,
        groups: user.groups.unwrap_or_default(),
    })
}

/// Pools by namespace and name.
type Pickers<T> = BTreeMap<(String, String), T>;

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::known::{mk_secret, of_secret};

    #[rstest]
    #[case("isthmus/mci-controller:0.1.0", "0.1.0")]
    #[case("isthmus/mci-controller", "")]
    #[case("registry:5000/isthmus/mci-controller", "")]
    #[case("registry:5000/isthmus/mci-controller:v1@sha256:00", "v1")]
    #[case("mci-controller@sha256:00", "")]
    fn the_tag_of_an_image_is_its_version(#[case] image: &str, #[case] version: &str) {
        assert_eq!(tag(image), version);
    }
    #[test]
    fn join_renews_its_own_secret_and_no_other_source() {
        let secret = of_secret(&mk_secret("east", "https://10.0.0.1"));
        let Source::Secret { namespace, .. } = &secret.source else {
            panic!("another source");
        };
        assert_eq!(held(&secret, "west", namespace), None);
        assert!(held(&secret, "west", "another").is_some());
        let key = Definition {
            source: Source::Key {
                namespace: namespace.clone(),
                secret: "isthmus-members".to_owned(),
                key: "east.yaml".to_owned(),
            },
            ..secret.clone()
        };
        let found = held(&key, "west", namespace).expect("held");
        assert!(
            found.removal.contains("patch secret isthmus-members"),
            "{found:?}"
        );
        let renamed = Definition {
            name: "north".to_owned(),
            ..secret.clone()
        };
        assert!(held(&renamed, "west", namespace).is_some());
    }
}
