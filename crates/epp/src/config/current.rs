//! What is in force: the file and the cluster's objects, merged when one of them changes and not when requests ask.

use std::{ops::Deref, sync::Arc};

use ::discovery::Objects;
use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use scheduling::{Profile, inference_lb::PrefillCharge};
use tracing::warn;

use super::{Config, Ignored, Models, llm::LlmProfiles};
use crate::llm::{LlmFilter, Match};

/// The configuration in force, swapped as a whole. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct CurrentConfig(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    in_force: ArcSwap<InForce>,
    /// Held while another [`InForce`] is made: two that change one of its parts lose neither.
    beside: Mutex<Beside>,
}

/// What is in force beside the endpoint picker's file.
#[derive(Debug, Default)]
struct Beside {
    objects: Objects,
    /// From a file of its own.
    llm_filter: Option<Arc<LlmFilter>>,
    /// Prompt caches count for nobody, whatever the files say.
    ignores_caches: bool,
}

/// A configuration, with what the cluster's objects add to it.
#[derive(Debug, Default)]
pub struct InForce {
    config: Arc<Config>,
    llm_filter: Option<Arc<LlmFilter>>,
    /// Of requests under the LLM filter.
    profiles: Option<LlmProfiles>,
    models: Models,
    uses_caches: bool,
    /// Whether the cluster has InferenceObjectives of the pool.
    has_objectives: bool,
}

// === impl CurrentConfig ===

impl CurrentConfig {
    /// Begins with `config`, and without objects.
    pub fn new(config: Config) -> Self {
        let current = Self::default();
        current.replace(config);
        current
    }

    /// The configuration of this moment. Do not hold it across an await.
    pub fn load(&self) -> Guard<Arc<InForce>> {
        self.0.in_force.load()
    }

    /// The file's part, to hold for longer.
    pub fn load_full(&self) -> Arc<Config> {
        Arc::clone(&self.load().config)
    }

    /// Puts another in force; what is beside it stays.
    pub fn replace(&self, config: Config) {
        let beside = self.0.beside.lock();
        self.store(Arc::new(config), &beside);
    }

    /// Puts other objects in force; the rest stays.
    pub fn set_objects(&self, objects: Objects) {
        let mut beside = self.0.beside.lock();
        beside.objects = objects;
        self.store(self.load_full(), &beside);
    }

    /// Puts another LLM filter in force, one of a file of its own; the rest stays.
    pub fn set_llm_filter(&self, filter: LlmFilter) {
        let mut beside = self.0.beside.lock();
        beside.llm_filter = Some(Arc::new(filter));
        self.store(self.load_full(), &beside);
    }

    /// Whether prompt caches count, where the files say so too.
    pub fn use_caches(&self, is_so: bool) {
        let mut beside = self.0.beside.lock();
        beside.ignores_caches = !is_so;
        self.store(self.load_full(), &beside);
    }

    fn store(&self, config: Arc<Config>, beside: &Beside) {
        let next = InForce::new(config, beside);
        self.0.in_force.store(Arc::new(next));
    }
}

// === impl InForce ===

impl InForce {
    fn new(config: Arc<Config>, beside: &Beside) -> Self {
        let llm_filter = beside.llm_filter.as_ref().or(config.llm_filter.as_ref());
        let mut llm_filter = llm_filter.cloned();
        let mut config = config;
        if beside.ignores_caches {
            let (config, filter) = (Arc::make_mut(&mut config), llm_filter.as_mut());
            config.profile.ignore_caches();
            filter.map(Arc::make_mut).map(LlmFilter::ignore_caches);
        }
        let mut models = Models::merge(&config, &beside.objects);
        if let Some(filter) = &llm_filter {
            models.list(filter.rules.names());
        }
        let profiles = llm_filter
            .as_ref()
            .map(|filter| LlmProfiles::new(filter, &config.profile));
        Self {
            config,
            llm_filter,
            profiles,
            models,
            uses_caches: !beside.ignores_caches,
            has_objectives: !beside.objects.objectives.is_empty(),
        }
    }

    /// Whether there are InferenceObjectives that no request can name.
    fn has_unheeded_objectives(&self) -> bool {
        self.has_objectives && !self.models.trusted_headers().objective
    }

    /// Logs that InferenceObjectives have no effect, where that is so. To be called when either of the two changed.
    pub(crate) fn warn_of_objectives(&self) {
        if self.has_unheeded_objectives() {
            warn!(
                "InferenceObjectives have no effect: isthmus.trustedHeaders of the configuration lacks \"objective\""
            );
        }
    }

    /// Whether prompt caches count, where the files say so too.
    pub(crate) fn uses_caches(&self) -> bool {
        self.uses_caches
    }

    /// The LLM filter, wherever it comes from.
    pub fn llm_filter(&self) -> Option<&Arc<LlmFilter>> {
        self.llm_filter.as_ref()
    }

    /// How endpoints are chosen for a request with this match, or for one without any.
    pub(crate) fn profile_of(&self, found: Option<&Match>) -> &Profile {
        match (found, &self.profiles) {
            (Some(found), Some(profiles)) => profiles.of(found.model.as_deref()),
            _ => &self.config.profile,
        }
    }

    /// What a request with this match adds to its endpoint's prefill.
    pub(crate) fn prefill_charge_of(&self, found: &Match) -> PrefillCharge {
        let Some(filter) = &self.llm_filter else {
            return self.config.profile.prefill_charge();
        };
        let model = found.model.as_deref().unwrap_or_default();
        filter.balance(model).prefill_charge
    }

    /// What of the files has no effect.
    pub fn ignored(&self) -> impl Iterator<Item = &Ignored> {
        let of_filter = self.llm_filter.iter().flat_map(|filter| &filter.ignored);
        self.config.ignored.iter().chain(of_filter)
    }

    /// What is known of models.
    pub(crate) fn models(&self) -> &Models {
        &self.models
    }
}

impl Deref for InForce {
    type Target = Config;

    fn deref(&self) -> &Config {
        &self.config
    }
}

#[cfg(test)]
mod tests {
    use ::discovery::Objective;

    use super::*;

    fn seen(current: &CurrentConfig) -> (Option<i32>, Option<i32>) {
        let in_force = current.load();
        let models = in_force.models();
        (models.objective("file"), models.objective("object"))
    }

    fn mk_config(priority: i32) -> Config {
        Config {
            objectives: [("file".to_owned(), priority)].into(),
            ..Config::default()
        }
    }

    #[test]
    fn a_change_of_the_file_keeps_the_objects_and_the_other_way_round() {
        let current = CurrentConfig::new(mk_config(1));
        assert_eq!(seen(&current), (Some(1), None));
        let object = Objective {
            name: "object".to_owned(),
            priority: 5,
        };
        current.set_objects(Objects {
            objectives: vec![object],
            ..Objects::default()
        });
        assert_eq!(seen(&current), (Some(1), Some(5)));
        current.replace(mk_config(2));
        assert_eq!(seen(&current), (Some(2), Some(5)));
        assert!(current.load().has_unheeded_objectives());
        let mut trusting = mk_config(2);
        trusting.trusted_headers.objective = true;
        current.replace(trusting);
        assert!(!current.load().has_unheeded_objectives());
        current.set_objects(Objects::default());
        assert_eq!(seen(&current), (Some(2), None));
    }
}
