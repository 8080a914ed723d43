//! `kubectl mci join`: rights and a token in the member, a Secret with both at home.

mod credentials;
mod networks;

use std::io::{self, BufRead, IsTerminal as _, Read as _, Write};

use anyhow::{Context as _, bail};
use crd::{
    annotations::{EXPORT_NAMESPACES, LEAVING, MEMBER, POD_CIDRS},
    networks::{Cidr, parse_pod_cidrs},
};
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        authentication::v1::{TokenRequest, TokenRequestSpec},
        core::v1::{Namespace, Node, Pod, Secret, ServiceAccount},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, ResourceExt,
    api::{ListParams, PostParams},
};
use mci_model::{index::grant::ExportNamespaces, name::ClusterName};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};

use self::{
    credentials::{Access, make_kubeconfig},
    networks::Shown,
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

/// The rights that the member's Secret records.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Grant {
    /// The networks of its pods; none if they are not known, and the Secret records none.
    pod_cidrs: Option<String>,
    export_namespaces: String,
}

/// Pods in one answer, and the number of answers: so many pods are looked at, in the order of their namespaces.
const PODS: u32 = 500;
const PAGES: usize = 20;

/// A grant, and its source.
struct Decided {
    grant: Grant,
    /// Notes that are printed for the user.
    notes: Vec<String>,
    /// Whether the networks come from the cluster itself, and neither from flags nor from the Secret.
    is_guess: bool,
}

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

// === impl Grant ===

impl Grant {
    /// The grant that the flags state.
    fn given(pod_cidrs: &[Cidr], namespaces: Option<ExportNamespaces>) -> Decided {
        let texts: Vec<String> = pod_cidrs.iter().map(ToString::to_string).collect();
        let grant = Self {
            pod_cidrs: (!texts.is_empty()).then(|| texts.join(",")),
            export_namespaces: namespaces.map_or_else(|| "*".to_owned(), |it| it.to_string()),
        };
        Decided {
            grant,
            notes: Vec::new(),
            is_guess: false,
        }
    }

    /// The grant from the flags, else from the existing Secret, else from what the member's objects show.
    /// # Errors
    /// When the member's nodes and pods show different networks, and neither flag nor Secret selects one.
    async fn of(
        member: &Cluster,
        present: Option<&Secret>,
        pod_cidrs: &[Cidr],
        namespaces: Option<ExportNamespaces>,
    ) -> anyhow::Result<Decided> {
        let annotation = |key: &str| present?.annotations().get(key).cloned();
        let no_namespaces = namespaces.is_none();
        let mut decided = Self::given(pod_cidrs, namespaces);
        let Decided {
            grant,
            notes,
            is_guess,
        } = &mut decided;
        if let Some(kept) = annotation(EXPORT_NAMESPACES).filter(|_| no_namespaces) {
            grant.export_namespaces = kept;
        }
        notes.push(format!(
            "may export namespaces {}: --namespaces says others",
            grant.export_namespaces
        ));
        if grant.pod_cidrs.is_some() {
            return Ok(decided);
        }
        let shown = look(member).await;
        if let Some(kept) = annotation(POD_CIDRS) {
            notes.extend(note_of_kept(&kept, shown.as_ref().ok()));
            grant.pod_cidrs = Some(kept);
            return Ok(decided);
        }
        let shown = match shown {
            Ok(shown) => shown,
            Err(problem) => {
                notes.push(unknown(&problem));
                return Ok(decided);
            }
        };
        if let Some(problem) = shown.contradiction() {
            bail!("{}: {problem}", member.name);
        }
        let Some(found) = shown.best() else {
            notes.push(unknown("its nodes have no podCIDRs, and it has no pod"));
            return Ok(decided);
        };
        match found.text() {
            Ok(text) => {
                notes.push(format!(
                    "its pods are in {text}, by {} ({}){}: this is what is written, and other clusters send requests there and nowhere else; --pod-cidr says others, such as the whole range from which nodes to come get theirs",
                    found.of,
                    found.shown(),
                    shown.unchecked
                ));
                grant.pod_cidrs = Some(text);
                *is_guess = true;
            }
            Err(problem) => notes.push(unknown(&problem)),
        }
        Ok(decided)
    }

    fn annotations(&self) -> Value {
        let mut annotations = json!({EXPORT_NAMESPACES: self.export_namespaces});
        if let Some(pod_cidrs) = &self.pod_cidrs {
            annotations[POD_CIDRS] = Value::from(pod_cidrs.clone());
        }
        annotations
    }
}

fn unknown(problem: &str) -> String {
    format!(
        "note: the networks of its pods are not known ({problem}), so no other cluster sends requests to what it exports: join again with --pod-cidr"
    )
}

/// The note about networks that the Secret already has.
fn note_of_kept(kept: &str, shown: Option<&Shown>) -> Option<String> {
    let networks = match parse_pod_cidrs(kept) {
        Ok(networks) => networks,
        Err(error) => {
            return Some(format!(
                "note: {POD_CIDRS} of its Secret cannot be read and stays as it is ({error}): see --pod-cidr"
            ));
        }
    };
    let (one, of) = shown?.outside(&networks)?;
    Some(format!(
        "note: {one} of {of} is outside of {POD_CIDRS} of its Secret, so no other cluster sends requests there: see --pod-cidr"
    ))
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

/// What a member's nodes and its pods show of the networks of its pods.
async fn look(member: &Cluster) -> Result<Shown, String> {
    let nodes: Api<Node> = Api::all(member.client());
    let params = ListParams::default();
    let listed = member.call("list nodes", nodes.list(&params)).await;
    let listed = listed.map_err(|error| error.to_string())?;
    let nodes = networks::of_nodes(&listed.items);
    match addresses(member).await {
        Ok((addresses, is_all)) => {
            let unchecked = if is_all {
                String::new()
            } else {
                let most = PAGES * usize::try_from(PODS).unwrap_or(0);
                format!(", and its first {most} pods were looked at")
            };
            Ok(Shown {
                nodes,
                pods: networks::of_pods(addresses),
                unchecked,
            })
        }
        Err(problem) if nodes.is_some() => Ok(Shown {
            nodes,
            pods: None,
            unchecked: format!(", which were not compared with its pods ({problem})"),
        }),
        Err(problem) => Err(problem),
    }
}

/// Addresses of the member's pods, and whether these are all.
async fn addresses(member: &Cluster) -> Result<(Vec<Cidr>, bool), String> {
    let api: Api<Pod> = Api::all(member.client());
    let mut params = ListParams::default().limit(PODS);
    let mut addresses = Vec::new();
    for _ in 0..PAGES {
        let page = member.call("list pods", api.list(&params)).await;
        let page = page.map_err(|error| error.to_string())?;
        addresses.extend(page.items.iter().flat_map(networks::addresses_of));
        match page.metadata.continue_.filter(|next| !next.is_empty()) {
            Some(next) => params = params.continue_token(&next),
            None => return Ok((addresses, true)),
        }
    }
    Ok((addresses, false))
}

#[cfg(test)]
mod tests {
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
    fn networks_that_are_kept_are_read_and_compared() {
        let unreadable = note_of_kept("10.2.0.0/160", None).expect("a note");
        assert!(unreadable.contains("cannot be read"), "{unreadable}");
        assert!(!unreadable.contains("outside"), "{unreadable}");
        let shown = Shown {
            nodes: None,
            pods: networks::of_pods(vec!["10.3.0.7/32".parse().expect("an address")]),
            unchecked: String::new(),
        };
        assert_eq!(note_of_kept("10.3.0.0/16", Some(&shown)), None);
        let outside = note_of_kept("10.2.0.0/16", Some(&shown)).expect("a note");
        assert!(outside.contains("10.3.0.7/32"), "{outside}");
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
