//! `kubectl mci leave`: the Secret at home first, so that the controller takes the member's imports away while it still may;
//! then the rights in the member.

use std::{io::Write, time::Duration};

use anyhow::bail;
use crd::{
    InferencePoolImport,
    annotations::{MANAGED_BY, MANAGED_BY_CONTROLLER},
    inference_pool::InferencePool,
};
use jiff::Timestamp;
use k8s_openapi::api::{coordination::v1::Lease, rbac::v1::RoleBinding};
use kube::{Api, api::ListParams};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    args::LeaveArgs,
    cluster::{CallError, Cluster, label},
    contexts::Contexts,
    controller::{is_live, lease_name},
    export::exported_condition,
    fleet::{self, MEMBERS_SECRET},
    member::{Account, MemberRights},
};

const LOOK_EVERY: Duration = Duration::from_secs(1);

pub(crate) async fn leave(
    args: LeaveArgs,
    contexts: &Contexts,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let LeaveArgs {
        cluster: name,
        context,
        home,
        timeout,
        dry_run,
    } = args;
    let context = contexts.choose(context.as_deref().or(Some(&name)), "--context")?;
    let home_context = contexts.choose(home.home_context.as_deref(), "--home-context")?;
    let rights = MemberRights::read()?;
    let member = Cluster::connect(contexts, &context, &name).await?;
    let at_home = Cluster::connect(contexts, &home_context, &home_context).await?;
    let namespace = &home.home_namespace;
    let secrets = secrets_of(&at_home, namespace, &home.clusterset, &name).await?;
    let keeps_account = is_controllers_own(&member, &rights.account).await?;
    let secrets: Vec<Value> = secrets.iter().map(|secret| at(namespace, secret)).collect();
    if dry_run {
        for secret in &secrets {
            writeln!(out, "{home_context}: {} would be deleted", label(secret))?;
        }
        for object in grants(&rights, keeps_account) {
            writeln!(out, "{name}: {} would be deleted", label(object))?;
        }
        return Ok(());
    }
    for secret in &secrets {
        delete(&at_home, secret, out).await?;
    }
    let leads = is_led(&at_home, namespace, &home.clusterset).await?;
    let left = taken_away(&member, leads, timeout.0, out).await?;
    for object in grants(&rights, keeps_account) {
        delete(&member, object, out).await?;
    }
    say_what_stays(&name, &rights.account, keeps_account, left, out)
}

/// Names of the Secrets that make it a member.
async fn secrets_of(
    home: &Cluster,
    namespace: &str,
    clusterset: &str,
    name: &str,
) -> anyhow::Result<Vec<String>> {
    let members = fleet::members(home, namespace, clusterset).await?;
    let ours = members
        .iter()
        .filter(|one| one.name == name && one.credentials.is_some());
    let mut secrets = Vec::new();
    for one in ours {
        match one.source.strip_prefix(&format!("Secret {namespace}/")) {
            Some(secret) => secrets.push(secret.to_owned()),
            None => bail!(
                "{}: {name} is a member by {}: take it out there first: kubectl --context {} -n {namespace} patch secret {MEMBERS_SECRET} --type=merge -p '{{\"data\": {{\"{}\": null}}}}'",
                home.name,
                one.source,
                home.context,
                one.source.split(' ').nth(1).unwrap_or(name),
            ),
        }
    }
    Ok(secrets)
}

/// Whether the controller itself runs by this account: where home is a member.
async fn is_controllers_own(member: &Cluster, account: &Account) -> Result<bool, CallError> {
    let api: Api<RoleBinding> = member.api(&account.namespace);
    let what = format!("list rolebindings of {}", account.namespace);
    let bindings = member.call(&what, api.list(&ListParams::default())).await?;
    let mut subjects = bindings
        .items
        .into_iter()
        .flat_map(|binding| binding.subjects.unwrap_or_default());
    Ok(subjects.any(|subject| subject.kind == "ServiceAccount" && subject.name == account.name))
}

/// What the manifest grants, the last first; never the namespace.
fn grants(rights: &MemberRights, keeps_account: bool) -> impl Iterator<Item = &Value> {
    let stays = move |object: &Value| {
        MemberRights::is_namespace(object) || keeps_account && object["kind"] == "ServiceAccount"
    };
    rights.objects.iter().rev().filter(move |one| !stays(one))
}

/// A Secret at home.
fn at(namespace: &str, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace}})
}

/// What of the controller's is still in a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Left {
    imports: usize,
    /// Pools with its condition `Exported`.
    conditions: usize,
}

/// Waits until the controller has taken what is its own away, if one is there to do it; what is left.
async fn taken_away(
    member: &Cluster,
    leads: bool,
    limit: Duration,
    out: &mut impl Write,
) -> anyhow::Result<Left> {
    let end = Instant::now() + limit;
    let mut said = false;
    loop {
        let left = look(member).await?;
        if left == Left::default() || !leads || Instant::now() >= end {
            return Ok(left);
        }
        if !said {
            let name = &member.name;
            writeln!(
                out,
                "{name}: waiting for the controller to take away {left}"
            )?;
            out.flush()?;
            said = true;
        }
        sleep(LOOK_EVERY).await;
    }
}

async fn look(member: &Cluster) -> Result<Left, CallError> {
    let selector = format!("{MANAGED_BY}={MANAGED_BY_CONTROLLER}");
    let params = ListParams::default().labels(&selector);
    let all = ListParams::default();
    let (imports, pools) = futures::join!(
        member.list::<InferencePoolImport>(None, &params),
        member.list::<InferencePool>(None, &all),
    );
    let pools = if_served(pools)?;
    let marked = pools
        .iter()
        .filter(|pool| exported_condition(pool).is_some());
    Ok(Left {
        imports: if_served(imports)?.len(),
        conditions: marked.count(),
    })
}

/// Without the CRD there are none.
fn if_served<T>(listed: Result<Vec<T>, CallError>) -> Result<Vec<T>, CallError> {
    match listed {
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        other => other,
    }
}

/// Whether a controller renews the Lease: else nobody takes anything away.
async fn is_led(home: &Cluster, namespace: &str, clusterset: &str) -> Result<bool, CallError> {
    let lease: Option<Lease> = home.get(namespace, &lease_name(clusterset)).await?;
    let renewed = lease.and_then(|lease| lease.spec?.renew_time);
    Ok(renewed.is_some_and(|at| is_live(at.0, Timestamp::now())))
}

async fn delete(cluster: &Cluster, object: &Value, out: &mut impl Write) -> anyhow::Result<()> {
    if let Some(label) = cluster.delete(object).await? {
        writeln!(out, "{}: {label} deleted", cluster.name)?;
    }
    Ok(())
}

fn say_what_stays(
    name: &str,
    account: &Account,
    keeps_account: bool,
    left: Left,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let namespace = &account.namespace;
    writeln!(
        out,
        "Left in {name}: namespace {namespace}, the CRDs, and the annotations of its pools"
    )?;
    if keeps_account {
        writeln!(
            out,
            "Left in {name}: ServiceAccount {account}, by which the controller runs there; the member's token is good until its end, for what the account may do"
        )?;
    }
    if left != Left::default() {
        writeln!(
            out,
            "Left in {name}: {left}, which no controller took away (is one running?)"
        )?;
    }
    if left.imports > 0 {
        writeln!(
            out,
            "  kubectl delete inferencepoolimports -A -l {MANAGED_BY}={MANAGED_BY_CONTROLLER}"
        )?;
    }
    Ok(())
}

// === impl Left ===

impl std::fmt::Display for Left {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            imports,
            conditions,
        } = self;
        write!(
            f,
            "{imports} imports and the conditions of {conditions} pools"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bindings_go_before_roles_and_the_namespace_stays() {
        let rights = MemberRights::read().expect("the manifest");
        let kinds = |keeps| {
            let grants = grants(&rights, keeps);
            grants.map(|one| &one["kind"]).collect::<Vec<_>>()
        };
        assert_eq!(
            kinds(false),
            ["ClusterRoleBinding", "ClusterRole", "ServiceAccount"]
        );
        assert_eq!(kinds(true), ["ClusterRoleBinding", "ClusterRole"]);
    }
}
