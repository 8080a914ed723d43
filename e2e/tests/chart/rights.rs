//! The endpoint picker's account has exactly the rights that the program uses.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use e2e::rights::{self, Right};
use k8s_openapi::api::{core::v1::ServiceAccount, rbac::v1::Role};
use kube::{Api, api::PostParams};
use serde_json::json;
use testbed::{ApiCall, eventually};

use crate::{
    helm::chart,
    release::follow_notes,
    stand::{SOON, Stand},
};

const NAMESPACE: &str = "rights";
const USER: &str = "system:serviceaccount:rights:pool-epp";

/// To ask about those who read its metrics with a token, which nobody does here.
const REVIEWS: [(&str, &str); 2] = [
    ("authentication.k8s.io", "tokenreviews"),
    ("authorization.k8s.io", "subjectaccessreviews"),
];

/// In leader mode and with closed metrics, which needs most; every optional kind is in the cluster.
pub(crate) async fn the_endpoint_picker_has_the_rights_that_it_uses_and_no_other(
    stand: &Stand,
) -> Result<()> {
    let (helm, cluster) = (&stand.helm, &stand.cluster);
    let chart = chart();
    let install = [
        "install",
        "pool",
        &*chart.to_string_lossy(),
        "--namespace",
        NAMESPACE,
        "--set",
        "image.hub=registry.example.com/isthmus,worker.kind=sim,worker.model=llama,\
         inferenceExtension.replicas=2,inferenceExtension.enableLeaderElection=true,\
         inferenceExtension.monitoring.prometheus.auth.enabled=true",
    ];
    // one of two is ready, which helm would wait for in vain: the notes say what to wait for
    let said = helm.run(cluster, &install).await?;
    follow_notes(stand, &said).await?;
    let roles: Api<Role> = Api::namespaced(cluster.client(), NAMESPACE);
    let granted = rights::expand(roles.get("pool-epp").await?.rules);

    // what everybody may is no right of its own
    let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client(), NAMESPACE);
    let stranger = serde_json::from_value(json!({"metadata": {"name": "stranger"}}))?;
    accounts.create(&PostParams::default(), &stranger).await?;
    let of = async |account: &str, namespace: &str| {
        let kubeconfig = cluster
            .service_account_kubeconfig(NAMESPACE, account)
            .await?;
        rights::review(&kubeconfig, namespace).await
    };
    let reviews: BTreeSet<Right> = REVIEWS.map(review).into();
    let all = granted.union(&reviews).cloned().collect();
    for (namespace, wanted) in [(NAMESPACE, all), ("llm", reviews)] {
        let everyones = of("stranger", namespace).await?;
        let own: BTreeSet<Right> = of("pool-epp", namespace)
            .await?
            .difference(&everyones)
            .cloned()
            .collect();
        ensure!(
            own == wanted,
            "in {namespace}: too many {:?}, missing {:?}",
            own.difference(&wanted),
            wanted.difference(&own)
        );
    }

    eventually("each right is used", SOON, async || {
        let used = used(stand)?;
        let unused: Vec<&Right> = granted
            .iter()
            .filter(|right| !is_used(right, &used))
            .collect();
        if unused.is_empty() {
            Ok(())
        } else {
            Err(format!("unused: {unused:?}"))
        }
    })
    .await?;
    let denied: Vec<ApiCall> = calls(stand)?.filter(|call| call.denied).collect();
    ensure!(denied.is_empty(), "{denied:?}");
    helm.run(
        cluster,
        &["uninstall", "pool", "--namespace", NAMESPACE, "--wait"],
    )
    .await?;
    Ok(())
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

fn calls(stand: &Stand) -> Result<impl Iterator<Item = ApiCall>> {
    let calls = stand.testbed.calls(stand.cluster.name())?;
    Ok(calls.into_iter().filter(|call| call.user == USER))
}

/// Verb, group and resource of what the program asked.
fn used(stand: &Stand) -> Result<BTreeSet<(String, String, String)>, String> {
    let calls = calls(stand).map_err(|error| format!("{error:#}"))?;
    Ok(calls
        .map(|call| (call.verb, call.group, call.resource))
        .collect())
}

fn is_used(right: &Right, used: &BTreeSet<(String, String, String)>) -> bool {
    used.contains(&(
        right.verb.clone(),
        right.group.clone(),
        right.resource.clone(),
    ))
}
