//! An import as a watch decodes it. Of the managed fields, which are as long as the rest, only the owners are read.

use std::{borrow::Cow, collections::BTreeMap, fmt};

use crd::InferencePoolImport;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};
use serde_json::value::RawValue;

/// An import, without its spec.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "Object")]
pub(crate) struct ImportObject {
    /// The fields of [`Metadata`].
    pub(super) metadata: ObjectMeta,
    pub(super) managed: Vec<Managed>,
    /// Not parsed: the interner mostly knows the text.
    pub(super) status: Option<Box<RawValue>>,
}

/// The fields of one manager.
#[derive(Clone, Debug)]
pub(super) struct Managed {
    pub(super) manager: Option<String>,
    pub(super) operation: Option<String>,
    pub(super) owned: Owned,
}

/// The fields that a manager owns, of those status fields that we write too.
#[derive(Clone, Debug, Default)]
pub(super) struct Owned {
    /// Names of entries; none: it does not own the list itself either.
    pub(super) clusters: Option<Vec<String>>,
    pub(super) conditions: bool,
    /// Names of controllers.
    pub(super) controllers: Vec<String>,
}

#[derive(Deserialize)]
struct Object {
    metadata: Metadata,
    status: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    namespace: Option<String>,
    name: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    labels: Option<BTreeMap<String, String>>,
    managed_fields: Option<Vec<Entry>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    manager: Option<String>,
    operation: Option<String>,
    fields_v1: Option<Fields>,
}

#[derive(Deserialize)]
struct Fields {
    #[serde(rename = "f:status")]
    status: Option<StatusFields>,
}

#[derive(Deserialize)]
struct StatusFields {
    #[serde(rename = "f:clusters")]
    clusters: Option<Names>,
    #[serde(rename = "f:conditions")]
    conditions: Option<IgnoredAny>,
    #[serde(rename = "f:controllers")]
    controllers: Option<Names>,
}

/// Names in the keys of a list that is a map by name: `k:{"name":"east"}`.
struct Names(Vec<String>);

// === impl ImportObject ===

impl From<Object> for ImportObject {
    fn from(object: Object) -> Self {
        let Metadata {
            namespace,
            name,
            uid,
            resource_version,
            generation,
            labels,
            managed_fields,
        } = object.metadata;
        let managed = managed_fields.unwrap_or_default().into_iter();
        Self {
            metadata: ObjectMeta {
                namespace,
                name,
                uid,
                resource_version,
                generation,
                labels,
                ..ObjectMeta::default()
            },
            managed: managed.map(Managed::from).collect(),
            status: object.status,
        }
    }
}

impl Resource for ImportObject {
    type DynamicType = ();
    type Scope = <InferencePoolImport as Resource>::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        InferencePoolImport::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        InferencePoolImport::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        InferencePoolImport::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        InferencePoolImport::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

// === impl Managed ===

impl From<Entry> for Managed {
    fn from(entry: Entry) -> Self {
        let status = entry.fields_v1.and_then(|fields| fields.status);
        let owned = status.map_or_else(Owned::default, |status| Owned {
            clusters: status.clusters.map(|names| names.0),
            conditions: status.conditions.is_some(),
            controllers: status.controllers.map_or_else(Vec::new, |names| names.0),
        });
        Self {
            manager: entry.manager,
            operation: entry.operation,
            owned,
        }
    }
}

// === impl Names ===

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys;

        #[derive(Deserialize)]
        struct Key {
            name: String,
        }

        impl<'de> Visitor<'de> for Keys {
            type Value = Names;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("managed fields of a list")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Names, A::Error> {
                let mut names = Vec::new();
                while let Some((key, IgnoredAny)) = map.next_entry::<Cow<'de, str>, IgnoredAny>()? {
                    let json = key.strip_prefix("k:");
                    let key = json.and_then(|json| serde_json::from_str::<Key>(json).ok());
                    names.extend(key.map(|key| key.name));
                }
                Ok(Names(names))
            }
        }

        deserializer.deserialize_map(Keys)
    }
}
