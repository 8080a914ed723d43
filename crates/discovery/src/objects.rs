//! What the optional kinds say of a pool's models: from their objects to plain values; pure.

use std::collections::BTreeMap;

use ::watch::OddObject;
use crd::{
    inference_model::{Criticality, InferenceModel},
    inference_model_rewrite::{InferenceModelRewrite, Rule},
    inference_objective::InferenceObjective,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

/// What the objects of one pool say. In each list an earlier entry counts before a later one: older objects come first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Objects {
    /// Those of the current group come before those of the former one. Names may be there twice.
    pub objectives: Vec<Objective>,
    /// The rules of all objects, those of one object in its order.
    pub rewrites: Vec<Rewrite>,
    /// Names may be there twice.
    pub models: Vec<Model>,
}

/// An InferenceObjective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Objective {
    /// As requests name it.
    pub name: String,
    /// The higher, the more they matter.
    pub priority: i32,
}

/// A rule of an InferenceModelRewrite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewrite {
    /// The models that it is for; none: all.
    pub models: Vec<String>,
    /// At least one, with some weight.
    pub targets: Vec<Target>,
}

/// An InferenceModel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// As clients ask for it.
    pub name: String,
    /// 1 of a critical one, 0, or -1 of one that may be shed.
    pub priority: i32,
    /// What servers get; none: the name as it is. Without any weight the name is reserved, and nothing serves it.
    pub targets: Vec<Target>,
}

/// A model that servers get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its name.
    pub model: String,
    /// Its share among its like.
    pub weight: u32,
}

/// An object, as far as it matters.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) name: String,
    /// Absent: it is another pool's.
    pub(crate) found: Option<Found>,
}

/// What an object says of our pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    created: Option<Time>,
    says: Says,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Says {
    Objective(i32),
    Rewrite(Vec<Rewrite>),
    Model(Model),
}

// === impl Objects ===

impl Objects {
    /// Of the objects by name, one table for each resource; of two groups of a kind the current one first.
    pub(crate) fn of<'a>(tables: impl Iterator<Item = &'a BTreeMap<String, Found>>) -> Self {
        let mut objects = Self::default();
        let (mut rewrites, mut models) = (Vec::new(), Vec::new());
        for (name, found) in tables.flatten() {
            // of unknown age is younger than any
            let age = (found.created.is_none(), &found.created, name);
            match &found.says {
                Says::Objective(priority) => objects.objectives.push(Objective {
                    name: name.clone(),
                    priority: *priority,
                }),
                Says::Rewrite(rules) => rewrites.push((age, rules)),
                Says::Model(model) => models.push((age, model)),
            }
        }
        // stable: of equal ones that of the current group stays first
        rewrites.sort_by_key(|(age, _)| *age);
        models.sort_by_key(|(age, _)| *age);
        let rules = rewrites.into_iter().flat_map(|(_, rules)| rules);
        objects.rewrites = rules.cloned().collect();
        objects.models = models.into_iter().map(|(_, model)| model.clone()).collect();
        objects
    }
}

// === impl Seen ===

impl Seen {
    fn of(metadata: ObjectMeta, says: Option<Says>) -> Self {
        let created = metadata.creation_timestamp;
        Self {
            name: metadata.name.unwrap_or_default(),
            found: says.map(|says| Found { created, says }),
        }
    }

    /// Every one that decodes can be used.
    pub(crate) fn objective(pool: &str, object: InferenceObjective) -> Self {
        let spec = object.spec;
        let ours = spec.pool_ref.names(pool);
        let says = ours.then(|| Says::Objective(spec.priority.unwrap_or(0)));
        Self::of(object.metadata, says)
    }

    /// # Errors
    /// Of one that is ours and cannot be used.
    pub(crate) fn rewrite(pool: &str, object: InferenceModelRewrite) -> Result<Self, OddObject> {
        let (metadata, spec) = (object.metadata, object.spec);
        if !spec.pool_ref.names(pool) {
            return Ok(Self::of(metadata, None));
        }
        let rules = spec.rules.into_iter().map(rewrite);
        match rules.collect() {
            Ok(rules) => Ok(Self::of(metadata, Some(Says::Rewrite(rules)))),
            Err(error) => Err(OddObject::new(&metadata, &error)),
        }
    }

    /// # Errors
    /// Of one that is ours and cannot be used.
    pub(crate) fn model(pool: &str, object: InferenceModel) -> Result<Self, OddObject> {
        let (metadata, spec) = (object.metadata, object.spec);
        if !spec.pool_ref.names(pool) {
            return Ok(Self::of(metadata, None));
        }
        let targets = spec.target_models.into_iter().flatten();
        let targets: Vec<_> = targets
            .map(|target| Target {
                model: target.name,
                weight: target.weight.unwrap_or(1),
            })
            .collect();
        let error = if spec.model_name.is_empty() {
            "modelName is empty"
        } else if targets.iter().any(|target| target.model.is_empty()) {
            "the name of a target is empty"
        } else {
            let says = Says::Model(Model {
                name: spec.model_name,
                priority: match spec.criticality {
                    Some(Criticality::Critical) => 1,
                    Some(Criticality::Standard) | None => 0,
                    Some(Criticality::Sheddable) => -1,
                },
                targets,
            });
            return Ok(Self::of(metadata, Some(says)));
        };
        Err(OddObject::new(&metadata, &error))
    }
}

fn rewrite(rule: Rule) -> Result<Rewrite, &'static str> {
    let matches = rule.matches.into_iter().flatten();
    let targets = rule.targets.into_iter().flatten();
    let targets: Vec<_> = targets
        .map(|target| Target {
            model: target.model_rewrite,
            weight: target.weight.unwrap_or(1),
        })
        .collect();
    if targets.iter().any(|target| target.model.is_empty()) {
        return Err("modelRewrite of a target is empty");
    }
    if targets.iter().all(|target| target.weight == 0) {
        return Err("a rule has no target, or none with a weight");
    }
    Ok(Rewrite {
        models: matches.map(|one| one.model.value).collect(),
        targets,
    })
}

#[cfg(test)]
mod tests;
