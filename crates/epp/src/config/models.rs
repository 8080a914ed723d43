//! What the file and the cluster's objects say of models, made ready for requests (pure): each answer is one look into a table.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use ::discovery::Objects;
use rand::{Rng, RngExt};

use super::{Config, TrustedHeaders};

/// The models of one pool. Where both say something of the same, objects count before the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Models {
    /// What clients may ask for.
    listed: HashMap<Box<str>, Model>,
    /// By the very name.
    exact: HashMap<Box<str>, Targets>,
    /// Of all others.
    generic: Option<Targets>,
    /// By name.
    objectives: HashMap<Box<str>, i32>,
    trusted_headers: TrustedHeaders,
    /// Some name leads to another.
    renames: bool,
}

/// A model that clients may ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Model {
    /// Of requests without an objective.
    pub(crate) priority: i32,
    /// Absent: servers know it by its name.
    pub(crate) targets: Option<Targets>,
}

/// Names for servers, of which one is chosen by weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Targets {
    /// Each with the sum of the weights up to its own; none has the weight 0.
    names: Vec<(u64, Arc<str>)>,
    total: u64,
}

// === impl Models ===

impl Models {
    /// Of the file and of the objects.
    pub(crate) fn merge(config: &Config, objects: &Objects) -> Self {
        let mut models = Self {
            trusted_headers: config.trusted_headers,
            ..Self::default()
        };
        for one in &objects.objectives {
            models.add_objective(&one.name, one.priority);
        }
        for (name, priority) in &config.objectives {
            models.add_objective(name, *priority);
        }
        for rule in &objects.rewrites {
            let targets = rule.targets.iter();
            let targets = Targets::of(targets.map(|one| (one.model.as_str(), one.weight)));
            models.add_rule(rule.models.iter().map(String::as_str), targets);
        }
        for rule in &config.rewrites {
            let targets = rule.targets.iter();
            let targets = Targets::of(targets.map(|one| (one.model.as_str(), one.weight)));
            models.add_rule(rule.models.iter().map(String::as_str), targets);
        }
        for one in &objects.models {
            let targets = one.targets.iter();
            let targets = targets.map(|one| (one.model.as_str(), one.weight));
            let model = Model {
                priority: one.priority,
                targets: (!one.targets.is_empty()).then(|| Targets::of(targets)),
            };
            models.renames |= model.targets.is_some();
            models
                .listed
                .entry(one.name.as_str().into())
                .or_insert(model);
        }
        models.list(config.models.iter().map(String::as_str));
        models
    }

    /// Clients may ask for these, too.
    pub(crate) fn list<'a>(&mut self, names: impl Iterator<Item = &'a str>) {
        for name in names {
            self.listed.entry(name.into()).or_default();
        }
    }

    /// Whether there is a list of what clients may ask for.
    pub(crate) fn is_listed(&self) -> bool {
        !self.listed.is_empty()
    }

    /// Whether it may matter which model a request asks for.
    pub(crate) fn renames(&self) -> bool {
        self.renames
    }

    /// A model that clients may ask for.
    pub(crate) fn get(&self, name: &str) -> Option<&Model> {
        self.listed.get(name)
    }

    /// What the rules for all clients make of a name.
    pub(crate) fn rewrite(&self, name: &str) -> Option<&Targets> {
        self.exact.get(name).or(self.generic.as_ref())
    }

    /// The priority of an objective.
    pub(crate) fn objective(&self, name: &str) -> Option<i32> {
        self.objectives.get(name).copied()
    }

    /// Headers that are believed.
    pub(crate) fn trusted_headers(&self) -> TrustedHeaders {
        self.trusted_headers
    }

    fn add_objective(&mut self, name: &str, priority: i32) {
        self.objectives.entry(name.into()).or_insert(priority);
    }

    /// Of the rules for a name the first counts.
    fn add_rule<'a>(&mut self, names: impl Iterator<Item = &'a str>, targets: Targets) {
        self.renames = true;
        let mut names = names.peekable();
        if names.peek().is_none() {
            self.generic.get_or_insert(targets);
            return;
        }
        for name in names {
            if let Entry::Vacant(vacant) = self.exact.entry(name.into()) {
                vacant.insert(targets.clone());
            }
        }
    }
}

// === impl Targets ===

impl Targets {
    fn of<'a>(targets: impl Iterator<Item = (&'a str, u32)>) -> Self {
        let mut total = 0;
        let targets = targets.filter(|(_, weight)| *weight > 0);
        let names = targets.map(|(name, weight)| {
            total += u64::from(weight);
            (total, name.into())
        });
        let names = names.collect();
        Self { names, total }
    }

    /// One by chance, in proportion to the weights. `None`: none has any.
    pub(crate) fn choose<R: Rng + ?Sized>(&self, rng: &mut R) -> Option<&Arc<str>> {
        let at = match self.names.len() {
            0 => return None,
            1 => 0,
            _ => rng.random_range(0..self.total),
        };
        let index = self.names.partition_point(|(end, _)| *end <= at);
        self.names.get(index).map(|(_, name)| name)
    }
}
