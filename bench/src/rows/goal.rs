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

/// What a figure is to reach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goal {
    /// The limit of the figure.
    pub bound: Bound,
    /// Who set it.
    pub set_by: SetBy,
}

/// A limit, in the unit of its figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// The figure is to be at most this.
    AtMost(f64),
    /// The figure is to be at least this.
    AtLeast(f64),
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

// === impl Bound ===

impl Bound {
    /// Whether a value is within the limit.
    pub fn holds(self, value: f64) -> bool {
        match self {
            Self::AtMost(limit) => value <= limit,
            Self::AtLeast(limit) => value >= limit,
        }
    }

    /// Between the name of a figure and the limit.
    pub fn sign(self) -> &'static str {
        match self {
            Self::AtMost(_) => "≤",
            Self::AtLeast(_) => "≥",
        }
    }

    /// The number that is the limit.
    pub fn limit(self) -> f64 {
        match self {
            Self::AtMost(limit) | Self::AtLeast(limit) => limit,
        }
    }
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

pub(super) const fn design(bench: &'static str, name: &'static str, at_most: f64) -> Row {
    goal(bench, name, at_most, SetBy::Design)
}

pub(super) const fn formerly(bench: &'static str, name: &'static str, at_most: f64) -> Row {
    goal(bench, name, at_most, SetBy::FormerDesign)
}

pub(super) const fn specified(bench: &'static str, name: &'static str, at_most: f64) -> Row {
    goal(bench, name, at_most, SetBy::Specification)
}

pub(super) const fn ours(bench: &'static str, name: &'static str, at_most: f64) -> Row {
    goal(bench, name, at_most, SetBy::Ours)
}

const fn goal(bench: &'static str, name: &'static str, at_most: f64, set_by: SetBy) -> Row {
    let bound = Bound::AtMost(at_most);
    let goal = Some(Goal { bound, set_by });
    Row { bench, name, goal }
}

pub(super) const fn design_at_least(bench: &'static str, name: &'static str, limit: f64) -> Row {
    let goal = Some(Goal {
        bound: Bound::AtLeast(limit),
        set_by: SetBy::Design,
    });
    Row { bench, name, goal }
}

pub(super) const fn info(bench: &'static str, name: &'static str) -> Row {
    let goal = None;
    Row { bench, name, goal }
}
