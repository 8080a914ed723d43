//! The names that requests may use: the model's own, and those of LoRA adapters.

use std::{collections::BTreeMap, str::FromStr, sync::Arc};

use parking_lot::RwLock;
use serde::Deserialize;

/// 1000 adapters known at a time; a list of them is then about 200 kB.
const MAX_ADAPTERS: usize = 1000;

/// 256 bytes: longer than any name or path in use.
const MAX_NAME: usize = 256;

/// A LoRA adapter, as `--lora-modules` and `/v1/load_lora_adapter` name it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoraModule {
    /// The name that requests use.
    pub name: String,
    /// Where its weights would be; only shown.
    #[serde(default)]
    pub path: String,
    /// Ignored; vLLM has it.
    #[serde(default)]
    pub base_model_name: Option<String>,
}

/// What a name of a request stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Model {
    /// As the client wrote it.
    pub(crate) name: Arc<str>,
    /// `None`: the base model.
    pub(crate) adapter: Option<Arc<str>>,
}

/// All names.
#[derive(Debug)]
pub(crate) struct Models {
    served: Vec<Arc<str>>,
    /// Path by name.
    adapters: RwLock<BTreeMap<Arc<str>, Arc<str>>>,
}

/// Why an adapter is not loaded or unloaded.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoraError {
    /// The name or path is of no use.
    #[error("{0:?} is not an adapter: use a name, or name=path, of at most 256 bytes")]
    Invalid(String),
    /// The name is taken.
    #[error("The lora adapter '{0}' has already been loaded: unload it first, or use another name")]
    Taken(String),
    /// Too many of them.
    #[error("1000 adapters are loaded already, which is the limit: unload one first")]
    TooMany,
    /// There is none of this name.
    #[error("The lora adapter '{0}' cannot be found: see /v1/models")]
    Unknown(String),
}

// === impl LoraModule ===

impl FromStr for LoraModule {
    type Err = LoraError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || LoraError::Invalid(text.to_owned());
        let module = if text.starts_with('{') {
            serde_json::from_str(text).map_err(|_| invalid())?
        } else {
            let (name, path) = text.split_once('=').unwrap_or((text, ""));
            Self {
                name: name.to_owned(),
                path: path.to_owned(),
                base_model_name: None,
            }
        };
        module.check()?;
        Ok(module)
    }
}

impl LoraModule {
    /// Commas would split the name in the metrics, which list adapters.
    fn check(&self) -> Result<(), LoraError> {
        let bad = self.name.trim().is_empty()
            || self.name.contains([',', '\n'])
            || self.name.len() > MAX_NAME
            || self.path.len() > MAX_NAME;
        if bad {
            let name = self.name.chars().take(50).collect();
            return Err(LoraError::Invalid(name));
        }
        Ok(())
    }
}

// === impl Models ===

impl Models {
    pub(crate) fn new(served: &[String], adapters: &[LoraModule]) -> Self {
        let adapters = adapters
            .iter()
            .map(|module| (module.name.as_str().into(), module.path.as_str().into()));
        Self {
            served: served.iter().map(|name| name.as_str().into()).collect(),
            adapters: RwLock::new(adapters.collect()),
        }
    }

    /// Checks that the adapters of the flags have names of their own and are not too many.
    pub(crate) fn check(served: &[String], adapters: &[LoraModule]) -> Result<(), LoraError> {
        let models = Self::new(served, &[]);
        adapters.iter().try_for_each(|module| models.load(module))
    }

    pub(crate) fn resolve(&self, name: &str) -> Option<Model> {
        if let Some(name) = self.served.iter().find(|served| ***served == *name) {
            return Some(Model {
                name: name.clone(),
                adapter: None,
            });
        }
        let adapters = self.adapters.read();
        let (name, _) = adapters.get_key_value(name)?;
        Some(Model {
            name: name.clone(),
            adapter: Some(name.clone()),
        })
    }

    /// The model where a request may leave it out.
    pub(crate) fn default_model(&self) -> Option<Model> {
        let name = self.served.first()?.clone();
        Some(Model {
            name,
            adapter: None,
        })
    }

    pub(crate) fn load(&self, module: &LoraModule) -> Result<(), LoraError> {
        module.check()?;
        let mut adapters = self.adapters.write();
        let name = module.name.as_str();
        if adapters.contains_key(name) || self.served.iter().any(|served| **served == *name) {
            return Err(LoraError::Taken(name.to_owned()));
        }
        if adapters.len() >= MAX_ADAPTERS {
            return Err(LoraError::TooMany);
        }
        adapters.insert(name.into(), module.path.as_str().into());
        Ok(())
    }

    /// Requests that use it already go on.
    pub(crate) fn unload(&self, name: &str) -> Result<(), LoraError> {
        match self.adapters.write().remove(name) {
            Some(_) => Ok(()),
            None => Err(LoraError::Unknown(name.chars().take(50).collect())),
        }
    }

    pub(crate) fn served(&self) -> &[Arc<str>] {
        &self.served
    }

    pub(crate) fn has_adapters(&self) -> bool {
        !self.adapters.read().is_empty()
    }

    /// Name and path of each adapter, by name.
    pub(crate) fn adapters(&self) -> Vec<(Arc<str>, Arc<str>)> {
        let adapters = self.adapters.read();
        adapters
            .iter()
            .map(|(name, path)| (name.clone(), path.clone()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn mk_module(name: &str) -> LoraModule {
        name.parse().expect("valid")
    }

    #[rstest]
    #[case("sql", "sql", "")]
    #[case("sql=/models/sql", "sql", "/models/sql")]
    #[case(r#"{"name":"sql","path":"p","base_model_name":"m"}"#, "sql", "p")]
    fn usual_spellings_are_read(#[case] text: &str, #[case] name: &str, #[case] path: &str) {
        let module = mk_module(text);
        assert_eq!((module.name.as_str(), module.path.as_str()), (name, path));
    }

    #[rstest]
    #[case("")]
    #[case("=p")]
    #[case("a,b")]
    #[case("{}")]
    fn names_of_no_use_are_refused(#[case] text: &str) {
        assert!(matches!(
            text.parse::<LoraModule>(),
            Err(LoraError::Invalid(_))
        ));
    }

    #[test]
    fn adapters_come_and_go_under_names_of_their_own() {
        let models = Models::new(&["base".to_owned()], &[]);
        models.load(&mk_module("sql")).expect("free");
        for taken in ["sql", "base"] {
            let error = models.load(&mk_module(taken)).expect_err("taken");
            assert_eq!(error, LoraError::Taken(taken.to_owned()));
        }
        let adapter = |name: &str| models.resolve(name).map(|model| model.adapter);
        assert_eq!(adapter("sql"), Some(Some("sql".into())));
        assert_eq!(adapter("base"), Some(None));
        models.unload("sql").expect("loaded");
        assert_eq!(adapter("sql"), None);
        assert_eq!(
            models.unload("sql"),
            Err(LoraError::Unknown("sql".to_owned()))
        );
    }

    #[test]
    fn no_more_than_1000_adapters_are_known() {
        let models = Models::new(&["base".to_owned()], &[]);
        for number in 0..MAX_ADAPTERS {
            models.load(&mk_module(&number.to_string())).expect("room");
        }
        assert_eq!(models.load(&mk_module("one more")), Err(LoraError::TooMany));
    }
}
