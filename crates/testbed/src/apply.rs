//! Applying YAML: each document by server-side apply, definitions before what they define.

use std::path::Path;
use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, Client, discovery};
use serde::Deserialize as _;
use serde_json::Value;
use tokio::time::timeout;

use crate::eventually::eventually;

/// The field manager of everything the testbed and its tests apply.
const FIELD_MANAGER: &str = "testbed";
/// One request: a busy machine takes a second, a broken one for ever.
const REQUEST_LIMIT: Duration = Duration::from_mins(1);
/// From a definition's application to its kind being served.
const ESTABLISH_LIMIT: Duration = Duration::from_mins(1);

/// Why YAML could not be applied; names the document.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// A file could not be read.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: String,
        /// What the system answered.
        source: std::io::Error,
    },
    /// A document is not a Kubernetes object.
    #[error("document {number}: {problem}; expected apiVersion, kind and metadata.name")]
    Document {
        /// Counting from 1.
        number: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// The API server does not know the kind, or not yet.
    #[error("{object}: the API server does not serve this kind: {problem}")]
    Kind {
        /// Kind and name.
        object: String,
        /// What it answered.
        problem: String,
    },
    /// The API server refused the object, or did not answer in time.
    #[error("{object}: {problem}")]
    Object {
        /// Kind and name.
        object: String,
        /// What it answered.
        problem: String,
    },
}

// === impl ApplyError ===

impl ApplyError {
    /// Stable and short.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::File { .. } => "FileFailed",
            Self::Document { .. } => "InvalidDocument",
            Self::Kind { .. } => "UnknownKind",
            Self::Object { .. } => "ApplyFailed",
        }
    }
}

/// Applies every document of `yaml`: definitions (and waits for them to be served), then namespaces, then the rest in
/// the order given. A namespaced object that names no namespace goes to `default`.
pub(crate) async fn apply_yaml(client: &Client, yaml: &str) -> Result<(), ApplyError> {
    let mut objects = parse(yaml)?;
    objects.sort_by_key(rank);
    let definitions = objects
        .iter()
        .take_while(|object| rank(object) == 0)
        .count();
    let (definitions, rest) = objects.split_at(definitions);
    futures::future::try_join_all(definitions.iter().map(async |definition| {
        apply(client, definition).await?;
        established(client, definition).await
    }))
    .await?;
    for object in rest {
        apply(client, object).await?;
    }
    Ok(())
}

/// Applies a file; see [`apply_yaml`].
pub(crate) async fn apply_file(client: &Client, path: &Path) -> Result<(), ApplyError> {
    let text = tokio::fs::read_to_string(path)
        .await
        .map_err(|source| ApplyError::File {
            path: path.display().to_string(),
            source,
        })?;
    apply_yaml(client, &text).await
}

/// What must exist before the others: lower goes first.
fn rank(object: &DynamicObject) -> u8 {
    match kind(object) {
        "CustomResourceDefinition" => 0,
        "Namespace" => 1,
        _ => 2,
    }
}

fn kind(object: &DynamicObject) -> &str {
    object
        .types
        .as_ref()
        .map_or("", |types| types.kind.as_str())
}

fn describe(object: &DynamicObject) -> String {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    match &object.metadata.namespace {
        Some(namespace) => format!("{} {namespace}/{name}", kind(object)),
        None => format!("{} {name}", kind(object)),
    }
}

fn parse(yaml: &str) -> Result<Vec<DynamicObject>, ApplyError> {
    let mut objects = Vec::new();
    for (nth, document) in serde_yaml::Deserializer::from_str(yaml).enumerate() {
        let failed = |problem: String| ApplyError::Document {
            number: nth + 1,
            problem,
        };
        let mut value = Value::deserialize(document).map_err(|error| failed(error.to_string()))?;
        if value.is_null() {
            continue; // a document of comments alone
        }
        read_file_modes(&mut value);
        let object: DynamicObject =
            serde_json::from_value(value).map_err(|error| failed(error.to_string()))?;
        if object.types.is_none() || object.metadata.name.is_none() {
            return Err(failed("it is no object".to_owned()));
        }
        objects.push(object);
    }
    Ok(objects)
}

/// File modes are written in octal, `0440`, which is a number to kubectl and a text to YAML 1.2.
fn read_file_modes(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                let text = field.as_str().and_then(|text| text.strip_prefix('0'));
                let mode = text.and_then(|digits| u32::from_str_radix(digits, 8).ok());
                match mode {
                    Some(mode) if name == "defaultMode" || name == "mode" => *field = mode.into(),
                    _ => read_file_modes(field),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(read_file_modes),
        _ => {}
    }
}

async fn apply(client: &Client, object: &DynamicObject) -> Result<(), ApplyError> {
    let unknown = |problem: String| ApplyError::Kind {
        object: describe(object),
        problem,
    };
    let types = object
        .types
        .as_ref()
        .ok_or_else(|| unknown("no kind".to_owned()))?;
    let gvk = GroupVersionKind::try_from(types).map_err(|error| unknown(error.to_string()))?;
    // discovery lags behind a definition that was established this moment
    let (resource, capabilities) = eventually("discovery", ESTABLISH_LIMIT, async || {
        match timeout(REQUEST_LIMIT, discovery::pinned_kind(client, &gvk)).await {
            Ok(Ok(found)) => Ok(Ok(found)),
            // a group of Kubernetes' own does not appear later
            Ok(Err(error)) if !gvk.group.contains('.') => Ok(Err(error.to_string())),
            Ok(Err(error)) => Err(error.to_string()),
            Err(elapsed) => Err(elapsed.to_string()),
        }
    })
    .await
    .map_err(|error| unknown(error.last))?
    .map_err(unknown)?;

    let refused = |problem: String| ApplyError::Object {
        object: describe(object),
        problem,
    };
    let api: Api<DynamicObject> = match (&object.metadata.namespace, capabilities.scope) {
        (_, discovery::Scope::Cluster) => Api::all_with(client.clone(), &resource),
        (Some(namespace), _) => Api::namespaced_with(client.clone(), namespace, &resource),
        (None, _) => Api::namespaced_with(client.clone(), "default", &resource),
    };
    let name = object.metadata.name.as_deref().unwrap_or_default();
    let params = PatchParams::apply(FIELD_MANAGER).force();
    match timeout(
        REQUEST_LIMIT,
        api.patch(name, &params, &Patch::Apply(object)),
    )
    .await
    {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(refused(error.to_string())),
        Err(_) => Err(refused(format!("no answer within {REQUEST_LIMIT:?}"))),
    }
}

async fn established(client: &Client, definition: &DynamicObject) -> Result<(), ApplyError> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let name = definition.metadata.name.clone().unwrap_or_default();
    let wait = await_condition(api, &name, conditions::is_crd_established());
    let problem = match timeout(ESTABLISH_LIMIT, wait).await {
        Ok(Ok(_)) => return Ok(()),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("not established within {ESTABLISH_LIMIT:?}"),
    };
    Err(ApplyError::Object {
        object: describe(definition),
        problem,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_documents_are_skipped_and_definitions_go_first() {
        let yaml = "# nothing\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n---\n\
                    apiVersion: v1\nkind: Namespace\nmetadata: {name: b}\n";
        let mut objects = parse(yaml).unwrap();
        objects.sort_by_key(rank);
        let kinds: Vec<&str> = objects.iter().map(kind).collect();
        assert_eq!(kinds, ["Namespace", "ConfigMap"]);
    }

    #[test]
    fn file_modes_are_octal_as_for_kubectl() {
        let yaml = "apiVersion: v1\nkind: Pod\nmetadata: {name: a, labels: {id: 0440}}\n\
                    spec: {volumes: [{secret: {defaultMode: 0440, items: [{mode: 256}]}}]}\n";
        let pod = &parse(yaml).unwrap()[0];
        let secret = &pod.data["spec"]["volumes"][0]["secret"];
        assert_eq!(secret["defaultMode"], 288);
        assert_eq!(secret["items"][0]["mode"], 256);
        assert_eq!(pod.metadata.labels.as_ref().unwrap()["id"], "0440");
    }

    #[test]
    fn a_document_that_is_no_object_is_named_by_its_number() {
        let yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n---\nkind: ConfigMap\nmetadata: {}\n";
        let text = parse(yaml).unwrap_err().to_string();
        assert!(text.starts_with("document 2: "), "{text}");
    }
}
