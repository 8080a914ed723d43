//! Which clusters are looked at: those that the user names, else home's members, by the contexts that lead to them.

use anyhow::bail;
use mci_model::index::origin::SourceKind;

use crate::{
    args::{FleetArgs, HomeArgs, NamedContext},
    cluster::Cluster,
    contexts::Contexts,
    known::{Definition, Known},
    output::plain,
};

/// A cluster to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) name: String,
    /// None: no context leads there.
    pub(crate) context: Option<String>,
}

/// A cluster of the fleet, or why it cannot be looked at.
pub(crate) struct Look {
    pub(crate) target: Target,
    pub(crate) cluster: Result<Cluster, String>,
}

/// Home and what it knows, and the clusters.
pub(crate) struct Fleet {
    pub(crate) home: Cluster,
    pub(crate) known: Known,
    /// One for each member.
    pub(crate) members: Vec<Definition>,
    pub(crate) looks: Vec<Look>,
}

// === impl Fleet ===

impl Fleet {
    pub(crate) async fn of(args: &FleetArgs, contexts: &Contexts) -> anyhow::Result<Self> {
        let HomeArgs {
            home_namespace,
            clusterset,
            ..
        } = &args.home;
        let home_context = contexts.choose(args.home_context(), "--home-context")?;
        for named in &args.contexts {
            contexts.choose(Some(&named.context), "--contexts")?;
        }
        let home = Cluster::connect(contexts, &home_context, &home_context).await?;
        let known = Known::read(&home, home_namespace, clusterset).await;
        if args.contexts.is_empty()
            && known.no_record.is_some()
            && let Some(problem) = known.unseen.get(&SourceKind::Secret)
        {
            bail!("{problem}\nOr name the clusters to look at: --contexts east,west");
        }
        let members = known.members();
        let mut looks = Vec::new();
        // one after another: several may ask the user to log in
        for target in choose(&args.contexts, &members, contexts, &home_context) {
            let cluster = match &target.context {
                Some(context) => Cluster::connect(contexts, context, &target.name)
                    .await
                    .map_err(|error| error.to_string()),
                None => Err(format!(
                    "{0}: no context of the kubeconfig leads there: name it, --contexts {0}=CONTEXT,…",
                    target.name
                )),
            };
            looks.push(Look { target, cluster });
        }
        Ok(Self {
            home,
            known,
            members,
            looks,
        })
    }

    /// Says on stderr that the members are those that the controller has met, where their Secrets are not seen: not
    /// everybody who looks at pools may read these.
    pub(crate) fn note_unseen_secrets(&self) {
        if let Some(problem) = self.known.unseen.get(&SourceKind::Secret) {
            let problem = plain(problem);
            eprintln!("note: {problem}\nnote: members are those that the controller has met");
        }
    }
}

/// Which clusters, by which contexts. Pure.
fn choose(
    named: &[NamedContext],
    members: &[Definition],
    contexts: &Contexts,
    home_context: &str,
) -> Vec<Target> {
    if !named.is_empty() {
        let targets = named.iter().map(|one| Target {
            name: one
                .member
                .clone()
                .unwrap_or_else(|| member_behind(&one.context, members, contexts)),
            context: Some(one.context.clone()),
        });
        return targets.collect();
    }
    if members.is_empty() {
        return vec![Target {
            name: home_context.to_owned(),
            context: Some(home_context.to_owned()),
        }];
    }
    let context_of = |member: &Definition| {
        if contexts.has(&member.name) {
            return Some(member.name.clone());
        }
        contexts
            .leading_to(&server_of(member)?)
            .map(ToOwned::to_owned)
    };
    let targets = members.iter().map(|member| Target {
        name: member.name.clone(),
        context: context_of(member),
    });
    targets.collect()
}

/// The member that a context leads to, else the context's own name.
fn member_behind(context: &str, members: &[Definition], contexts: &Contexts) -> String {
    let found = find_behind(context, members, contexts);
    found.map_or(context, |one| &one.name).to_owned()
}

/// The member that has the context's name, else the one that the controller reaches at the same server.
pub(crate) fn find_behind<'a>(
    context: &str,
    members: &'a [Definition],
    contexts: &Contexts,
) -> Option<&'a Definition> {
    let cluster = contexts.cluster(context).ok();
    let server = cluster.and_then(|cluster| cluster.server.as_deref());
    let server = server.map(|server| server.trim_end_matches('/'));
    let same = |one: &&Definition| {
        server_of(one).is_some_and(|found| Some(found.trim_end_matches('/')) == server)
    };
    let named = members.iter().find(|one| one.name == context);
    named.or_else(|| members.iter().find(same))
}

/// Where the controller reaches it.
pub(crate) fn server_of(member: &Definition) -> Option<String> {
    let credentials = member.credentials.as_ref()?.as_ref().ok()?;
    Some(credentials.server())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::known::{mk_secret, of_secret};

    const CONTEXTS: &str = r"
clusters:
- {name: e, cluster: {server: 'https://east.example.com:6443'}}
- {name: w, cluster: {server: 'https://west.example.com:6443'}}
contexts:
- {name: east, context: {cluster: e, user: u}}
- {name: admin@west, context: {cluster: w, user: u}}
current-context: admin@west
";

    fn mk_members() -> Vec<Definition> {
        vec![
            of_secret(&mk_secret("east", "https://10.1.255.1:6443")),
            of_secret(&mk_secret("south", "https://south.example.com:6443")),
            of_secret(&mk_secret("west", "https://west.example.com:6443")),
        ]
    }

    #[test]
    fn a_member_is_reached_by_its_name_or_its_server() {
        let targets = choose(&[], &mk_members(), &Contexts::parse(CONTEXTS), "admin@west");
        let found: Vec<_> = targets
            .iter()
            .map(|target| (target.name.as_str(), target.context.as_deref()))
            .collect();
        assert_eq!(
            found,
            [
                ("east", Some("east")),
                ("south", None),
                ("west", Some("admin@west"))
            ]
        );
    }

    #[rstest]
    #[case("admin@west", "west")]
    #[case("south=admin@west", "south")]
    #[case("east", "east")]
    fn a_named_context_has_the_name_of_its_member(#[case] text: &str, #[case] name: &str) {
        let named = [text.parse().expect("parses")];
        let targets = choose(&named, &mk_members(), &Contexts::parse(CONTEXTS), "east");
        assert_eq!(targets[0].name, name);
    }

    #[test]
    fn without_members_home_alone_is_looked_at() {
        let targets = choose(&[], &[], &Contexts::parse(CONTEXTS), "east");
        assert_eq!(targets.len(), 1);
        assert_eq!(targets[0].context.as_deref(), Some("east"));
    }
}
