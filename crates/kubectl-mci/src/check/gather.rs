//! Asks the clusters. What cannot be read is a fact too.

mod inside;

use std::collections::BTreeMap;

use futures::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::{apps::v1::Deployment, coordination::v1::Lease, core::v1::Namespace};
use kube::{Client, ResourceExt};
use secrecy::ExposeSecret;

use super::{
    facts::{ClusterFacts, Facts, HomeFacts, MemberFacts, Read, TokenFacts, Tried, View, Workload},
    tokens,
};
use crate::{
    args::HomeArgs,
    cluster::{CallError, Cluster},
    controller,
    fleet::{Fleet, Joined, Look},
    member::MemberRights,
    status,
};

/// Clusters and members looked at side by side.
const AT_ONCE: usize = 8;
/// The namespace whose uid is the cluster's.
const IDENTITY: &str = "kube-system";

pub(super) async fn gather(fleet: &Fleet, args: &HomeArgs) -> anyhow::Result<Facts> {
    let rights = MemberRights::read()?;
    let (home, seen) = futures::join!(home(fleet, args), status::gather(&fleet.looks, None));
    let pools = seen.iter().map(|one| {
        let pools = one
            .facts
            .as_ref()
            .ok()
            .and_then(|facts| facts.pools.as_ref());
        pools.map(Vec::as_slice).unwrap_or_default()
    });
    let joined = fleet.joined.as_deref().unwrap_or_default();
    let clusters = fleet.looks.iter().zip(pools).map(|(look, pools)| {
        let is_member = joined.iter().any(|one| one.name == look.target.name);
        let asked = is_member.then_some(&rights);
        async move {
            ClusterFacts {
                name: look.target.name.clone(),
                context: look.target.context.clone(),
                inside: inside_of(look, asked, pools).await,
            }
        }
    });
    Ok(Facts {
        now: Timestamp::now(),
        home,
        clusters: stream::iter(clusters).buffered(AT_ONCE).collect().await,
        seen,
    })
}

async fn inside_of(
    look: &Look,
    rights: Option<&MemberRights>,
    pools: &[crd::inference_pool::InferencePool],
) -> Read<super::facts::Inside> {
    let cluster = look.cluster.as_ref().map_err(Clone::clone)?;
    Ok(inside::read(cluster, rights, pools).await)
}

async fn home(fleet: &Fleet, args: &HomeArgs) -> HomeFacts {
    let HomeArgs {
        home_namespace: namespace,
        clusterset,
        ..
    } = args;
    let home = &fleet.home;
    let lease = controller::lease_name(clusterset);
    let (controller, lease, members) = futures::join!(
        workload(home, namespace, controller::CONTROLLER),
        home.get::<Lease>(namespace, &lease),
        members(&fleet.joined),
    );
    let runs = matches!(&controller, Ok(Some(workload)) if workload.available > 0);
    let view = if runs {
        Some(view(home, namespace).await)
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

async fn view(home: &Cluster, namespace: &str) -> Read<View> {
    let page = controller::page(home, namespace, "/debug/clusters").await;
    let page = page.map_err(|error| error.to_string())?;
    serde_json::from_str(&page)
        .map_err(|error| format!("it answers in another way than this version does: {error}"))
}

async fn members(joined: &Result<Vec<Joined>, String>) -> Read<Vec<MemberFacts>> {
    let joined = joined.as_ref().map_err(Clone::clone)?;
    let facts = joined.iter().map(async |one| MemberFacts {
        name: one.name.clone(),
        source: one.source.clone(),
        credentials: match &one.credentials {
            None => None,
            Some(Err(problem)) => Some(Err(problem.clone())),
            Some(Ok(credentials)) => {
                let config = credentials.config();
                let token = config.auth_info.token.as_ref();
                Some(Ok(TokenFacts {
                    server: credentials.server(),
                    life: token.and_then(|token| tokens::life(token.expose_secret())),
                    tried: attempt(config, &one.name).await,
                }))
            }
        },
    });
    Ok(stream::iter(facts).buffered(AT_ONCE).collect().await)
}

/// One call with the controller's own credentials.
async fn attempt(config: &kube::Config, name: &str) -> Tried {
    let Ok(client) = Client::try_from(Cluster::bounded(config.clone())) else {
        return Tried::Refused("certificates or keys do not decode".to_owned());
    };
    let member = Cluster::behind(client, name, name);
    match uid(&member).await {
        Ok(uid) => Tried::Works(uid),
        Err(error) if error.is_unauthorized() => {
            Tried::Refused("it is none of its own, or its account is gone".to_owned())
        }
        // it knows who asks, and rights are looked at elsewhere
        Err(error) if error.is_refused() => Tried::Works(None),
        Err(error) => Tried::Unreached(error.problem()),
    }
}

/// The cluster's identity.
pub(super) async fn uid(cluster: &Cluster) -> Result<Option<String>, CallError> {
    let namespace: Option<Namespace> = cluster.get_global(IDENTITY).await?;
    Ok(namespace.and_then(|namespace| namespace.uid()))
}

/// Pools by namespace and name.
type Pickers<T> = BTreeMap<(String, String), T>;

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::tag;

    #[rstest]
    #[case("isthmus/mci-controller:0.1.0", "0.1.0")]
    #[case("isthmus/mci-controller", "")]
    #[case("registry:5000/isthmus/mci-controller", "")]
    #[case("registry:5000/isthmus/mci-controller:v1@sha256:00", "v1")]
    #[case("mci-controller@sha256:00", "")]
    fn the_tag_of_an_image_is_its_version(#[case] image: &str, #[case] version: &str) {
        assert_eq!(tag(image), version);
    }
}
