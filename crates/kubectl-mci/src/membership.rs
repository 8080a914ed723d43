//! Whether a cluster may join, and whether and how a member may leave. Pure.
//!
//! Two mistakes cost more than an error: a second membership of one cluster, which the controller refuses, and rights that
//! are taken away while a controller works with them.

use std::collections::BTreeSet;

use crate::{
    args::{CLUSTERSET, HOME_NAMESPACE},
    fleet::server_of,
    known::{Definition, Granted, Known, Source, kind_of},
};

/// The cluster behind the context that was given, and the name that it is to have or has.
#[derive(Clone, Debug)]
pub(crate) struct Candidate<'a> {
    pub(crate) name: &'a str,
    pub(crate) context: &'a str,
    /// None: it has no identity.
    pub(crate) uid: Option<&'a str>,
    /// Where the controller is to reach it.
    pub(crate) server: Option<&'a str>,
}

/// Where home is.
#[derive(Clone, Debug)]
pub(crate) struct Place<'a> {
    pub(crate) context: &'a str,
    pub(crate) namespace: &'a str,
    pub(crate) clusterset: &'a str,
}

// === impl Place ===

impl Place<'_> {
    /// The flags that lead a command there.
    pub(crate) fn flags(&self) -> String {
        let more = [
            ("--home-namespace", self.namespace, HOME_NAMESPACE),
            ("--clusterset", self.clusterset, CLUSTERSET),
        ];
        let more = more.iter().filter(|(_, value, default)| value != default);
        let more = more.map(|(flag, value, _)| format!(" {flag} {value}"));
        let begin = format!("--home-context {}", self.context);
        std::iter::once(begin).chain(more).collect()
    }
}

/// How a member leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Leave {
    /// It is none, and has nothing of a controller's.
    Done,
    Go {
        /// Names of the Secrets at home that define it; none: they are gone already.
        secrets: Vec<String>,
        /// Another name under which the cluster is a member: the rights stay for that.
        other_name: Option<String>,
        /// Whether it was checked that the candidate is the member.
        identified: bool,
    },
}

/// Why nothing is done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error(
        "the controller in {namespace} of {home} is of ClusterSet {theirs}, not {asked}: --clusterset {theirs}"
    )]
    ClusterSet {
        home: String,
        namespace: String,
        theirs: String,
        asked: String,
    },
    #[error(
        "the controller in {namespace} of {home} runs with --member-secrets=false: a Secret makes no member"
    )]
    NoSecrets { home: String, namespace: String },
    #[error(
        "{home}: the name {name} is held by {by}: choose another name, or give it up there first: {removal}"
    )]
    Held {
        home: String,
        name: String,
        by: String,
        removal: String,
    },
    #[error(
        "{home}: Secret {namespace}/{name} is the member {other}, by its annotation isthmus.dev/cluster-name: choose another name"
    )]
    OtherName {
        home: String,
        namespace: String,
        name: String,
        other: String,
    },
    #[error(
        "context {context} leads to another cluster (uid {found}) than the member {name} is (uid {known}): {next}"
    )]
    OtherCluster {
        context: String,
        name: String,
        found: String,
        known: String,
        next: String,
    },
    #[error(
        "context {context} leads to the cluster that is the member {other} already, by {by}: one cluster is one member; kubectl mci leave {other} first, if it is to have another name"
    )]
    SameCluster {
        context: String,
        other: String,
        by: String,
    },
    #[error(
        "{home}: {name} is a member by {sources}, which this does not take away; first: {removal}"
    )]
    NotBySecret {
        home: String,
        name: String,
        sources: String,
        removal: String,
    },
    #[error(
        "{home}: no Secret in {namespace} makes {name} a member, and no controller there knows it, while {name} has rights, imports or conditions of a controller: is home another cluster (--home-context, --home-namespace, --clusterset)? If no controller uses them any more: --force takes the rights away"
    )]
    Unknown {
        home: String,
        namespace: String,
        name: String,
    },
}

/// Why a cluster may not become a member under this name. A member may join again.
pub(crate) fn refuse_join(
    candidate: &Candidate<'_>,
    known: &Known,
    home: &Place<'_>,
) -> Option<Refusal> {
    let name = candidate.name;
    if let Some(refusal) = refuse_clusterset(known, home) {
        return Some(refusal);
    }
    if known.setup.as_ref().is_some_and(|setup| !setup.secrets) {
        return Some(Refusal::NoSecrets {
            home: home.context.to_owned(),
            namespace: home.namespace.to_owned(),
        });
    }
    let own = own_secret(name, home);
    for definition in &known.definitions {
        if definition.name == name && definition.source != own {
            return Some(Refusal::Held {
                home: home.context.to_owned(),
                name: name.to_owned(),
                by: definition.source.to_string(),
                removal: held_removal(
                    &definition.source.removal(home.context),
                    &definition.granted,
                ),
            });
        }
        if definition.source == own && definition.name != name {
            return Some(Refusal::OtherName {
                home: home.context.to_owned(),
                namespace: home.namespace.to_owned(),
                name: name.to_owned(),
                other: definition.name.clone(),
            });
        }
    }
    if let Some(source) = unseen_source(name, known) {
        return Some(Refusal::Held {
            home: home.context.to_owned(),
            name: name.to_owned(),
            by: source.to_owned(),
            removal: held_removal(
                &Source::Met(source.to_owned()).removal(home.context),
                &Granted::default(),
            ),
        });
    }
    let present = known.definitions.iter().find(|one| one.source == own);
    let accepts = present.and_then(|one| one.accepts.as_deref());
    if accepts.is_none() || accepts != candidate.uid {
        let next = |found: &str| {
            let context = home.context;
            let namespace = home.namespace;
            let anew = match present {
                Some(_) => format!(
                    "kubectl --context {context} -n {namespace} annotate --overwrite secret {name} isthmus.dev/accept-identity={found}"
                ),
                None => format!(
                    "wait until the controller has let the old one go: kubectl mci check {}",
                    home.flags()
                ),
            };
            format!("see --context, or choose another name; if the cluster was made anew: {anew}")
        };
        if let Some(refusal) = refuse_another(candidate, known, next) {
            return Some(refusal);
        }
    }
    let (other, by) = other_name(candidate, known)?;
    Some(Refusal::SameCluster {
        context: candidate.context.to_owned(),
        other,
        by,
    })
}

/// How a member leaves; `in_use`: its cluster grants a controller something, or has something of it. `force`: whatever
/// home knows of it.
/// # Errors
/// Why it does not.
pub(crate) fn plan_leave(
    candidate: &Candidate<'_>,
    known: &Known,
    home: &Place<'_>,
    in_use: bool,
    force: bool,
) -> Result<Leave, Refusal> {
    let name = candidate.name;
    if let Some(refusal) = refuse_clusterset(known, home) {
        return Err(refusal);
    }
    let mut secrets = Vec::new();
    let mut others = Vec::new();
    for definition in known.definitions.iter().filter(|one| one.name == name) {
        match &definition.source {
            Source::Secret { name, .. } => secrets.push(name.clone()),
            other => others.push(other.clone()),
        }
    }
    let unseen = unseen_source(name, known).filter(|_| secrets.is_empty());
    others.extend(unseen.map(|source| Source::Met(source.to_owned())));
    if !others.is_empty() {
        let sources: Vec<String> = others.iter().map(ToString::to_string).collect();
        let removal: Vec<String> = others.iter().map(|one| one.removal(home.context)).collect();
        return Err(Refusal::NotBySecret {
            home: home.context.to_owned(),
            name: name.to_owned(),
            sources: sources.join(" and "),
            removal: removal.join("; "),
        });
    }
    let next = |_: &str| {
        let (context, namespace) = (home.context, home.namespace);
        let secret = secrets.first().map_or(name, String::as_str);
        format!(
            "see --context; if the cluster was made anew, nothing is to be taken away there: kubectl --context {context} -n {namespace} delete secret {secret}"
        )
    };
    if let Some(refusal) = refuse_another(candidate, known, next) {
        return Err(refusal);
    }
    if secrets.is_empty() && !known.met.contains_key(name) {
        if !in_use {
            return Ok(Leave::Done);
        }
        if !force {
            return Err(Refusal::Unknown {
                home: home.context.to_owned(),
                namespace: home.namespace.to_owned(),
                name: name.to_owned(),
            });
        }
    }
    Ok(Leave::Go {
        secrets,
        other_name: other_name(candidate, known).map(|(other, _)| other),
        identified: candidate.uid.is_some() && !known.uids(name).is_empty(),
    })
}

/// Where the controller reaches the member now, by the Secret that `join` would write; none where the candidate is not the
/// cluster that this leads to.
pub(crate) fn present_server(
    candidate: &Candidate<'_>,
    known: &Known,
    home: &Place<'_>,
) -> Option<String> {
    if refuse_another(candidate, known, |_| String::new()).is_some() {
        return None;
    }
    let own = own_secret(candidate.name, home);
    let present = known.definitions.iter().find(|one| one.source == own)?;
    Some(server_of(present)?.trim_end_matches('/').to_owned())
}

/// How a name is given up for `join`, which otherwise would not record the rights that go with the object.
fn held_removal(removal: &str, granted: &Granted) -> String {
    let flags = granted.flags();
    if flags.is_empty() {
        removal.to_owned()
    } else {
        format!("{removal}; then join with{flags}")
    }
}

/// The Secret that `join` writes.
fn own_secret(name: &str, home: &Place<'_>) -> Source {
    Source::Secret {
        namespace: home.namespace.to_owned(),
        name: name.to_owned(),
    }
}

fn refuse_clusterset(known: &Known, home: &Place<'_>) -> Option<Refusal> {
    let theirs = known.setup.as_ref()?.clusterset.as_ref()?;
    (theirs != home.clusterset).then(|| Refusal::ClusterSet {
        home: home.context.to_owned(),
        namespace: home.namespace.to_owned(),
        theirs: theirs.clone(),
        asked: home.clusterset.to_owned(),
    })
}

/// The object that the controller has the name by, where objects of its kind were not looked at. One that was looked for and
/// is not there is on its way out.
fn unseen_source<'a>(name: &str, known: &'a Known) -> Option<&'a str> {
    if known.definitions.iter().any(|one| one.name == name) {
        return None;
    }
    let source = &known.met.get(name)?.source;
    let kind = kind_of(source)?;
    known.unseen.contains_key(&kind).then_some(source)
}

/// The name was that of another cluster.
fn refuse_another(
    candidate: &Candidate<'_>,
    known: &Known,
    next: impl Fn(&str) -> String,
) -> Option<Refusal> {
    let found = candidate.uid?;
    let uids = known.uids(candidate.name);
    if uids.is_empty() || uids.contains(found) {
        return None;
    }
    Some(Refusal::OtherCluster {
        context: candidate.context.to_owned(),
        name: candidate.name.to_owned(),
        found: found.to_owned(),
        known: uids.into_iter().collect::<Vec<_>>().join(", "),
        next: next(found),
    })
}

/// Another name of the cluster, and what names it so: by its identity, else by the address of its API server.
fn other_name(candidate: &Candidate<'_>, known: &Known) -> Option<(String, String)> {
    let address = |server: &str| server.trim_end_matches('/').to_owned();
    let wanted = candidate.server.map(address);
    let is_same = |name: &str, uids: &BTreeSet<&str>| {
        if let Some(uid) = candidate.uid
            && !uids.is_empty()
        {
            return uids.contains(uid);
        }
        let mut definitions = known.definitions.iter().filter(|one| one.name == name);
        let same = |one: &Definition| server_of(one).map(|server| address(&server)) == wanted;
        wanted.is_some() && definitions.any(same)
    };
    let names = known.names().into_iter();
    let mut others = names.filter(|name| *name != candidate.name);
    let other = others.find(|name| is_same(name, &known.uids(name)))?;
    let definition = known.definitions.iter().find(|one| one.name == other);
    let source = definition.map_or_else(
        || {
            known
                .met
                .get(other)
                .map(|met| met.source.clone())
                .unwrap_or_default()
        },
        |one| one.source.to_string(),
    );
    Some((other.to_owned(), source))
}

#[cfg(test)]
mod tests;
