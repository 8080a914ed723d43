//! A figure of the table, and what it is to reach.

use serde::Serialize;

/// A figure with its goal.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// What measures it: a name that `bench` takes.
    pub bench: &'static str,
    /// As `bench` names the figure.
    pub name: &'static str,
    /// What it is to reach; none: for information, and of our own making.
    pub goal: Option<Goal>,
}

/// An upper limit, in the unit of its figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goal {
    /// The figure is to be at most this.
    pub at_most: f64,
    /// Who set it.
    pub set_by: SetBy,
}

/// Where a goal comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SetBy {
    /// The design's figures to reach.
    Design,
    /// An earlier version of the design, which states another goal today.
    #[serde(rename = "former design")]
    FormerDesign,
    /// The specification of the controller, of the EPP or of the router: its figures, or its table of faults.
    Specification,
    /// Us alone: a case that neither names, or an easier one than they name.
    Ours,
}

// === impl SetBy ===

impl SetBy {
    /// As the document says it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Design => "design",
            Self::FormerDesign => "former design",
            Self::Specification => "specification",
            Self::Ours => "ours",
        }
    }
}
