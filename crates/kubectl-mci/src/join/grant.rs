//! What a member is granted: the networks of its pods, and the namespaces that it may export.

use anyhow::bail;
use crd::{
    annotations::{EXPORT_NAMESPACES, POD_CIDRS},
    networks::{Cidr, parse_pod_cidrs},
};
use k8s_openapi::api::core::v1::{Node, Pod, Secret};
use kube::{Api, ResourceExt, api::ListParams};
use mci_model::index::grant::ExportNamespaces;
use serde_json::{Value, json};

use super::networks::{self, Shown};
use crate::cluster::Cluster;

/// Pods in one answer, and the number of answers: so many pods are looked at, in the order of their namespaces.
const PODS: u32 = 500;
const PAGES: usize = 20;

/// The rights that the member's Secret records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    /// The networks of its pods; none if they are not known, and the Secret records none.
    pod_cidrs: Option<String>,
    export_namespaces: String,
}

/// A grant, and its source.
pub(super) struct Decided {
    pub(super) grant: Grant,
    /// Notes that are printed for the user.
    pub(super) notes: Vec<String>,
    /// Whether the networks come from the cluster itself, and neither from flags nor from the Secret.
    pub(super) is_guess: bool,
}

// === impl Grant ===

impl Grant {
    /// The grant that the flags state.
    pub(super) fn given(pod_cidrs: &[Cidr], namespaces: Option<ExportNamespaces>) -> Decided {
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
    pub(super) async fn of(
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

    pub(super) fn annotations(&self) -> Value {
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
}
