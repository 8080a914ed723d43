//! `kubectl mci join`: rights and a token in the member, a Secret with both at home.

mod credentials;
mod grant;
mod networks;

use std::io::{self, BufRead, IsTerminal as _, Read as _, Write};

use anyhow::{Context as _, bail};
use crd::{
    annotations::{LEAVING, MEMBER},
    networks::{Cidr, parse_pod_cidrs},
};
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        authentication::v1::{TokenRequest, TokenRequestSpec},
        core::v1::{Namespace, Secret, ServiceAccount},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{Api, ResourceExt, api::PostParams};
use mci_model::name::ClusterName;
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};

use self::{
    credentials::{Access, make_kubeconfig},
    grant::{Decided, Grant},
};
use crate::{
    args::{HomeArgs, JoinArgs},
    cluster::{CallError, Cluster, is_of_helm},
    contexts::Contexts,
    known::Known,
    member::{Account, MemberRights},
    membership::{Candidate, Place, present_server, refuse_join},
};

/// Key of the kubeconfig in the Secret.
const KEY: &str = "kubeconfig";
/// Stands where the token would.
const NO_TOKEN: &str = "TOKEN";
/// The CRD that imports are objects of.
pub(crate) const IMPORT_CRD: &str = "inferencepoolimports.inference.networking.x-k8s.io";

/// A token, and until when it is good.
struct Issued {
    token: SecretString,
    until: Timestamp,
}

pub(crate) async fn join(
    args: JoinArgs,
    contexts: &Contexts,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let JoinArgs {
        cluster: name,
        context,
        home,
        server,
        pod_cidr,
        namespaces,
        token_lifetime,
        force_conflicts,
        dry_run,
    } = args;
    ClusterName::new(&name)?;
    // the member's name is mostly that of its context
    let context = context.or_else(|| contexts.has(&name).then(|| name.clone()));
    let Some(context) = context else {
        bail!(
            "the kubeconfig has no context {name:?}: say with --context which one leads to the cluster that is to be called so"
        );
    };
    let context = contexts.choose(Some(&context), "--context")?;
    let rights = MemberRights::read()?;
    refuse_networks(&pod_cidr)?;
    if dry_run {
        let access = Access::of(contexts.cluster(&context)?, &context, server.as_deref())?;
        let decided = if pod_cidr.is_empty() {
            let member = Cluster::connect(contexts, &context, &name).await?;
            Grant::of(&member, None, &pod_cidr, namespaces).await?
        } else {
            Grant::given(&pod_cidr, namespaces)
        };
        let Decided { grant, notes, .. } = decided;
        let text = documents(&name, &home, &rights, &access, &grant, &notes)?;
        return Ok(out.write_all(text.as_bytes())?);
    }
    let HomeArgs {
        home_context,
        home_namespace,
        clusterset,
    } = &home;
    let home_context = contexts.choose(home_context.as_deref(), "--home-context")?;
    let member = Cluster::connect(contexts, &context, &name).await?;
    let home = Cluster::connect(contexts, &home_context, &home_context).await?;
    let present = refuse_foreign(&home, home_namespace, &name).await?;
    let place = Place {
        context: &home_context,
        namespace: home_namespace,
        clusterset,
    };
    let via = contexts.cluster(&context)?;
    let access = admit(&member, &home, &place, via, server.as_deref()).await?;
    let Decided {
        grant,
        notes,
        is_guess,
    } = Grant::of(&member, present.as_ref(), &pod_cidr, namespaces).await?;
    for note in notes {
        writeln!(out, "{name}: {note}")?;
    }
    let is_asked = is_guess && io::stdin().is_terminal() && io::stdout().is_terminal();
    if is_asked && !is_confirmed(&mut io::stdin().lock(), out)? {
        bail!("nothing was changed: say the networks of its pods with --pod-cidr");
    }
    for object in &rights.objects {
        let found = member.find(object).await?;
        if found.as_ref().is_some_and(is_of_helm) {
            let what = object["kind"].as_str().unwrap_or_default();
            writeln!(out, "{name}: {what} left to helm, which has it")?;
            continue;
        }
        let label = member.apply(object, force_conflicts).await?;
        writeln!(out, "{name}: {label} applied")?;
        if found.is_some_and(|found| found.annotations().contains_key(LEAVING)) {
            member.annotate(object, LEAVING, None).await?;
        }
    }
    let issued = request_token(&member, &rights.account, token_lifetime.0.as_secs()).await?;
    let kubeconfig = make_kubeconfig(&name, &access, issued.token.expose_secret())?;
    ensure_namespace(&home, home_namespace).await?;
    let secret = secret(&name, home_namespace, &kubeconfig, &grant);
    let label = home.apply(&secret, force_conflicts).await?;
    writeln!(
        out,
        "{home_context}: {label} applied: {}, token until {}",
        access.server,
        issued.until.strftime("%F %R UTC")
    )?;
    let of_context = via.server.as_deref().unwrap_or_default();
    if server.is_none() && of_context.trim_end_matches('/') != access.server.trim_end_matches('/') {
        writeln!(
            out,
            "note: the controller goes on with {}, as the Secret had it, and not {of_context} of context {context}: see --server",
            access.server
        )?;
    }
    after(&member, &name, &issued, token_lifetime.0.as_secs(), out).await?;
    writeln!(out, "Next: kubectl mci check {}", place.flags())?;
    Ok(())
}

/// Each network may be right, and all of them together too many for the controller to read.
fn refuse_networks(networks: &[Cidr]) -> anyhow::Result<()> {
    if networks.is_empty() {
        return Ok(());
    }
    let texts: Vec<String> = networks.iter().map(ToString::to_string).collect();
    parse_pod_cidrs(&texts.join(",")).context("--pod-cidr")?;
    Ok(())
}

/// Returns the member's existing Secret. A Secret of this name that is not a member's belongs to another program.
async fn refuse_foreign(
    home: &Cluster,
    namespace: &str,
    name: &str,
) -> anyhow::Result<Option<Secret>> {
    let Some(secret) = home.get::<Secret>(namespace, name).await? else {
        return Ok(None);
    };
    let is_member = |selector: &&str| {
        let (label, value) = selector.split_once('=').unwrap_or((selector, ""));
        secret
            .labels()
            .get(label)
            .is_some_and(|found| found == value)
    };
    if mci_inventory::SECRET_SELECTORS.iter().any(is_member) {
        return Ok(Some(secret));
    }
    bail!(
        "{}: Secret {namespace}/{name} is there and is no member's: give the cluster another name, or label the Secret {MEMBER}=true",
        home.name
    )
}

/// How the controller is to reach the member: at `server`, else where its Secret has it, else as the context has it.
/// # Errors
/// When something else holds the name, the cluster is a member already, or the controller would refuse the access.
async fn admit(
    member: &Cluster,
    home: &Cluster,
    place: &Place<'_>,
    via: &kube::config::Cluster,
    server: Option<&str>,
) -> anyhow::Result<Access> {
    let (namespace, clusterset) = (place.namespace, place.clusterset);
    let known = Known::read_to_change(home, namespace, clusterset, &member.name).await?;
    let uid = member.uid().await?;
    let mut candidate = Candidate {
        name: &member.name,
        context: &member.context,
        uid: uid.as_deref(),
        server: None,
    };
    let present = present_server(&candidate, &known, place);
    let access = Access::of(via, &member.context, server.or(present.as_deref()))?;
    make_kubeconfig(&member.name, &access, NO_TOKEN)?;
    candidate.server = Some(&access.server);
    match refuse_join(&candidate, &known, place) {
        Some(refusal) => Err(refusal.into()),
        None => Ok(access),
    }
}

async fn request_token(
    member: &Cluster,
    account: &Account,
    seconds: u64,
) -> anyhow::Result<Issued> {
    let Account { namespace, name } = account;
    let request = TokenRequest {
        spec: TokenRequestSpec {
            expiration_seconds: i64::try_from(seconds).ok(),
            ..TokenRequestSpec::default()
        },
        ..TokenRequest::default()
    };
    let api: Api<ServiceAccount> = member.api(namespace);
    let params = PostParams::default();
    let create = api.create_token_request(name, &params, &request);
    let what = format!("create a token of ServiceAccount {account}");
    let answer = member.call(&what, create).await?;
    let status = answer
        .status
        .with_context(|| format!("{}: the API server issued no token", member.name))?;
    Ok(Issued {
        token: status.token.into(),
        until: status.expiration_timestamp.0,
    })
}

/// A namespace that helm or a manifest made is not touched.
async fn ensure_namespace(home: &Cluster, name: &str) -> Result<(), CallError> {
    if home.get_global::<Namespace>(name).await?.is_none() {
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        home.apply(&namespace, false).await?;
    }
    Ok(())
}

/// What the user should know next.
async fn after(
    member: &Cluster,
    name: &str,
    issued: &Issued,
    wanted: u64,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let left = issued.until.as_second() - Timestamp::now().as_second();
    // a minute less is the way that the answer took
    if left + 60 < i64::try_from(wanted).unwrap_or(i64::MAX) {
        writeln!(
            out,
            "note: the API server of {name} shortened the token's life to {} h: join again before its end",
            left / 3600
        )?;
    }
    let definition = member.get_global::<CustomResourceDefinition>(IMPORT_CRD);
    if matches!(definition.await, Ok(None)) {
        writeln!(
            out,
            "note: {name} has no CRD {IMPORT_CRD}: it can export, and imports nothing until the chart isthmus-crds (or config/crd) is installed there"
        )?;
    }
    Ok(())
}

fn secret(name: &str, namespace: &str, kubeconfig: &str, grant: &Grant) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {MEMBER: "true"},
            "annotations": grant.annotations(),
        },
        "type": "Opaque",
        "stringData": {KEY: kubeconfig},
    })
}

/// What would be applied, for a person to read: there is no token in it.
fn documents(
    name: &str,
    home: &HomeArgs,
    rights: &MemberRights,
    access: &Access,
    grant: &Grant,
    notes: &[String],
) -> anyhow::Result<String> {
    let mut text = format!("# in the member {name}\n");
    for object in &rights.objects {
        text.push_str("---\n");
        text.push_str(&serde_yaml::to_string(object)?);
    }
    text.push_str("---\n# in the home cluster, with a token of ");
    text.push_str(&rights.account.to_string());
    text.push_str(
        " in place of TOKEN; without --server, --pod-cidr and --namespaces, a Secret that is there keeps what it has of these\n",
    );
    for note in notes {
        text.push_str("# ");
        text.push_str(note);
        text.push('\n');
    }
    let kubeconfig = make_kubeconfig(name, access, NO_TOKEN)?;
    let secret = secret(name, &home.home_namespace, &kubeconfig, grant);
    text.push_str(&serde_yaml::to_string(&secret)?);
    Ok(text)
}

/// Whether the user confirms; an end of the input is no confirmation.
fn is_confirmed(input: &mut impl BufRead, out: &mut impl Write) -> io::Result<bool> {
    write!(out, "Go on with these networks? [y/N] ")?;
    out.flush()?;
    let mut answer = String::new();
    // the answer of a user is short: longer input is no confirmation
    input.take(16).read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

#[cfg(test)]
mod tests {
    use crd::annotations::{EXPORT_NAMESPACES, POD_CIDRS};

    use super::*;

    #[test]
    fn a_dry_run_is_yaml_with_the_rights_and_no_token() {
        let home = HomeArgs {
            home_context: None,
            home_namespace: "isthmus-system".to_owned(),
            clusterset: "default".to_owned(),
        };
        let rights = MemberRights::read().expect("the manifest");
        let access = Access {
            server: "https://east.example.com:6443".to_owned(),
            authority: None,
            tls_server_name: None,
        };
        let Decided { grant, notes, .. } =
            Grant::given(&["10.2.0.0/16".parse().expect("a network")], None);
        let text = documents("east", &home, &rights, &access, &grant, &notes).expect("YAML");
        let documents: Vec<Value> = serde_yaml::Deserializer::from_str(&text)
            .map(|document| serde::Deserialize::deserialize(document).expect("YAML"))
            .collect();
        let last = documents.last().expect("a Secret");
        assert_eq!(documents.len(), rights.objects.len() + 1);
        assert_eq!(last["metadata"]["labels"][MEMBER], "true");
        let annotations = &last["metadata"]["annotations"];
        assert_eq!(annotations[POD_CIDRS], "10.2.0.0/16");
        assert_eq!(annotations[EXPORT_NAMESPACES], "*");
        let kubeconfig = last["stringData"][KEY].as_str().expect("a kubeconfig");
        let read: Value = serde_json::from_str(kubeconfig).expect("JSON");
        assert_eq!(read["users"][0]["user"]["token"], NO_TOKEN);
    }

    #[test]
    fn more_networks_than_the_controller_reads_are_refused() {
        let networks = |count: u8| -> Vec<Cidr> {
            let texts = (0..count).map(|nth| format!("10.{nth}.0.0/16"));
            texts.map(|text| text.parse().expect("a network")).collect()
        };
        refuse_networks(&networks(64)).expect("as many as are read");
        let refused = refuse_networks(&networks(65)).expect_err("too many");
        assert!(
            format!("{refused:#}").starts_with("--pod-cidr: "),
            "{refused:#}"
        );
        refuse_networks(&[]).expect("join finds them itself");
    }

    #[test]
    fn the_script_for_kind_is_not_asked_about_networks() {
        let script = include_str!("../../../kind/install.sh");
        let joins = script
            .lines()
            .filter(|line| line.contains("kubectl mci join"));
        let (unasked, asked): (Vec<&str>, Vec<&str>) =
            joins.partition(|line| line.ends_with("< /dev/null") || line.contains("--pod-cidr"));
        assert!(!unasked.is_empty());
        assert_eq!(asked, [""; 0], "on a terminal an Enter ends the script");
    }

    #[test]
    fn only_a_yes_is_one() {
        for (answer, expected) in [("y\n", true), ("Yes\n", true), ("\n", false), ("", false)] {
            let mut out = Vec::new();
            let confirmed = is_confirmed(&mut answer.as_bytes(), &mut out).expect("written");
            assert_eq!(confirmed, expected, "{answer:?}");
        }
    }
}
