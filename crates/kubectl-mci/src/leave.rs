//! `kubectl mci leave`: the Secret at home first, so that the controller takes the member's imports away while it still may;
//! the rights in the member once it has let the member go.

mod release;

use std::io::Write;

use anyhow::bail;
use crd::{
    InferencePoolImport,
    annotations::{LEAVING, MANAGED_BY, MANAGED_BY_CONTROLLER},
    inference_pool::InferencePool,
};
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::{Api, ResourceExt, api::ListParams};
use serde_json::{Value, json};

use crate::{
    args::{HomeArgs, LeaveArgs},
    cluster::{CallError, Cluster, is_of_helm, label},
    contexts::Contexts,
    export::exported_condition,
    fleet::server_of,
    known::Known,
    member::{Account, MemberRights},
    membership::{Candidate, Leave, Place, plan_leave},
};

/// What the manifest grants, as far as it is in the member.
#[derive(Default)]
struct Granted<'a> {
    /// In the order in which it is deleted.
    own: Vec<&'a Value>,
    /// Labels of what is part of a helm release.
    of_helm: Vec<String>,
    release: Option<String>,
    /// Identity of the home that the member has begun to leave.
    leaving: Option<String>,
}

/// A member, and its home.
struct Parting {
    name: String,
    member: Cluster,
    home: Cluster,
    home_args: HomeArgs,
    rights: MemberRights,
    /// The controller itself runs by the account.
    keeps_account: bool,
}

pub(crate) async fn leave(
    args: LeaveArgs,
    contexts: &Contexts,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let LeaveArgs {
        cluster: name,
        context,
        home: home_args,
        timeout,
        force,
        dry_run,
    } = args;
    let home_context = contexts.choose(home_args.home_context.as_deref(), "--home-context")?;
    let rights = MemberRights::read()?;
    let home = Cluster::connect(contexts, &home_context, &home_context).await?;
    let (member, keeps_account) = match reach(contexts, context.as_deref(), &name, &rights.account)
        .await?
    {
        Reach::Found(member, keeps_account) => (member, keeps_account),
        Reach::Lost(why) if force => {
            return leave_at_home(&name, &why, &home, &home_args, dry_run, out).await;
        }
        Reach::Lost(why) => bail!(
            "{why}; if {name} is gone for good: --force deletes its Secret at home, and nothing else"
        ),
    };
    let parting = Parting {
        name,
        member,
        home,
        home_args,
        rights,
        keeps_account,
    };
    let granted = parting.granted().await?;
    let left = look(&parting.member).await?;
    let in_use = !granted.own.is_empty() || left != Left::default();
    let home_uid = parting.home.uid().await?;
    // a run that was stopped in between: home has forgotten the member, the member has not forgotten home
    let goes_on = home_uid.is_some() && granted.leaving == home_uid;
    let Leave::Go {
        secrets,
        other_name,
        identified,
    } = parting.plan(in_use, force || goes_on).await?
    else {
        let (home, name) = (&parting.home.name, &parting.name);
        writeln!(
            out,
            "{home}: {name} is no member, and nothing is to be deleted"
        )?;
        return parting.say_what_stays(&granted, left, out);
    };
    if !identified {
        writeln!(
            out,
            "note: it is not known which cluster the member {} is: that context {} leads to it was not checked",
            parting.name, parting.member.context
        )?;
    }
    let namespace = &parting.home_args.home_namespace;
    let secrets: Vec<Value> = secrets.iter().map(|secret| at(namespace, secret)).collect();
    if dry_run {
        return parting.announce(&secrets, other_name.as_deref(), &granted, out);
    }
    // on what is deleted last, so that the mark is there until the end
    if let (Some(last), Some(_), None) = (granted.own.last(), &home_uid, &other_name) {
        let uid = home_uid.as_deref();
        parting.member.annotate(last, LEAVING, uid).await?;
    }
    for secret in &secrets {
        delete(&parting.home, secret, out).await?;
    }
    if let Some(other) = other_name {
        writeln!(
            out,
            "Left in {}: the controller's rights, since the cluster is the member {other} too",
            parting.name
        )?;
        return Ok(());
    }
    let released = parting.await_release(timeout.0, out).await;
    let left = look(&parting.member).await?;
    let released = match released {
        // conditions may be left of a controller that started after the Secret was gone
        Ok(()) if left.imports > 0 => Err(format!(
            "{}: {left} are there still, of another controller (another --home-context?) or left behind",
            parting.name
        )),
        released => released,
    };
    match released {
        Ok(()) => {}
        Err(why) if granted.is_empty() => writeln!(out, "note: {why}")?,
        Err(why) if force => writeln!(out, "{why}: its rights go all the same")?,
        Err(why) => bail!(
            "{why}: its rights in {0} stay, for a controller may still work with them; see kubectl mci check {1}, and run this again, or with --force, which takes them away all the same",
            parting.name,
            parting.place().flags()
        ),
    }
    for object in &granted.own {
        delete(&parting.member, object, out).await?;
    }
    parting.say_what_stays(&granted, left, out)
}

/// Leaves by home alone: the cluster is gone.
async fn leave_at_home(
    name: &str,
    why: &str,
    home: &Cluster,
    home_args: &HomeArgs,
    dry_run: bool,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let HomeArgs {
        home_namespace: namespace,
        clusterset,
        ..
    } = home_args;
    let known = Known::read_to_change(home, namespace, clusterset, name).await?;
    let candidate = Candidate {
        name,
        context: name,
        uid: None,
        server: None,
    };
    let place = Place {
        context: &home.context,
        namespace,
        clusterset,
    };
    let plan = plan_leave(&candidate, &known, &place, false, true)?;
    let secrets = match plan {
        Leave::Done => Vec::new(),
        Leave::Go { secrets, .. } => secrets,
    };
    if secrets.is_empty() {
        writeln!(out, "{}: no Secret makes {name} a member", home.name)?;
    }
    for secret in secrets {
        let secret = at(namespace, &secret);
        if dry_run {
            writeln!(out, "{}: {} would be deleted", home.name, label(&secret))?;
        } else {
            delete(home, &secret, out).await?;
        }
    }
    writeln!(
        out,
        "Not looked at: {why}\nIf {name} is there still, so are the controller's rights: take them away with kubectl mci leave {name} --force once it is reached"
    )?;
    Ok(())
}

// === impl Parting ===

impl Parting {
    /// What is to be done, by all that home and the cluster say; nothing is changed.
    async fn plan(&self, in_use: bool, force: bool) -> anyhow::Result<Leave> {
        let HomeArgs {
            home_namespace: namespace,
            clusterset,
            ..
        } = &self.home_args;
        let (home, name) = (&self.home, &self.name);
        let known = Known::read_to_change(home, namespace, clusterset, name).await?;
        let uid = self.member.uid().await?;
        let mut definitions = known.definitions.iter();
        let definition = definitions.find(|one| one.name == *name);
        let server = definition.and_then(server_of);
        let candidate = Candidate {
            name,
            context: &self.member.context,
            uid: uid.as_deref(),
            server: server.as_deref(),
        };
        Ok(plan_leave(
            &candidate,
            &known,
            &self.place(),
            in_use,
            force,
        )?)
    }

    fn place(&self) -> Place<'_> {
        Place {
            context: &self.home.context,
            namespace: &self.home_args.home_namespace,
            clusterset: &self.home_args.clusterset,
        }
    }

    async fn granted(&self) -> Result<Granted<'_>, CallError> {
        let mut granted = Granted::default();
        for object in grants(&self.rights, self.keeps_account) {
            let Some(found) = self.member.find(object).await? else {
                continue;
            };
            let leaving = found.annotations().get(LEAVING).cloned();
            granted.leaving = granted.leaving.or(leaving);
            if is_of_helm(&found) {
                granted.of_helm.push(label(object));
                let release = found.annotations().get("meta.helm.sh/release-name");
                granted.release = release.cloned().or(granted.release);
            } else {
                granted.own.push(object);
            }
        }
        Ok(granted)
    }

    /// Says what would be deleted.
    fn announce(
        &self,
        secrets: &[Value],
        other_name: Option<&str>,
        granted: &Granted<'_>,
        out: &mut impl Write,
    ) -> anyhow::Result<()> {
        let (home, name) = (&self.home.name, &self.name);
        for secret in secrets {
            writeln!(out, "{home}: {} would be deleted", label(secret))?;
        }
        if let Some(other) = other_name {
            writeln!(
                out,
                "{name}: the rights would stay, since the cluster is the member {other} too"
            )?;
            return Ok(());
        }
        for object in &granted.own {
            writeln!(out, "{name}: {} would be deleted", label(object))?;
        }
        granted.say(name, out)
    }

    fn say_what_stays(
        &self,
        granted: &Granted<'_>,
        left: Left,
        out: &mut impl Write,
    ) -> anyhow::Result<()> {
        let Self {
            name,
            member,
            rights,
            ..
        } = self;
        let account = &rights.account;
        let namespace = &account.namespace;
        writeln!(
            out,
            "Left in {name}: namespace {namespace}, the CRDs, and the annotations of its pools"
        )?;
        granted.say(name, out)?;
        if self.keeps_account {
            writeln!(
                out,
                "Left in {name}: ServiceAccount {account}, by which the controller runs there; the member's token is good until its end, for what the account may do"
            )?;
        }
        if left != Left::default() {
            writeln!(
                out,
                "Left in {name}: {left}, which the controller did not take away"
            )?;
        }
        if left.imports > 0 {
            writeln!(
                out,
                "  kubectl --context {} delete inferencepoolimports -A -l {MANAGED_BY}={MANAGED_BY_CONTROLLER}",
                member.context
            )?;
        }
        Ok(())
    }
}

// === impl Granted ===

impl Granted<'_> {
    fn is_empty(&self) -> bool {
        self.own.is_empty() && self.of_helm.is_empty()
    }

    /// Says what stays, since helm would make it again.
    fn say(&self, name: &str, out: &mut impl Write) -> anyhow::Result<()> {
        if self.of_helm.is_empty() {
            return Ok(());
        }
        let objects = self.of_helm.join(", ");
        let release = self.release.as_deref().unwrap_or("RELEASE");
        writeln!(
            out,
            "Left in {name}: {objects}, which helm has: helm upgrade {release} … --set member.enabled=false"
        )?;
        Ok(())
    }
}

/// The member, as far as it is reached.
enum Reach {
    /// And whether the controller itself runs by the account.
    Found(Cluster, bool),
    /// No context leads to it, or nothing answers there.
    Lost(String),
}

/// # Errors
/// When the context that was asked for is not there, or its credentials are refused.
async fn reach(
    contexts: &Contexts,
    context: Option<&str>,
    name: &str,
    account: &Account,
) -> anyhow::Result<Reach> {
    let chosen = match contexts.choose(context.or(Some(name)), "--context") {
        Err(error) if context.is_none() => return Ok(Reach::Lost(error.to_string())),
        chosen => chosen?,
    };
    let found = async {
        let member = Cluster::connect(contexts, &chosen, name).await?;
        let keeps_account = is_controllers_own(&member, account).await?;
        Ok::<_, CallError>((member, keeps_account))
    };
    match found.await {
        Ok((member, keeps_account)) => Ok(Reach::Found(member, keeps_account)),
        // nothing is known of the cluster where the user's own credentials fail
        Err(error) if error.is_of_credentials() => Err(error.into()),
        // also what answers in place of an API server, such as a proxy's 502
        Err(error) => Ok(Reach::Lost(error.to_string())),
    }
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
    Ok(subjects.any(|subject| {
        subject.kind == "ServiceAccount"
            && subject.name == account.name
            && subject.namespace.as_deref() == Some(&account.namespace)
    }))
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

async fn delete(cluster: &Cluster, object: &Value, out: &mut impl Write) -> anyhow::Result<()> {
    if let Some(label) = cluster.delete(object).await? {
        writeln!(out, "{}: {label} deleted", cluster.name)?;
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
