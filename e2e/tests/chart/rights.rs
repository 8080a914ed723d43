//! The accounts have exactly the rights that their programs use.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use e2e::rights::{self, Right};
use k8s_openapi::api::rbac::v1::Role;
use kube::Api;
use testbed::{ApiCall, eventually};

use crate::{
    helm::chart,
    release::follow_notes,
    stand::{SOON, Stand},
};

const NAMESPACE: &str = "rights";
/// A closed metrics port asks about those who read it with a token, which nobody does here.
const REVIEWS: [(&str, &str); 2] = [
    ("authentication.k8s.io", "tokenreviews"),
    ("authorization.k8s.io", "subjectaccessreviews"),
];
const SIM: &str = "image.hub=registry.example.com/isthmus,worker.kind=sim,worker.model=llama";

/// In leader mode and with closed metrics, which needs most; every optional kind is in the cluster.
pub(crate) async fn the_endpoint_picker_has_the_rights_that_it_uses_and_no_other(
    stand: &Stand,
) -> Result<()> {
    let sets = [
        SIM,
        "inferenceExtension.replicas=2,inferenceExtension.enableLeaderElection=true",
        "inferenceExtension.monitoring.prometheus.auth.enabled=true",
    ];
    has_the_rights_that_it_uses(stand, "epp", &sets, &REVIEWS.map(review)).await
}

/// In leader mode, which needs most. The Processor, without which there is no Router, has no model here, and is not waited for.
pub(crate) async fn the_router_has_the_rights_that_it_uses_and_no_other(
    stand: &Stand,
) -> Result<()> {
    let sets = [
        SIM,
        "processor.enabled=true,processor.models[0].name=llama,processor.models[0].path=/models/llama",
        "router.enabled=true,router.replicas=2,router.enableLeaderElection=true",
    ];
    has_the_rights_that_it_uses(stand, "router", &sets, &[]).await
}

/// Installs a release with these values, and looks at the account of one of its components, which is granted also `more`.
async fn has_the_rights_that_it_uses(
    stand: &Stand,
    component: &str,
    sets: &[&str],
    more: &[Right],
) -> Result<()> {
    let (helm, cluster) = (&stand.helm, &stand.cluster);
    let (account, chart) = (format!("pool-{component}"), chart());
    let install = [
        "install",
        "pool",
        &*chart.to_string_lossy(),
        "--namespace",
        NAMESPACE,
    ];
    let sets = sets.iter().flat_map(|&set| ["--set", set]);
    let arguments: Vec<&str> = install.into_iter().chain(sets).collect();
    // one of two is ready, which helm would wait for in vain
    let said = helm.run(cluster, &arguments).await?;
    let outcome = async {
        follow_notes(stand, cluster, &said, &account).await?;
        are_those_that_it_uses(stand, &account, more).await
    }
    .await;
    helm.run(
        cluster,
        &["uninstall", "pool", "--namespace", NAMESPACE, "--wait"],
    )
    .await?;
    outcome
}

async fn are_those_that_it_uses(stand: &Stand, account: &str, more: &[Right]) -> Result<()> {
    let cluster = &stand.cluster;
    let roles: Api<Role> = Api::namespaced(cluster.client(), NAMESPACE);
    let granted = rights::expand(roles.get(account).await?.rules);
    let more: BTreeSet<Right> = more.iter().cloned().collect();
    let of = async |account: &str, namespace: &str| {
        let kubeconfig = cluster
            .service_account_kubeconfig(NAMESPACE, account)
            .await?;
        rights::review(&kubeconfig, namespace).await
    };
    let all = granted.union(&more).cloned().collect();
    for (namespace, wanted) in [(NAMESPACE, all), ("llm", more)] {
        // what everybody may is no right of its own
        let everyones = of("default", namespace).await?;
        let own = of(account, namespace).await?;
        let own: BTreeSet<Right> = own.difference(&everyones).cloned().collect();
        ensure!(
            own == wanted,
            "in {namespace}: too many {:?}, missing {:?}",
            own.difference(&wanted),
            wanted.difference(&own)
        );
    }
    let user = format!("system:serviceaccount:{NAMESPACE}:{account}");
    eventually("each right is used", SOON, async || {
        let calls = calls(stand, &user).map_err(|error| format!("{error:#}"))?;
        let used: BTreeSet<(String, String, String)> = calls
            .map(|call| (call.verb, call.group, call.resource))
            .collect();
        let unused = granted.iter().filter(|right| {
            let (verb, group, resource) = (&right.verb, &right.group, &right.resource);
            !used.contains(&(verb.clone(), group.clone(), resource.clone()))
        });
        let unused: Vec<&Right> = unused.collect();
        if unused.is_empty() {
            Ok(())
        } else {
            Err(format!("unused: {unused:?}"))
        }
    })
    .await?;
    let denied: Vec<ApiCall> = calls(stand, &user)?.filter(|call| call.denied).collect();
    ensure!(denied.is_empty(), "{denied:?}");
    Ok(())
}

/// What the program asked.
fn calls(stand: &Stand, user: &str) -> Result<impl Iterator<Item = ApiCall>> {
    let calls = stand.testbed.calls(stand.cluster.name())?;
    Ok(calls.into_iter().filter(move |call| call.user == user))
}

/// Of the whole cluster.
fn review((group, resource): (&str, &str)) -> Right {
    Right {
        verb: "create".to_owned(),
        group: group.to_owned(),
        resource: resource.to_owned(),
        name: String::new(),
    }
}
