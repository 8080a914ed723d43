//! Which requests go where: by model, then by headers.

use std::{
    collections::{HashMap, hash_map::Entry},
    fmt::Write,
    sync::Arc,
};

use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use metadata::Cluster;
use rand::{Rng, RngExt};
use scheduling::Labels;
use transcode::Backend;

mod overlap;

/// Models with their rules, ready for requests: a find is one look into a table and one pass over the model's rules.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// In the order of the file.
    models: Vec<Model>,
    /// Into `models`.
    by_name: HashMap<Arc<str>, usize>,
    /// Into `models`: the first that has the adapter in one of its rules.
    by_adapter: HashMap<Arc<str>, usize>,
    /// What each cluster is in this pool; absent: the whole pool is the only one.
    clusters: Option<HashMap<Cluster, Arc<Labels>>>,
    /// The cluster of all rules, if it is one.
    only_cluster: Option<Cluster>,
}

#[derive(Clone, Debug, PartialEq)]
struct Model {
    name: Arc<str>,
    /// Those with more headers first, else in the order of the file.
    rules: Vec<Arc<Rule>>,
}

/// What requests for a model must have, and where they go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Where the file has it, such as `model_mapping_rule.qwen.rules[0]`; empty: no file has it.
    pub place: Arc<str>,
    /// Labels logs and metrics.
    pub scene_name: Arc<str>,
    /// Labels logs.
    pub chain_name: Arc<str>,
    /// Labels logs.
    pub route_name: Arc<str>,
    /// What serves the requests.
    pub backend: Backend,
    /// All must be in the request, with these values.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// One of them is chosen by weight; none: all endpoints of the cluster.
    pub subsets: Vec<Arc<Subset>>,
    /// What keys load and cache.
    pub cluster: Cluster,
}

/// A part of a cluster's endpoints, and perhaps an adapter that they load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subset {
    /// Labels logs.
    pub name: Arc<str>,
    /// Endpoints must have all.
    pub labels: Arc<Labels>,
    /// The adapter that the request is for, instead of the model.
    pub lora: Option<Arc<str>>,
    /// Its share among the subsets of the rule; if all are 0 they are equal.
    pub weight: u32,
}

/// Headers of a request, as they came.
#[derive(Clone, Copy, Debug)]
pub struct Headers<'a>(&'a [(Bytes, Bytes)]);

/// Where a request goes. It stays as it is while the configuration changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match {
    /// The rule; of a request that none is for, one without conditions.
    pub rule: Arc<Rule>,
    /// The part of the cluster that was chosen; absent: all of it.
    pub subset: Option<Arc<Subset>>,
    /// What keys load and cache.
    pub cluster: Cluster,
    /// The model whose rules they are, which has the weights of `lb_mapping_rule`; absent: no rule is for the request.
    pub model: Option<Arc<str>>,
    /// Labels of the cluster's endpoints; absent: it is the whole pool.
    cluster_labels: Option<Arc<Labels>>,
    /// The client named the adapter itself.
    names_adapter: bool,
}

/// Why no rule has a place for a request. All become 404.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// The model is none of the file's, nor an adapter of its rules.
    #[error("the model {0:?} is not served here")]
    ModelNotFound(String),
    /// Its rules ask for other headers.
    #[error("no rule of the model {model:?} is for the headers of this request: {wanted}")]
    RuleNotFound {
        /// As the client named it.
        model: String,
        /// The conditions of its rules.
        wanted: String,
    },
    /// The rule is for another pool.
    #[error(
        "the cluster {cluster:?}, to which the rule of the model {model:?} leads, is not served here"
    )]
    ClusterNotServed {
        /// As the client named it.
        model: String,
        /// Of the rule.
        cluster: Cluster,
    },
    /// There are endpoints, but none for the rule.
    #[error(
        "no model server has the labels {labels} that the rule of the model {model:?} asks for"
    )]
    LabelsMatchNone {
        /// As the client named it.
        model: String,
        /// Of the rule's subset and its cluster.
        labels: String,
    },
}

/// Bytes of the conditions that a message lists.
const MAX_WANTED: usize = 200;

// === impl Table ===

impl Table {
    /// Of the file's models in their order, each with its rules in theirs; and of the labels of each cluster that this pool
    /// serves, unless it serves the only one there is.
    pub fn new(
        models: Vec<(Arc<str>, Vec<Rule>)>,
        clusters: Option<HashMap<Cluster, Arc<Labels>>>,
    ) -> Self {
        let mut table = Self {
            clusters,
            ..Self::default()
        };
        let mut all = models.iter().flat_map(|(_, rules)| rules);
        let first = all.next().map(|rule| &rule.cluster);
        if all.all(|rule| Some(&rule.cluster) == first) {
            table.only_cluster = first.cloned();
        }
        for (name, rules) in models {
            let at = table.models.len();
            for lora in rules
                .iter()
                .flat_map(|rule| &rule.subsets)
                .filter_map(|one| one.lora.as_ref())
            {
                table.by_adapter.entry(Arc::clone(lora)).or_insert(at);
            }
            let mut rules: Vec<_> = rules.into_iter().map(Arc::new).collect();
            rules.sort_by_key(|rule| std::cmp::Reverse(rule.headers.len()));
            if let Entry::Vacant(vacant) = table.by_name.entry(Arc::clone(&name)) {
                vacant.insert(at);
                table.models.push(Model { name, rules });
            }
        }
        table
    }

    /// The rule for a request that asks for `model`, which is compared letter by letter.
    ///
    /// # Errors
    /// [`RuleError`] where there is none, or one for a cluster that this pool does not serve.
    pub fn find<R: Rng + ?Sized>(
        &self,
        model: &str,
        headers: &Headers<'_>,
        rng: &mut R,
    ) -> Result<Match, RuleError> {
        let of_adapter = || self.by_adapter.get(model).map(|at| (*at, true));
        let of_model = self.by_name.get(model).map(|at| (*at, false));
        let found = of_model.or_else(of_adapter);
        let not_found = || RuleError::ModelNotFound(model.to_owned());
        let (at, names_adapter) = found.ok_or_else(not_found)?;
        let entry = self.models.get(at).ok_or_else(not_found)?;
        let is_for_it =
            |subset: &Arc<Subset>| !names_adapter || subset.lora.as_deref() == Some(model);
        let rules = entry
            .rules
            .iter()
            .filter(|rule| !names_adapter || rule.subsets.iter().any(is_for_it));
        let rule = rules.clone().find(|rule| rule.matches(headers));
        let rule = rule.ok_or_else(|| RuleError::RuleNotFound {
            model: model.to_owned(),
            wanted: conditions(rules),
        })?;
        let cluster_labels =
            self.labels_of(&rule.cluster)
                .map_err(|()| RuleError::ClusterNotServed {
                    model: model.to_owned(),
                    cluster: rule.cluster.clone(),
                })?;
        Ok(Match {
            rule: Arc::clone(rule),
            subset: choose(rule.subsets.iter().filter(|one| is_for_it(one)), rng).cloned(),
            cluster: rule.cluster.clone(),
            model: Some(Arc::clone(&entry.name)),
            cluster_labels,
            names_adapter,
        })
    }

    /// The match of a request whose model no rule is for, where it is served all the same: all endpoints of the pool, as
    /// they are.
    pub fn default_match(&self, pool: &Cluster) -> Match {
        let cluster = self.only_cluster.as_ref().unwrap_or(pool).clone();
        Match {
            rule: Arc::new(Rule::of(cluster.clone())),
            subset: None,
            cluster,
            model: None,
            cluster_labels: None,
            names_adapter: false,
        }
    }

    /// What clients may ask for: the models, in the order of the file, and then the adapters.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let models = self.models.iter().map(|model| &*model.name);
        let mut adapters: Vec<&str> = self.by_adapter.keys().map(|name| &**name).collect();
        adapters.sort_unstable();
        models.chain(adapters)
    }

    /// All rules, in the order in which they are tried.
    pub fn rules(&self) -> impl Iterator<Item = (&str, &Rule)> {
        let mut all = Vec::new();
        for model in &self.models {
            all.extend(model.rules.iter().map(|rule| (&*model.name, &**rule)));
        }
        all.into_iter()
    }

    fn labels_of(&self, cluster: &Cluster) -> Result<Option<Arc<Labels>>, ()> {
        match &self.clusters {
            None => Ok(None),
            Some(clusters) => clusters.get(cluster).cloned().map(Some).ok_or(()),
        }
    }
}

/// One by weight; none of none.
fn choose<'a, R: Rng + ?Sized>(
    subsets: impl Iterator<Item = &'a Arc<Subset>> + Clone,
    rng: &mut R,
) -> Option<&'a Arc<Subset>> {
    let mut count = 0_u64;
    let mut total = 0_u64;
    for subset in subsets.clone() {
        count += 1;
        total += u64::from(subset.weight);
    }
    if count <= 1 {
        return subsets.into_iter().next();
    }
    let is_weighted = total > 0;
    let weight = |subset: &Subset| if is_weighted { subset.weight.into() } else { 1 };
    let mut at = rng.random_range(0..if is_weighted { total } else { count });
    subsets.into_iter().find(|subset| {
        let weight = weight(subset);
        let found = at < weight;
        at = at.saturating_sub(weight);
        found
    })
}

/// What rules ask for, for a message: `x-env: prod and x-region: us, or x-env: prod`.
fn conditions<'a>(rules: impl Iterator<Item = &'a Arc<Rule>>) -> String {
    let mut text = String::from("expected ");
    for (nth, rule) in rules.enumerate() {
        let headers = rule
            .headers
            .iter()
            .map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value.as_bytes())));
        let separator = if nth == 0 { "" } else { ", or " };
        text.push_str(separator);
        text.push_str(&headers.collect::<Vec<_>>().join(" and "));
        if text.len() > MAX_WANTED {
            text.truncate(text.floor_char_boundary(MAX_WANTED));
            text.push_str("...");
            break;
        }
    }
    text
}

// === impl Rule ===

impl Rule {
    /// All requests go to this cluster, under no names.
    fn of(cluster: Cluster) -> Self {
        Self {
            place: "".into(),
            scene_name: "".into(),
            chain_name: "".into(),
            route_name: "".into(),
            backend: Backend::default(),
            headers: Vec::new(),
            subsets: Vec::new(),
            cluster,
        }
    }

    /// Whether the request has all of its headers.
    fn matches(&self, headers: &Headers<'_>) -> bool {
        let mut wanted = self.headers.iter();
        wanted.all(|(name, value)| headers.get(name.as_str()) == Some(value.as_bytes()))
    }
}

// === impl Headers ===

impl<'a> Headers<'a> {
    /// Of these fields, whose names are in any case.
    pub fn new(fields: &'a [(Bytes, Bytes)]) -> Self {
        Self(fields)
    }

    /// The value of a header; of one that is there several times the first.
    pub fn get(&self, name: &str) -> Option<&'a [u8]> {
        let mut fields = self.0.iter();
        let (_, value) = fields.find(|(field, _)| field.eq_ignore_ascii_case(name.as_bytes()))?;
        Some(value)
    }
}

// === impl Match ===

impl Match {
    /// Whether an endpoint of these labels may serve the request.
    pub fn admits(&self, labels: &Labels) -> bool {
        self.wanted()
            .all(|(key, value)| labels.get(key) == Some(value))
    }

    /// The model that the server is asked for instead of the one that the client named; none: the same.
    pub fn adapter(&self) -> Option<&Arc<str>> {
        let lora = self.subset.as_ref()?.lora.as_ref();
        lora.filter(|_| !self.names_adapter)
    }

    /// The error where endpoints are ready and none is admitted.
    pub fn labels_match_none(&self, model: &str) -> RuleError {
        let mut labels = String::new();
        for (key, value) in self.wanted() {
            if !labels.is_empty() {
                labels.push(',');
            }
            let _ = write!(labels, "{key}={value}");
        }
        RuleError::LabelsMatchNone {
            model: model.to_owned(),
            labels,
        }
    }

    /// All of what endpoints must have: the labels of the cluster, and of the subset.
    pub fn labels(&self) -> impl Iterator<Item = &Arc<Labels>> {
        let of_subset = self.subset.as_deref().map(|subset| &subset.labels);
        self.cluster_labels.iter().chain(of_subset)
    }

    /// Labels of the cluster and of the subset.
    fn wanted(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<str>)> {
        let of_cluster = self.cluster_labels.as_deref().into_iter().flatten();
        let of_subset = self.subset.as_deref().map(|subset| &*subset.labels);
        of_cluster.chain(of_subset.into_iter().flatten())
    }
}

// === impl RuleError ===

impl RuleError {
    /// Stable: metric label and error type alike.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::ModelNotFound(_) => "model-not-found",
            Self::RuleNotFound { .. } => "rule-not-found",
            Self::ClusterNotServed { .. } => "cluster-not-served",
            Self::LabelsMatchNone { .. } => "labels-match-none",
        }
    }
}

#[cfg(test)]
mod tests;
