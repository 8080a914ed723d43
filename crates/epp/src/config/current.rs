//! What is in force: the file and the cluster's objects, merged when one of them changes and not when requests ask.

use std::{ops::Deref, sync::Arc};

use ::discovery::Objects;
use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;

use super::{Config, Models};

/// The configuration in force, swapped as a whole. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct CurrentConfig(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    in_force: ArcSwap<InForce>,
    /// Held while another [`InForce`] is made: two that change one of its parts lose neither.
    objects: Mutex<Objects>,
}

/// A configuration, with what the cluster's objects add to it.
#[derive(Debug, Default)]
pub struct InForce {
    config: Arc<Config>,
    models: Models,
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

    /// Puts another in force; the objects stay.
    pub fn replace(&self, config: Config) {
        let objects = self.0.objects.lock();
        let next = InForce::new(Arc::new(config), &objects);
        self.0.in_force.store(Arc::new(next));
    }

    /// Puts other objects in force; the configuration stays.
    pub fn set_objects(&self, new: Objects) {
        let mut objects = self.0.objects.lock();
        *objects = new;
        let config = Arc::clone(&self.load().config);
        self.0
            .in_force
            .store(Arc::new(InForce::new(config, &objects)));
    }
}

// === impl InForce ===

impl InForce {
    fn new(config: Arc<Config>, objects: &Objects) -> Self {
        let models = Models::merge(&config, objects);
        Self { config, models }
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
        current.set_objects(Objects::default());
        assert_eq!(seen(&current), (Some(2), None));
    }
}
