//! An object that may not decode, without the price that kube's own guard asks of those that do.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, core::PartialObjectMeta};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error},
};
use serde_json::value::RawValue;

use crate::OddObject;

/// An object of kind `K`, or what can be said of one that does not decode: so that it spoils neither the list nor the
/// watch that it comes in. As kube's `DeserializeGuard`; but the object's text is set aside and decoded once, not taken
/// apart into a tree that is then copied and decoded.
///
/// Decodes from JSON alone, and in a watch event from one whose `type` stands before its `object`, as every API server
/// writes it: another order fails the watch, and a list follows.
#[derive(Clone, Debug)]
pub struct Tolerant<K>(Found<K>);

#[derive(Clone, Debug)]
enum Found<K> {
    Object(K),
    Odd {
        metadata: Box<ObjectMeta>,
        error: String,
    },
}

// === impl Tolerant ===

impl<K> Tolerant<K> {
    /// # Errors
    /// Which object did not decode, and why.
    pub(crate) fn decoded(self) -> Result<K, OddObject> {
        match self.0 {
            Found::Object(object) => Ok(object),
            Found::Odd { metadata, error } => Err(OddObject::new(&metadata, &error)),
        }
    }
}

impl<'de, K: Resource + DeserializeOwned> Deserialize<'de> for Tolerant<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let found = match serde_json::from_str(text.get()) {
            Ok(object) => Found::Object(object),
            Err(error) => {
                let object: PartialObjectMeta<K> =
                    serde_json::from_str(text.get()).map_err(D::Error::custom)?;
                Found::Odd {
                    metadata: Box::new(object.metadata),
                    error: error.to_string(),
                }
            }
        };
        Ok(Self(found))
    }
}

impl<K: Resource> Resource for Tolerant<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(of: &K::DynamicType) -> Cow<'_, str> {
        K::kind(of)
    }

    fn group(of: &K::DynamicType) -> Cow<'_, str> {
        K::group(of)
    }

    fn version(of: &K::DynamicType) -> Cow<'_, str> {
        K::version(of)
    }

    fn plural(of: &K::DynamicType) -> Cow<'_, str> {
        K::plural(of)
    }

    fn meta(&self) -> &ObjectMeta {
        match &self.0 {
            Found::Object(object) => object.meta(),
            Found::Odd { metadata, .. } => metadata,
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match &mut self.0 {
            Found::Object(object) => object.meta_mut(),
            Found::Odd { metadata, .. } => metadata,
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use kube::core::{ObjectList, WatchEvent};

    use super::*;

    const ODD: &str = r#"{"metadata": {"name": "odd", "namespace": "ml", "resourceVersion": "7"}, "spec": "none"}"#;

    #[test]
    fn an_object_that_does_not_decode_is_still_known_by_its_metadata() {
        let event = format!(r#"{{"type": "MODIFIED", "object": {ODD}}}"#);
        let event: WatchEvent<Tolerant<Pod>> = serde_json::from_str(&event).expect("an event");
        let WatchEvent::Modified(pod) = event else {
            panic!("{event:?}");
        };
        assert_eq!(pod.meta().resource_version.as_deref(), Some("7"));
        let odd = pod.decoded().expect_err("it does not decode");
        assert_eq!((odd.namespace.as_str(), odd.name.as_str()), ("ml", "odd"));
        assert!(odd.error.contains("PodSpec"), "{}", odd.error);
    }

    #[test]
    fn it_leaves_the_others_of_its_list_alone() {
        let list = format!(
            r#"{{"apiVersion": "v1", "kind": "PodList", "metadata": {{}}, "items": [{ODD}, {{"metadata": {{"name": "a"}}}}]}}"#
        );
        let list: ObjectList<Tolerant<Pod>> = serde_json::from_str(&list).expect("a list");
        let decoded: Vec<bool> = list
            .items
            .into_iter()
            .map(|pod| pod.decoded().is_ok())
            .collect();
        assert_eq!(decoded, [false, true]);
    }

    #[test]
    fn what_has_no_metadata_is_no_object() {
        serde_json::from_str::<Tolerant<Pod>>(r#"{"metadata": 7}"#).expect_err("no object");
    }
}
