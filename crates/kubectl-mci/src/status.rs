//! `kubectl mci status`: pools × clusters, with the reason of each hole.

mod gateways;
mod gather;
mod judge;
mod text;

use std::{collections::BTreeSet, io::Write};

use crd::{InferencePoolImport, inference_pool::InferencePool};
use serde::Serialize;

pub(crate) use self::gateways::{GatewayView, gateways};
pub(crate) use self::gather::gather;
pub(crate) use self::judge::judge;
pub(crate) use self::text::render;
use crate::{args::StatusArgs, contexts::Contexts, fleet::Fleet, ignored::Ignored, output::Paint};

/// A cluster, as it was seen.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) cluster: String,
    pub(crate) context: Option<String>,
    /// Else why it could not be seen.
    pub(crate) facts: Result<Facts, String>,
}

/// What a cluster has.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// None: they could not be listed.
    pub(crate) namespaces: Option<BTreeSet<String>>,
    pub(crate) pools: Result<Vec<InferencePool>, Unlisted>,
    pub(crate) imports: Result<Vec<InferencePoolImport>, Unlisted>,
    /// Annotations that have no effect on objects of other kinds.
    pub(crate) ignored: Vec<Ignored>,
}

/// Why objects of a kind could not be listed. It does not show whether there are any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unlisted {
    /// Whether the API server serves the kind in the version that is read.
    pub(crate) is_served: bool,
    /// The message for the user, with the name of the cluster.
    pub(crate) problem: String,
}

/// Pools × clusters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Status {
    pub(crate) clusters: Vec<ClusterRow>,
    pub(crate) pools: Vec<PoolRow>,
    /// Annotations that have no effect.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) ignored: Vec<Ignored>,
}

/// A column of the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ClusterRow {
    pub(crate) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) context: Option<String>,
    /// Why it could not be looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) problem: Option<String>,
    /// Why objects of some kind could not be listed, where other kinds could.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) unlisted: Vec<String>,
}

/// A line of the table: all that clusters have under one namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct PoolRow {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// One for each cluster, in their order.
    pub(crate) cells: Vec<Cell>,
}

/// A pool in a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Cell {
    pub(crate) cluster: String,
    /// Whether the cluster could be looked at.
    pub(crate) seen: bool,
    /// The kinds of objects that could not be listed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) unlisted: Vec<Kind>,
    /// Whether it has an InferencePool of this name.
    pub(crate) has_pool: bool,
    /// Its export; absent where none is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exports: Option<Exports>,
    /// Its import; absent where it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) imports: Option<Imports>,
    /// What is missing or not ready there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) holes: Vec<Hole>,
}

/// A kind of objects that is listed in a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Kind {
    InferencePool,
    InferencePoolImport,
}

/// What a pool's condition `Exported` says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Exports {
    /// `True`, or why not.
    pub(crate) exported: bool,
    /// As the annotation has it; absent: the controller's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mode: Option<String>,
    /// For a person.
    pub(crate) message: String,
}

/// Names of the clusters whose pools an import has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Imports {
    pub(crate) ready: Vec<String>,
    pub(crate) not_ready: Vec<String>,
}

/// Why a pool is not where it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Hole {
    /// The exporting cluster that is missing; absent: it is about the cluster's own export.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) from: Option<String>,
    /// `NAMESPACE/NAME` of the Gateway that reports it; absent if no Gateway does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gateway: Option<String>,
    pub(crate) reason: String,
    pub(crate) message: String,
}

// === impl ClusterRow ===

impl ClusterRow {
    /// Why parts of the cluster could not be read.
    pub(crate) fn problems(&self) -> impl Iterator<Item = &String> {
        self.problem.iter().chain(&self.unlisted)
    }
}

// === impl Cell ===

impl Cell {
    /// Whether objects of this kind could not be listed, though the cluster was looked at.
    pub(crate) fn has_unlisted(&self, kind: Kind) -> bool {
        self.unlisted.contains(&kind)
    }
}

pub(crate) async fn status(
    args: StatusArgs,
    contexts: &Contexts,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let StatusArgs { namespace, fleet } = args;
    let found = Fleet::of(&fleet, contexts).await?;
    found.note_unseen_secrets();
    let seen = gather(&found.looks, namespace.as_deref()).await;
    let status = judge(&seen);
    let paint = Paint::of_stdout();
    let text = fleet.output.render(&status, || render(&status, paint))?;
    Ok(out.write_all(text.as_bytes())?)
}

#[cfg(test)]
mod tests;
