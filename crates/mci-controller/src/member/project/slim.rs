//! A kind of which we read a few fields: the others cost nothing, and a new one there does not make an object unreadable.

use std::{borrow::Cow, fmt, marker::PhantomData};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::Deserialize;

/// An object of kind `K`, with these parts of its spec and status.
#[derive(Deserialize)]
#[serde(bound = "Spec: Default + Deserialize<'de>, Status: Deserialize<'de>")]
pub(in crate::member) struct Slim<K, Spec, Status> {
    metadata: ObjectMeta,
    #[serde(default)]
    pub(super) spec: Spec,
    #[serde(default = "Option::default")]
    pub(super) status: Option<Status>,
    #[serde(skip)]
    kind: PhantomData<fn() -> K>,
}

// === impl Slim ===

impl<K, Spec: Clone, Status: Clone> Clone for Slim<K, Spec, Status> {
    fn clone(&self) -> Self {
        Self {
            metadata: self.metadata.clone(),
            spec: self.spec.clone(),
            status: self.status.clone(),
            kind: PhantomData,
        }
    }
}

impl<K, Spec, Status> fmt::Debug for Slim<K, Spec, Status> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slim")
            .field("metadata", &self.metadata)
            .finish_non_exhaustive()
    }
}

impl<K: Resource<DynamicType = ()>, Spec, Status> Resource for Slim<K, Spec, Status> {
    type DynamicType = ();
    type Scope = K::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        K::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        K::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        K::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        K::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
