//! The controller and its members.

use std::net::IpAddr;

use crd::{
    annotations::{EXPORT_NAMESPACES, POD_CIDRS},
    networks::parse_pod_cidrs,
};
use jiff::{SignedDuration, Timestamp};
use mci_inventory::{client::CertificateProblem, lease_name, statement_files};
use mci_model::index::origin::SourceKind;

use super::{ELSEWHERE, workload};
use crate::check::{
    Group, Level, Line,
    facts::{CredentialFacts, Facts, HomeFacts, Life, MemberFacts, TokenFacts, Tried},
};
use crate::{
    controller::{MemberView, View, is_live},
    known::kind_of,
};

/// Less than this of a token's life, and less than a week, is soon.
const LAST_PART: i64 = 5;
const WEEK: SignedDuration = SignedDuration::from_hours(7 * 24);

pub(super) fn group(facts: &Facts) -> Group {
    let home = &facts.home;
    let mut lines = controller(facts);
    lines.extend(home.unseen.iter().map(|problem| Line::unknown(problem)));
    if home.members.is_empty() && home.unseen.is_empty() && !facts.is_home_elsewhere() {
        lines.push(Line::bad(
            format!("no member: no Secret of {} is one", home.namespace),
            format!(
                "kubectl mci join CLUSTER --context CONTEXT {}",
                home.flags()
            ),
        ));
    }
    for member in &home.members {
        lines.push(credentials(member, facts));
        let ignored = member.ignored.iter();
        lines.extend(ignored.map(|message| {
            let text = format!("{}: {}: {message}", member.name, member.source);
            Line::of(Level::Warning, text, None)
        }));
    }
    match &home.view {
        Some(Ok(view)) => lines.extend(said(view, facts)),
        Some(Err(problem)) => lines.push(Line::of(
            Level::Unknown,
            format!("the controller cannot be asked: {problem}"),
            Some("what is said of members and pools is from objects alone".to_owned()),
        )),
        None if runs_elsewhere(home, facts.now) => lines.push(Line::of(
            Level::Unknown,
            "the controller cannot be asked, since it runs elsewhere",
            Some("look at /debug/clusters of its admin port".to_owned()),
        )),
        // that it does not run is said above
        None => {}
    }
    Group {
        title: format!("home (context {})", home.context),
        lines,
    }
}

fn leads(home: &HomeFacts, now: Timestamp) -> bool {
    matches!(home.renewed, Ok(Some(at)) if is_live(at, now))
}

/// It may run outside of any cluster.
fn runs_elsewhere(home: &HomeFacts, now: Timestamp) -> bool {
    matches!(home.controller, Ok(None)) && leads(home, now)
}

fn controller(facts: &Facts) -> Vec<Line> {
    let (home, now) = (&facts.home, facts.now);
    let HomeFacts {
        context, namespace, ..
    } = home;
    let lease = lease_name(&home.clusterset);
    let leads = leads(home, now);
    let mut lines = Vec::new();
    match &home.controller {
        Err(problem) => lines.push(Line::unknown(problem)),
        Ok(None) if runs_elsewhere(home, now) => lines.push(Line::good(format!(
            "a controller leads, and runs elsewhere than in {namespace}"
        ))),
        Ok(None) if facts.is_home_elsewhere() => {
            lines.push(Line::bad(
                format!("no controller in {namespace}, and another one exports or imports the pools here: is home elsewhere?"),
                format!("{ELSEWHERE}; if it was here and is gone, install it again"),
            ));
            return lines;
        }
        Ok(None) => {
            lines.push(Line::bad(
                format!("no controller in {namespace}"),
                "install it: the chart isthmus with controller.enabled=true, or config/rbac/home.yaml and config/controller.yaml",
            ));
            return lines;
        }
        Ok(Some(deployment)) => lines.extend(workload(
            "the controller",
            deployment,
            format!("kubectl --context {context} -n {namespace} describe deployment,pods"),
        )),
    }
    lines.push(match &home.renewed {
        Err(problem) => Line::unknown(problem),
        Ok(None) => Line::bad(
            format!(
                "no Lease {lease}: no controller of ClusterSet {} leads",
                home.clusterset
            ),
            "see --clusterset, and the log of the controller",
        ),
        Ok(Some(_)) if leads => Line::good(format!("a controller holds the Lease {lease}")),
        Ok(Some(at)) => Line::bad(
            format!(
                "the Lease {lease} was renewed {} s ago: no controller leads",
                now.duration_since(*at).as_secs()
            ),
            format!("kubectl --context {context} -n {namespace} get lease,pods"),
        ),
    });
    lines
}

/// Whether a member's credentials can be used, work, lead to the right cluster, and for how long.
fn credentials(member: &MemberFacts, facts: &Facts) -> Line {
    let MemberFacts {
        name,
        source,
        // reported together with the advice
        held: _,
        ignored: _,
        credentials,
    } = member;
    let again = format!("a new one: {}", facts.join(name));
    match credentials {
        CredentialFacts::OfHome => {
            Line::good(format!("{name} is this cluster itself, by {source}"))
        }
        CredentialFacts::Elsewhere => Line::warning(
            format!(
                "{name} is a member by {source}: its credentials are not in a Secret, and were not checked"
            ),
            "see what the controller says of it",
        ),
        CredentialFacts::InSecret(Err(problem)) => Line::bad(
            format!("{name}: the controller refuses {source}: {problem}"),
            again,
        ),
        CredentialFacts::InSecret(Ok(token)) => judge_token(member, token, facts, again),
    }
}

fn judge_token(member: &MemberFacts, token: &TokenFacts, facts: &Facts, again: String) -> Line {
    let (name, source) = (&member.name, &member.source);
    let TokenFacts {
        server,
        life,
        tried,
        subject: _,
    } = token;
    if let Some(life) = life.filter(|life| life.until <= facts.now) {
        let when = day(life.until);
        return Line::bad(
            format!("{name}: the token in {source} ended on {when}"),
            again,
        );
    }
    match tried {
        Tried::Refused(problem) => {
            return Line::bad(
                format!("{name}: {server} refuses the token in {source}: {problem}"),
                again,
            );
        }
        Tried::BadCertificate(why, problem) => {
            let (text, next) = match why {
                CertificateProblem::Untrusted => (
                    format!("and {source} has not the authority of its certificate"),
                    again,
                ),
                CertificateProblem::Expired => (
                    "and its certificate has expired or is not valid yet".to_owned(),
                    "renew the serving certificate of the API server, or correct the clock here"
                        .to_owned(),
                ),
                CertificateProblem::NameMismatch => (
                    format!("and its certificate is not of the host in {source}"),
                    "use a host name or address of the certificate in the kubeconfig, or set its tls-server-name".to_owned(),
                ),
            };
            return Line::bad(format!("{name}: {server} answers, {text}: {problem}"), next);
        }
        Tried::Unreached(problem) => {
            return Line::of(
                Level::Warning,
                format!("{name}: {server} is not reached from here: {problem}"),
                Some("the controller may reach it: see what it says below".to_owned()),
            );
        }
        Tried::Works(uid) => {
            let cluster = facts.clusters.iter().find(|one| one.name == *name);
            let inside = cluster.and_then(|one| one.inside.as_ref().ok());
            let seen = inside.and_then(|inside| inside.uid.as_ref());
            if let (Some(uid), Some(seen)) = (uid, seen)
                && uid != seen
            {
                let context = cluster.and_then(|one| one.context.clone());
                return Line::bad(
                    format!(
                        "{name}: {source} leads to another cluster than context {}",
                        context.unwrap_or_default()
                    ),
                    format!("say which context is meant: --contexts {name}=CONTEXT,…"),
                );
            }
        }
    }
    let Some(life) = life else {
        return Line::good(format!("{name}: the credentials in {source} work"));
    };
    let text = format!(
        "{name}: the token in {source} works, until {}",
        day(life.until)
    );
    if is_soon(*life, facts.now) {
        Line::warning(text, again)
    } else {
        Line::good(text)
    }
}

fn is_soon(life: Life, now: Timestamp) -> bool {
    let left = life.until.duration_since(now);
    let whole = life.until.duration_since(life.from);
    left < WEEK && left.as_secs() < whole.as_secs() / LAST_PART
}

fn day(at: Timestamp) -> String {
    at.strftime("%F %R UTC").to_string()
}

/// Reports the rights that home grants a member, where these are missing or cannot be read.
fn granted(member: &MemberView, facts: &Facts) -> Vec<Line> {
    let (name, source) = (&member.name, &member.source);
    let is_unreadable = |what: &str| member.complaints.iter().any(|one| one.starts_with(what));
    let bad = |complaint: &String| {
        let text = format!("{name}: {source}: {complaint}");
        Line::bad(text, "see the annotations in docs/reference.md")
    };
    let mut lines: Vec<Line> = member.complaints.iter().map(bad).collect();
    let is_going = member.link == "Removing";
    let Some(networks) = member.pod_cidrs.as_ref().filter(|_| !is_going) else {
        return lines;
    };
    let next = match kind_of(source) {
        Some(SourceKind::Home) => {
            "--self-pod-cidrs and --self-export-namespaces of the controller (the chart's controller.selfPodCidrs and controller.selfExportNamespaces)".to_owned()
        }
        Some(SourceKind::File) => {
            let [networks, namespaces] = statement_files(name);
            format!("keys {networks} and {namespaces} beside its kubeconfig")
        }
        Some(SourceKind::ClusterProfile) => {
            format!("annotations or properties {POD_CIDRS} and {EXPORT_NAMESPACES} of it")
        }
        Some(SourceKind::Secret) if facts.is_held(name) => {
            format!("annotations {POD_CIDRS} and {EXPORT_NAMESPACES} of it")
        }
        Some(SourceKind::Secret) | None => facts.join(name),
    };
    let is_join =
        matches!(kind_of(source), Some(SourceKind::Secret) | None) && !facts.is_held(name);
    // without the flag join keeps what the Secret says
    let other = |flag: &str| {
        let flag = if is_join { flag } else { "" };
        format!("{next}{flag}")
    };
    if networks.is_empty() && is_unreadable(POD_CIDRS) {
        let text = format!(
            "{name}: the networks of its pods are not known: other clusters send no request to what it exports (AddressDenied)"
        );
        lines.push(Line::warning(text, other(" --pod-cidr CIDR")));
    } else if networks.is_empty() {
        let text = format!(
            "{name}: {source} does not say the networks of its pods: other clusters send no request to what it exports (AddressDenied)"
        );
        lines.push(Line::warning(text, next.clone()));
    } else if let Some(text) = outside(name, networks, facts) {
        let next = other(" --pod-cidr CIDR");
        lines.push(Line::bad(
            text,
            format!("say the whole range of its pods: {next}"),
        ));
    }
    if member.export_namespaces.is_none() && is_unreadable(EXPORT_NAMESPACES) {
        let text = format!(
            "{name}: it is not known which namespaces it may export: nothing new of it is exported"
        );
        lines.push(Line::warning(text, other(" --namespaces NAMES")));
    } else if member.export_namespaces.is_none() {
        let text = format!(
            "{name}: {source} does not say which namespaces it may export: all but those of the system"
        );
        lines.push(Line::warning(text, next));
    }
    lines
}

/// Pods of a member's exported pools that are outside the networks that home records, as far as the pods could be read.
fn outside(name: &str, networks: &[String], facts: &Facts) -> Option<String> {
    let networks = parse_pod_cidrs(&networks.join(",")).ok()?;
    let cluster = facts.clusters.iter().find(|one| one.name == name)?;
    let pods = &cluster.inside.as_ref().ok()?.pods;
    let seen = pods
        .iter()
        .filter_map(|(pool, found)| Some((pool, found.as_ref().ok()?)))
        .flat_map(|(pool, addresses)| addresses.iter().map(move |address| (pool, address)));
    let is_outside = |address: IpAddr| !networks.iter().any(|network| network.contains(address));
    let mut outside = seen.clone().filter(|(_, address)| is_outside(**address));
    let ((namespace, pool), address) = outside.next()?;
    let (outside, all) = (1 + outside.count(), seen.count());
    let texts: Vec<String> = networks.iter().map(ToString::to_string).collect();
    Some(format!(
        "{name}: {outside} of {all} ready pods of what it exports, such as {address} of {namespace}/{pool}, are outside of the networks that home says ({}): other clusters send no request there",
        texts.join(",")
    ))
}

/// What the controller says of its members.
fn said(view: &View, facts: &Facts) -> Vec<Line> {
    let mut lines = Vec::new();
    for member in &view.clusters {
        let active = &member.active;
        let detail = member
            .denied
            .as_ref()
            .map(|denied| format!("grant {denied}"))
            .or_else(|| member.detail.clone());
        let detail = detail.unwrap_or_else(|| active.message.clone());
        let text = format!("the controller says of {}: {}", member.name, active.reason);
        lines.push(match active.status {
            true if active.reason == "Active" => Line::good(text),
            true => Line::warning(text, detail),
            false => Line::bad(text, detail),
        });
        lines.extend(granted(member, facts));
    }
    lines.extend(view.unused.iter().map(|unused| {
        Line::bad(
            format!(
                "{} names no member: {}",
                unused.source, unused.active.reason
            ),
            unused.detail.clone(),
        )
    }));
    if view.guard {
        lines.push(Line::bad(
            "many members were lost at once: the controller holds all withdrawals",
            "docs/runbook.md, MciIsolationGuard",
        ));
    }
    lines
}
